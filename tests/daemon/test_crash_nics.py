# SPDX-License-Identifier: Apache-2.0
"""NICs that go down, change and vanish under a job that leased a queue of them."""

import signal
from collections.abc import Iterator

import pytest
from crash_rig import REMOTE_ERROR, Site, add_nic, wait_for
from harpd_rig import HostDaemon

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
    wait_for(lambda: "NIC is down" in marks(harpd), "the remark")
    wait_for(lambda: "eth0 is down" in pair.sink.words(), "the job's word")
    host.run("ip", "link", "set", *dev, "up")
    pair.sink.goes_on()
    assert "eth0 is up again" in pair.sink.words()
    wait_for(lambda: "NIC is down" not in marks(harpd), "the remark's end")
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
    assert "eth0: the interface was removed" in rank.words()
    there = peer.event()
    # It is known here; there only silence tells, three seconds after the last word.
    assert here["at_ns"] < there["at_ns"]
    assert (there["event"], there["nccl"]) == ("error", REMOTE_ERROR)
    assert harpd.host.address in there["text"]
    # The other NIC's job has noticed nothing, and harpd leases on.
    wait_for(lambda: harpd.query("status")["leases"] == 1, "the lease's end")
    nics = {nic["ifname"]: nic for nic in harpd.query("status")["nics"]}
    assert nics["eth0"]["problem"] == "the interface was removed"
    assert nics["eth1"]["problem"] == ""
    other.finish()
    wait_for(lambda: harpd.query("status")["leases"] == 0, "the other lease's end")
    site.pair("eth1").finish()


def test_a_smaller_mtu_is_found_out_and_a_larger_one_is_no_matter(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    for before, now in ((1500, 1400), (1400, 1500), (1500, 1600)):
        harpd.host.run("ip", "link", "set", "dev", "eth0", "mtu", str(now))
        words = f"MTU changed from {before} to {now}"
        wait_for(lambda words=words: words in marks(harpd), "the remark")  # type: ignore[misc]
        pair.sink.goes_on()
    assert "HARP goes on with 1500 until restarted" in pair.sink.words()
    assert int(pair.source.page().counters["tcp_mtu_black_holes"]) > 0
    pair.finish()


def test_an_address_that_comes_back_was_not_missed(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    address = [f"{harpd.host.address}/24", "dev", "eth0"]
    harpd.host.run("ip", "address", "del", *address)
    wait_for(lambda: f"address removed: {harpd.host.address}" in marks(harpd), "the remark")
    said = f"the address {harpd.host.address} was removed from eth0"
    wait_for(lambda: said in pair.sink.words(), "the job's word")
    harpd.host.run("ip", "address", "add", *address)
    pair.sink.goes_on()
    wait_for(lambda: marks(harpd) == [], "the remark's end")
    pair.finish()


def test_an_address_comes_back_before_harpd_notices(site: Site) -> None:
    """The kernel owns it then, gets nothing of the job's, and resets nothing."""
    pair, harpd = site.pair(), site.daemons[1]
    address = [f"{harpd.host.address}/24", "dev", "eth0"]
    harpd.host.run("ip", "address", "del", *address)
    wait_for(lambda: f"address removed: {harpd.host.address}" in marks(harpd), "the remark")
    assert harpd.process is not None
    harpd.process.send_signal(signal.SIGSTOP)
    try:
        harpd.host.run("ip", "address", "add", *address)
        pair.sink.goes_on()
    finally:
        harpd.process.send_signal(signal.SIGCONT)
    wait_for(lambda: marks(harpd) == [], "the remark's end")
    pair.finish()


def test_a_removed_address_ends_its_job_at_the_timeout(site: Site) -> None:
    pair = site.pair(HARP_USER_TIMEOUT_MS=str(TIMEOUT_MS))
    host = site.lab.hosts[0]
    host.run("ip", "address", "del", f"{host.address}/24", "dev", "eth0")
    for rank in (pair.source, pair.sink):
        error = rank.event()
        assert (error["event"], error["nccl"], error["wrong"]) == ("error", REMOTE_ERROR, 0)
        assert "no answer in time" in error["text"]


def test_a_second_address_comes_and_goes(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]

    def there() -> bool:
        return "10.77.0.99" in harpd.query("status")["nics"][0]["addresses"]

    for how in ("add", "del"):
        harpd.host.run("ip", "address", how, "10.77.0.99/24", "dev", "eth0")
        wait_for(lambda how=how: there() == (how == "add"), "the address")  # type: ignore[misc]
        pair.sink.goes_on()
    pair.finish()
