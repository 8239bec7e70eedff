# SPDX-License-Identifier: Apache-2.0
"""A job dies under load: harpd frees its resources, and the peer reports an error."""

import signal
from collections.abc import Iterator

import pytest
from crash_rig import PLUGIN_FAILED, REMOTE_ERROR, Site, held, memfds, refused
from netns_tools import wait_until

from harp.lab import Lab


@pytest.fixture
def site(need_root: None) -> Iterator[Site]:
    """Two hosts, one queue each, harpd on both."""
    with Lab() as lab, Site(lab) as site:
        yield site


@pytest.mark.parametrize("victim", ["source", "sink"])
def test_everything_of_a_killed_job_is_freed_and_its_peer_reports_it(
    site: Site, victim: str
) -> None:
    pair = site.pair()
    dies, lives = (pair.source, pair.sink) if victim == "source" else (pair.sink, pair.source)
    index = 0 if victim == "source" else 1
    harpd, host = site.daemons[index], site.lab.hosts[index]
    first = harpd.query("instances")["instances"][0]
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
        return nic["queues"] == {"0": "free"} and nic["port_blocks_resting"] == 1

    wait_until(free, "queue and ports")
    wait_until(lambda: not held(inodes), "frames and pages")
    # No entry of the program is left: the kernel answers at its ports.
    if index == 1:
        before = harpd.query("status")["nics"][0]["verdicts"]
        assert refused(site.lab, first["ports"][0])
        after = harpd.query("status")["nics"][0]["verdicts"]
        assert after["pass_port"] > before["pass_port"]
        assert after["absent"] == before["absent"]
        assert after["redirect_tcp"] == before["redirect_tcp"]
    # The next job gets the queue, and other ports.
    again = site.pair()
    second = harpd.query("instances")["instances"][0]
    assert second["queue"] == first["queue"]
    assert second["ports"] != first["ports"]
    again.finish()
    for daemon in site.daemons:
        wait_until(lambda daemon=daemon: daemon.query("status")["leases"] == 0, "the lease's end")
