# SPDX-License-Identifier: Apache-2.0
"""Fixtures: two hosts on a veth pair, HARP's tools, and a bpffs."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns_tools import Tools

from harp.lab import Lab, LabOptions


@pytest.fixture
def tools(build_dir: Path, need_root: None) -> Iterator[Tools]:
    tools = Tools(build_dir)
    yield tools
    tools.close()


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    """Two new hosts, MTU 1500."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_lab(need_root: None) -> Iterator[Lab]:
    """Two hosts, MTU 1500, that all tests of a file share and do not change."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def shared_family_lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """As shared_lab, with addresses of one family."""
    with Lab(LabOptions(ipv6=request.param)) as lab:
        yield lab


@pytest.fixture
def dual(lab: Lab) -> Lab:
    """Two new hosts with addresses of both families: 10.77.0.N and fd77::N."""
    for host in lab.hosts:
        address = f"fd77::{host.index + 1}/64"
        host.run("ip", "address", "add", address, "dev", host.ifname, "nodad")
    return lab


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def family_lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """Two new hosts, MTU 1500, with addresses of one family."""
    with Lab(LabOptions(ipv6=request.param)) as lab:
        yield lab


@pytest.fixture(scope="session", autouse=True)
def enough_locked_memory() -> None:
    """Skip all tests if root lacks CAP_IPC_LOCK (some containers): frames need locked memory."""
    if os.geteuid() == 0:
        status = Path("/proc/self/status").read_text()
        effective = int(status.split("CapEff:")[1].split()[0], 16)
        if not effective >> 14 & 1:
            pytest.skip("no CAP_IPC_LOCK")


@pytest.fixture
def bpffs(tmp_path: Path, need_root: None) -> Iterator[Path]:
    """A private bpffs for one test."""
    path = tmp_path / "bpf"
    path.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)
