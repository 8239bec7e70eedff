# SPDX-License-Identifier: Apache-2.0
"""A job dies under load: harpd frees its resources, its peer reports an error, and a job of another
queue of the NIC does not notice. NICs vanish or lose their address under a job."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from crash_rig import Rank, Site, add_nic, held, memfds, refused
from driver_rig import PLUGIN_FAILED, REMOTE_ERROR
from harpd_rig import HostDaemon, stopped
from netns_tools import wait_until

from harp.lab import Lab, LabOptions

SYSTEM_ERROR = 2
TIMEOUT_MS = 1500
OTHER = '[[nic]]\nifname = "eth1"\nxdp_mode = "generic"\n'
RULE = "toeplitz:6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"


@pytest.fixture
def site() -> Iterator[Site]:
    """Two hosts, two queues each, harpd on both."""
    with Lab(LabOptions(queues=2, rss=RULE)) as lab, Site(lab, nic=f'rss = "{RULE}"') as site:
        yield site


def lease_of(harpd: HostDaemon, rank: Rank) -> dict[str, Any]:
    (found,) = [each for each in harpd.query("instances")["instances"] if each["pid"] == rank.pid]
    return dict(found)


@pytest.mark.parametrize("victim", ["source", "sink"])
def test_everything_of_a_killed_job_is_freed_and_its_peer_reports_it(
    site: Site, victim: str
) -> None:
    other = site.pair()
    pair = site.pair()
    dies, lives = (pair.source, pair.sink) if victim == "source" else (pair.sink, pair.source)
    index = 0 if victim == "source" else 1
    harpd, host = site.daemons[index], site.lab.hosts[index]
    first = lease_of(harpd, dies)
    assert (first["pid"], first["uid"], first["label"]) == (dies.pid, 65534, victim)
    inodes = memfds(dies.pid)
    assert len(inodes) == 3, "frames, the pages of the stack and of the job"

    dies.process.send_signal(signal.SIGKILL)
    error = lives.event()
    assert error["event"] == "error"
    assert error["nccl"] == REMOTE_ERROR
    assert error["wrong"] == 0
    assert host.address in lives.log_text()
    assert lives.process.wait(60) == PLUGIN_FAILED

    dies.process.wait(60)

    def free() -> bool:
        nic = harpd.query("status")["nics"][0]
        return nic["queues_free"] == 1 and nic["port_blocks_resting"] == 1

    wait_until(free, "queue and ports")
    wait_until(lambda: not held(inodes), "frames and pages")
    # No entry of the program is left: the kernel answers at its ports.
    if index == 1:
        before = harpd.query("status")["nics"][0]["verdicts"]
        assert refused(site.lab, first["ports"][0])
        after = harpd.query("status")["nics"][0]["verdicts"]
        assert after["pass_port"] > before["pass_port"]
        assert after["absent"] == before["absent"]
    other.sink.progresses()
    # The next job gets the queue, and other ports.
    again = site.pair()
    second = lease_of(harpd, again.source if index == 0 else again.sink)
    assert second["queue"] == first["queue"]
    assert second["ports"] != first["ports"]
    for each in (again, other):
        each.finish()
    for daemon in site.daemons:
        wait_until(lambda daemon=daemon: daemon.query("status")["leases"] == 0, "the lease's end")


# --------------------------------------------------------------------------------------------------
# NICs.
#
@pytest.fixture
def two_nics() -> Iterator[Site]:
    """Two hosts on a switch, so that a NIC may go without its peer; a second NIC on each."""
    with Lab(LabOptions(switch=True)) as lab:
        add_nic(lab, "eth1", "10.88.0.")
        with Site(lab, nic=OTHER) as site:
            yield site


def marks(harpd: HostDaemon) -> list[str]:
    """harpd's remarks on its lease."""
    (found,) = harpd.query("instances")["instances"]
    return found["marks"]


@pytest.mark.parametrize("index", [0, 1], ids=["source", "sink"])
def test_a_removed_nic_ends_its_job_and_no_other(two_nics: Site, index: int) -> None:
    other = two_nics.pair("eth1")
    pair = two_nics.pair(HARP_USER_TIMEOUT_MS="3000")
    ranks = [pair.source, pair.sink]
    rank, peer, harpd = ranks[index], ranks[1 - index], two_nics.daemons[index]
    harpd.host.run("ip", "link", "del", "dev", "eth0")
    here = rank.event()
    assert (here["event"], here["nccl"], here["wrong"]) == ("error", SYSTEM_ERROR, 0)
    assert "this host's network interface is gone or down" in here["text"]
    assert "eth0: the interface was removed" in rank.log_text()
    there = peer.event()
    # This side knows the reason; the other one detects it after three seconds of silence.
    assert here["at_ns"] < there["at_ns"]
    assert (there["event"], there["nccl"]) == ("error", REMOTE_ERROR)
    assert harpd.host.address in there["text"]
    # The other NIC's job has noticed nothing, and harpd leases on.
    wait_until(lambda: harpd.query("status")["leases"] == 1, "the lease's end")
    nics = {nic["ifname"]: nic for nic in harpd.query("status")["nics"]}
    assert nics["eth0"]["problem"] == "the interface was removed"
    assert nics["eth1"]["problem"] == ""
    other.finish()
    wait_until(lambda: harpd.query("status")["leases"] == 0, "the other lease's end")
    two_nics.pair("eth1").finish()


def test_an_address_comes_back_before_harpd_notices(two_nics: Site) -> None:
    """The kernel owns it then, gets nothing of the job's, and resets nothing."""
    pair, harpd = two_nics.pair(), two_nics.daemons[1]
    address = [f"{harpd.host.address}/24", "dev", "eth0"]
    harpd.host.run("ip", "address", "del", *address)
    wait_until(lambda: f"address removed: {harpd.host.address}" in marks(harpd), "the mark")
    text = f"NET/HARP: {harpd.host.address} was removed from eth0"
    wait_until(lambda: text in pair.sink.log_text(), "the message of the job")
    with stopped(harpd):
        harpd.host.run("ip", "address", "add", *address)
        pair.sink.progresses()
    wait_until(lambda: marks(harpd) == [], "the end of the mark")
    with stopped(harpd):
        pair.finish()
    line = f"{harpd.socket}: harpd does not answer within 1 s; is it stopped?"
    assert f"the lease ends with the process: {line}" in pair.sink.log_text()


def test_a_removed_address_ends_its_job_at_the_timeout(two_nics: Site) -> None:
    pair = two_nics.pair(HARP_USER_TIMEOUT_MS=str(TIMEOUT_MS))
    host = two_nics.lab.hosts[0]
    host.run("ip", "address", "del", f"{host.address}/24", "dev", "eth0")
    for rank in (pair.source, pair.sink):
        error = rank.event()
        assert (error["event"], error["nccl"], error["wrong"]) == ("error", REMOTE_ERROR, 0)
        assert "no answer in time" in error["text"]
