# SPDX-License-Identifier: Apache-2.0
"""Many leases in sequence leave a real harpd as it was before."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_rig import lease_once
from harpd_rig import HostDaemon
from netns_tools import wait_until

from harp.lab import Lab, LabOptions

CONNECTIONS = 10  # each may send 20 messages a second


@pytest.fixture
def harpd(need_root: None) -> Iterator[HostDaemon]:
    """harpd on a host with two queues, without port quarantine."""
    with Lab(LabOptions(queues=2)) as lab:
        daemon = HostDaemon(lab.hosts[0], daemon="port_rest_ms = 0")
        try:
            yield daemon.start()
        finally:
            daemon.close()


def holdings(harpd: HostDaemon) -> dict[str, int]:
    """Descriptors, mappings and resident KiB of harpd; its NIC's files in its bpffs. (iproute2
    makes folders of its own in any bpffs that it finds, whoever runs it.)"""
    assert harpd.process is not None
    proc = Path(f"/proc/{harpd.process.pid}")
    status = (proc / "status").read_text()
    return {
        "descriptors": len(list((proc / "fd").iterdir())),
        "mappings": len((proc / "maps").read_text().splitlines()),
        "resident_kib": int(status.partition("VmRSS:")[2].split()[0]),
        "pins": len(list((harpd.run_dir / "bpf" / harpd.host.ifname).rglob("*"))),
    }


def cycle(harpd: HostDaemon, count: int) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(harpd.client()) for _ in range(CONNECTIONS)]
        for number in range(count):
            client = clients[number % CONNECTIONS]
            lease_once(client, harpd.host.ifname, frame_count=64)


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.long)])
def test_leases_leave_nothing_behind(harpd: HostDaemon, count: int) -> None:
    cycle(harpd, 50)
    before = holdings(harpd)
    cycle(harpd, count)
    wait_until(  # connections end when harpd comes to it
        lambda: holdings(harpd)["descriptors"] <= before["descriptors"] + 2, "closed descriptors"
    )
    after = holdings(harpd)
    assert after["pins"] == before["pins"]
    assert after["mappings"] <= before["mappings"] + 30
    assert after["resident_kib"] <= before["resident_kib"] + 8192
    nic = harpd.query("status")["nics"][0]
    assert (harpd.query("status")["leases"], nic["port_blocks_resting"]) == (0, 0)
    assert "internal error" not in harpd.log_text()
