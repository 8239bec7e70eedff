# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a veth pair, with HARP's tools."""

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
    """Two fresh hosts, MTU 1500."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_lab(need_root: None) -> Iterator[Lab]:
    """Two hosts, MTU 1500, for all tests of a file that leave them as they were."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def shared_each(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """The same with addresses of one family."""
    with Lab(LabOptions(ipv6=request.param)) as lab:
        yield lab


@pytest.fixture
def dual(lab: Lab) -> Lab:
    """The two fresh hosts have addresses of both families: 10.77.0.N and fd77::N."""
    for host in lab.hosts:
        address = f"fd77::{host.index + 1}/64"
        host.run("ip", "address", "add", address, "dev", host.ifname, "nodad")
    return lab


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def each(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """Two fresh hosts, MTU 1500, with addresses of one family."""
    with Lab(LabOptions(ipv6=request.param)) as lab:
        yield lab


@pytest.fixture(scope="session", autouse=True)
def enough_locked_memory() -> None:
    """Root without CAP_IPC_LOCK (some containers) could not register frames: say so at once."""
    if os.geteuid() == 0:
        status = Path("/proc/self/status").read_text()
        effective = int(status.split("CapEff:")[1].split()[0], 16)
        if not effective >> 14 & 1:
            pytest.skip("no CAP_IPC_LOCK")


@pytest.fixture
def bpffs(tmp_path: Path, need_root: None) -> Iterator[Path]:
    """A bpffs of the test's own, at a place of its own."""
    at = tmp_path / "bpf"
    at.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", at], check=True)
    yield at
    subprocess.run(["umount", at], check=True)
