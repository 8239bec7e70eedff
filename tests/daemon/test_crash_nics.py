# SPDX-License-Identifier: Apache-2.0
"""NICs that go down, change and vanish under a job that leased a queue of them."""

import signal
from collections.abc import Iterator

import pytest
from crash_rig import REMOTE_ERROR, Site, add_nic
from harpd_rig import HostDaemon
from netns_tools import wait_until

from harp.lab import Lab, LabOptions

SYSTEM_ERROR = 2
TIMEOUT_MS = 1500
OTHER = '[[nic]]\nifname = "eth1"\nxdp_mode = "generic"\n'


@pytest.fixture
def site(need_root: None) -> Iterator[Site]:
    """Two hosts on a switch, so that a NIC may go without its peer; a second NIC on each."""
    with Lab(LabOptions(switch=True)) as lab:
        add_nic(lab, "eth1", "10.88.0.")
        with Site(lab, nic=OTHER) as site:
            yield site


def marks(harpd: HostDaemon) -> list[str]:
    """harpd's remarks on its lease."""
    (found,) = harpd.query("instances")["instances"]
    words: list[str] = found["marks"]
    return words


def test_a_job_outlives_a_link_that_goes_down_and_comes_up(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    host, dev = harpd.host, ["dev", "eth0"]
    host.run("ip", "link", "set", *dev, "down")
    wait_until(lambda: "NIC is down" in marks(harpd), "the mark")
    wait_until(lambda: "eth0 is down" in pair.sink.log_text(), "the message of the job")
    host.run("ip", "link", "set", *dev, "up")
    pair.sink.progresses()
    assert "eth0 is up again" in pair.sink.log_text()
    wait_until(lambda: "NIC is down" not in marks(harpd), "the end of the mark")
    pair.finish()


@pytest.mark.parametrize("index", [0, 1], ids=["source", "sink"])
def test_a_removed_nic_ends_its_job_and_no_other(site: Site, index: int) -> None:
    other = site.pair("eth1")
    pair = site.pair(HARP_USER_TIMEOUT_MS="3000")
    ranks = [pair.source, pair.sink]
    rank, peer, harpd = ranks[index], ranks[1 - index], site.daemons[index]
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
    site.pair("eth1").finish()


def test_a_smaller_mtu_is_detected_and_a_larger_one_is_ignored(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    for before, now in ((1500, 1400), (1400, 1500), (1500, 1600)):
        harpd.host.run("ip", "link", "set", "dev", "eth0", "mtu", str(now))
        words = f"MTU changed from {before} to {now}"
        wait_until(lambda words=words: words in marks(harpd), "the mark")  # type: ignore[misc]
        pair.sink.progresses()
    assert "HARP uses 1500 until restarted" in pair.sink.log_text()
    assert int(pair.source.page().counters["tcp_mtu_black_holes"]) > 0
    pair.finish()


def test_an_address_comes_back_before_harpd_notices(site: Site) -> None:
    """The kernel owns it then, gets nothing of the job's, and resets nothing."""
    pair, harpd = site.pair(), site.daemons[1]
    address = [f"{harpd.host.address}/24", "dev", "eth0"]
    harpd.host.run("ip", "address", "del", *address)
    wait_until(lambda: f"address removed: {harpd.host.address}" in marks(harpd), "the mark")
    text = f"{harpd.host.address} was removed from eth0"
    wait_until(lambda: text in pair.sink.log_text(), "the message of the job")
    assert harpd.process is not None
    harpd.process.send_signal(signal.SIGSTOP)
    try:
        harpd.host.run("ip", "address", "add", *address)
        pair.sink.progresses()
    finally:
        harpd.process.send_signal(signal.SIGCONT)
    wait_until(lambda: marks(harpd) == [], "the end of the mark")
    pair.finish()


def test_a_removed_address_ends_its_job_at_the_timeout(site: Site) -> None:
    pair = site.pair(HARP_USER_TIMEOUT_MS=str(TIMEOUT_MS))
    host = site.lab.hosts[0]
    host.run("ip", "address", "del", f"{host.address}/24", "dev", "eth0")
    for rank in (pair.source, pair.sink):
        error = rank.event()
        assert (error["event"], error["nccl"], error["wrong"]) == ("error", REMOTE_ERROR, 0)
        assert "no answer in time" in error["text"]
