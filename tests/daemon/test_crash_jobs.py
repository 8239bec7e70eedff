# SPDX-License-Identifier: Apache-2.0
"""A job dies under load: harpd frees its resources, its peer reports an error, and a job on another
queue of the NIC continues. NICs are removed, or lose their address, while jobs use them."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from crash_rig import Rank, Site, add_nic, is_refused, memfds, open_inodes
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
    (instance,) = [
        instance
        for instance in harpd.query("instances")["instances"]
        if instance["pid"] == rank.pid
    ]
    return dict(instance)


@pytest.mark.parametrize("victim", ["source", "sink"])
def test_a_killed_job_is_cleaned_up_and_its_peer_reports_an_error(site: Site, victim: str) -> None:
    other = site.pair()
    pair = site.pair()
    dead, survivor = (pair.source, pair.sink) if victim == "source" else (pair.sink, pair.source)
    index = 0 if victim == "source" else 1
    harpd, host = site.daemons[index], site.lab.hosts[index]
    first = lease_of(harpd, dead)
    assert (first["pid"], first["uid"], first["label"]) == (dead.pid, 65534, victim)
    inodes = memfds(dead.pid)
    assert len(inodes) == 3, "frames, and the statistics of the stack and of the job"

    dead.process.send_signal(signal.SIGKILL)
    error = survivor.event()
    assert error["event"] == "error"
    assert error["nccl"] == REMOTE_ERROR
    assert error["wrong"] == 0
    assert host.address in survivor.log_text()
    assert survivor.process.wait(60) == PLUGIN_FAILED

    dead.process.wait(60)

    def is_free() -> bool:
        nic = harpd.query("status")["nics"][0]
        return nic["queues_free"] == 1 and nic["port_blocks_resting"] == 1

    wait_until(is_free, "the release of queue and ports")
    wait_until(lambda: not open_inodes(inodes), "the release of frames and pages")
    # No entry of the XDP program is left: the kernel answers at the lease's ports.
    if index == 1:
        before = harpd.query("status")["nics"][0]["verdicts"]
        assert is_refused(site.lab, first["ports"][0])
        after = harpd.query("status")["nics"][0]["verdicts"]
        assert after["pass_port"] > before["pass_port"]
        assert after["absent"] == before["absent"]
    other.sink.wait_for_messages()
    # The next job gets the queue, and other ports.
    next_pair = site.pair()
    second = lease_of(harpd, next_pair.source if index == 0 else next_pair.sink)
    assert second["queue"] == first["queue"]
    assert second["ports"] != first["ports"]
    for job in (next_pair, other):
        job.finish()
    for daemon in site.daemons:
        wait_until(
            lambda daemon=daemon: daemon.query("status")["leases"] == 0, "the end of the lease"
        )


# --------------------------------------------------------------------------------------------------
# NICs.
#
@pytest.fixture
def two_nics() -> Iterator[Site]:
    """Two hosts with two NICs. A switch joins the first ones, so that one can be removed alone."""
    with Lab(LabOptions(switch=True)) as lab:
        add_nic(lab, "eth1", "10.88.0.")
        with Site(lab, nic=OTHER) as site:
            yield site


def marks(harpd: HostDaemon) -> list[str]:
    (instance,) = harpd.query("instances")["instances"]
    return instance["marks"]


@pytest.mark.parametrize("index", [0, 1], ids=["source", "sink"])
def test_a_removed_nic_ends_its_job_and_no_other(two_nics: Site, index: int) -> None:
    other = two_nics.pair("eth1")
    pair = two_nics.pair(HARP_USER_TIMEOUT_MS="3000")
    ranks = [pair.source, pair.sink]
    rank, peer, harpd = ranks[index], ranks[1 - index], two_nics.daemons[index]
    harpd.host.run("ip", "link", "del", "dev", "eth0")
    error = rank.event()
    assert (error["event"], error["nccl"], error["wrong"]) == ("error", SYSTEM_ERROR, 0)
    assert "this host's network interface is gone or down" in error["text"]
    assert "eth0: the interface was removed" in rank.log_text()
    peer_error = peer.event()
    # The rank on this host knows the reason; its peer times out after three seconds.
    assert error["at_ns"] < peer_error["at_ns"]
    assert (peer_error["event"], peer_error["nccl"]) == ("error", REMOTE_ERROR)
    assert harpd.host.address in peer_error["text"]
    # The job on the other NIC continues, and harpd still leases.
    wait_until(lambda: harpd.query("status")["leases"] == 1, "the end of the lease")
    nics = {nic["ifname"]: nic for nic in harpd.query("status")["nics"]}
    assert nics["eth0"]["problem"] == "the interface was removed"
    assert nics["eth1"]["problem"] == ""
    other.finish()
    wait_until(lambda: harpd.query("status")["leases"] == 0, "the end of the other lease")
    two_nics.pair("eth1").finish()


def test_an_address_comes_back_before_harpd_notices(two_nics: Site) -> None:
    """The kernel then owns the address, but receives no packets of the job and resets nothing."""
    pair, harpd = two_nics.pair(), two_nics.daemons[1]
    address = [f"{harpd.host.address}/24", "dev", "eth0"]
    harpd.host.run("ip", "address", "del", *address)
    wait_until(lambda: f"address removed: {harpd.host.address}" in marks(harpd), "the mark")
    text = f"NET/HARP: {harpd.host.address} was removed from eth0"
    wait_until(lambda: text in pair.sink.log_text(), "the message of the job")
    with stopped(harpd):
        harpd.host.run("ip", "address", "add", *address)
        pair.sink.wait_for_messages()
    wait_until(lambda: marks(harpd) == [], "the removal of the mark")
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
