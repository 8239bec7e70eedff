# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL with HARP's settings: address families, keys, leases, NICs.

Only the oldest and the newest version, because the settings do not depend on the ABI.
"""

import contextlib
import secrets
from pathlib import Path

import pytest
from nccl_tools import NEWEST, OLDEST, check_all, ranks_of, read_logs

from harp import _paths
from harp.lab import Lab, LabOptions, memif
from harp.lab.harpd import LabHarpd
from harp.lab.jail import Jail, library_dirs
from harp.nccl import wheels
from harp.nccl.ranks import HARP, SOCKETS

pytestmark = [pytest.mark.nccl, pytest.mark.parametrize("version", [OLDEST, NEWEST])]


@pytest.mark.parametrize("lab", [LabOptions(hosts=4)], indirect=True)
@pytest.mark.parametrize("net", [SOCKETS, HARP])
def test_four_ranks(lab: Lab, version: str, net: str) -> None:
    with ranks_of(lab, version, net) as ranks:
        ranks.init()
        check_all(ranks, version)
        ranks.ask("destroy 0")


@pytest.mark.parametrize("lab", [LabOptions(ipv6=True)], indirect=True)
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
def test_ipv6(lab: Lab, version: str, path: str) -> None:
    with ranks_of(lab, version, SOCKETS) as control:
        control.init()
        check_all(control, version)
    with ranks_of(lab, version, HARP, {"HARP_PATH": path}) as ranks:
        ranks.init()
        check_all(ranks, version)
        assert "fd77::" in read_logs(ranks)
        ranks.ask("destroy 0")


@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_encrypted_lanes(lab: Lab, version: str, path: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32) + "\n")
    extra = {"HARP_PATH": path, "HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(key)}
    with ranks_of(lab, version, HARP, extra) as ranks:
        ranks.init()
        check_all(ranks, version)
        assert "by encrypted " in read_logs(ranks)
        ranks.ask("destroy 0")


def test_leases_of_harpd_as_nobody(lab: Lab, version: str) -> None:
    """Each rank sees only the libraries and harpd's socket, as in a container."""
    wheels.fetch(version)
    library = wheels.library(version)
    wheels.layout_file(library)
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(LabHarpd(host)) for host in lab.hosts]
        readable = (*library_dirs(), str(library.parent))
        commands = [
            Jail(socket=str(daemon.socket), readable=readable).command(None, [])
            for daemon in daemons
        ]
        extra = {"HARP_PATH": "xdp"}
        with ranks_of(lab, version, HARP, extra, commands=commands) as ranks:
            ranks.init()
            check_all(ranks, version)
            assert all("eth0" in daemon.harpctl("instances") for daemon in daemons)
            ranks.ask("destroy 0")


@pytest.mark.parametrize("lab", [LabOptions(rails=2)], indirect=True)
def test_two_nics(lab: Lab, version: str) -> None:
    with ranks_of(lab, version, HARP, {"HARP_PATH": "xdp"}) as ranks:
        ranks.init()
        check_all(ranks, version)
        log = read_logs(ranks)
        assert "via NET/HARP/0" in log
        assert all(f"{nic.ifname}: " in log for nic in lab.hosts[0].nics)
        ranks.ask("destroy 0")


def test_dpdk_memif(lab: Lab, version: str, tmp_path: Path) -> None:
    if not (_paths.plugin().parent / _paths.DPDK_LIBRARY).is_file():
        pytest.skip("built without DPDK")
    per_rank = [memif.environment(lab.options, host.index, tmp_path) for host in lab.hosts]
    with ranks_of(lab, version, HARP, per_rank=per_rank) as ranks:
        ranks.init()
        check_all(ranks, version)
        assert "net_memif0" in read_logs(ranks)
        ranks.ask("destroy 0")
