# SPDX-License-Identifier: Apache-2.0
"""harpd dies, restarts or is upgraded while jobs transfer data, and no job notices.

Counters show that no packet is lost: the program's `absent` (no queue for a HARP port), the
kernels' resets, and TCP's. No segment arrives out of order. The receiver had already received each
retransmitted segment (a rank without processor time is probed).
"""

import errno
import signal
import subprocess
from collections.abc import Iterator

import pytest
from crash_rig import Kernel, Pair, Site, bpffs_mounts, refused
from driver_rig import REMOTE_ERROR
from harpd_rig import HostDaemon, xdp_id
from netns_tools import wait_until

from harp.lab import Host, Lab
from harp.stats.page import PageError


@pytest.fixture
def site() -> Iterator[Site]:
    """Two hosts, one queue each, harpd on both."""
    with Lab() as lab, Site(lab) as site:
        yield site


def harpctl(harpd: HostDaemon, *arguments: str) -> str:
    """One that must succeed; what it printed."""
    done = harpd.harpctl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restarted(harpd: HostDaemon) -> str:
    """Restart it while clients connect: each waits and is served. What harpctl printed."""
    command = harpd.harpctl_command("restart")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as restarting:
        while restarting.poll() is None:
            assert harpd.query("status")["leases"] == 1
        return restarting.stdout.read()


def resets(host: Host) -> int:
    """RSTs that the host's kernel has sent."""
    names, values = (
        line.split()
        for line in host.run("cat", "/proc/net/snmp").splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("OutRsts")])


class Losses:
    """Counts losses since its creation."""

    def __init__(self, site: Site, pair: Pair) -> None:
        self._site, self._pair = site, pair
        self._before = self._sent_away()

    def _sent_away(self) -> dict[str, int]:
        """RSTs of the kernels, and packets of ours that the programs had no queue for."""
        found = {f"RSTs of {host.netns}": resets(host) for host in self._site.lab.hosts}
        for harpd in self._site.daemons:
            verdicts = harpd.query("status")["nics"][0]["verdicts"]
            found[f"absent, {harpd.host.netns}"] = verdicts["absent"]
        return found

    def _all_came_twice(self) -> bool:
        try:
            source, sink = self._pair.source.page().counters, self._pair.sink.page().counters
        except PageError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # a writer that waits for a processor
        return all(
            one["tcp_retransmits"] <= other["drop_tcp_duplicate"]
            for one, other in ((source, sink), (sink, source))
        )

    def none(self) -> None:
        """Nothing is missing behind what arrived, and every repetition arrived as a second one."""
        assert self._sent_away() == self._before
        for rank in (self._pair.source, self._pair.sink):
            counters = rank.page().counters
            for name in ("tcp_out_of_order", "tcp_rst_in", "tcp_estab_resets"):
                assert counters[name] == 0, f"{rank.role}: {name}"
        wait_until(self._all_came_twice, "duplicates of what was sent again")


def mark(harpd: HostDaemon) -> dict[str, object]:
    """The one lease, as far as it must stay what it is."""
    (found,) = harpd.query("instances")["instances"]
    return {name: found[name] for name in ("lease_id", "pid", "queue", "ports", "since_s", "label")}


def released(harpd: HostDaemon) -> None:
    wait_until(lambda: harpd.query("status")["nics"][0]["queues"] == {"0": "free"}, "the queue")


def test_a_job_does_not_notice(site: Site) -> None:
    """A killed harpd, one that ends in order, and a restart, one after the other."""
    pair = site.pair()
    ssh = Kernel(site.lab)
    before = [mark(harpd) for harpd in site.daemons]
    for how in ("SIGKILL", "SIGTERM", "restart"):
        programs = [xdp_id(host) for host in site.lab.hosts]
        losses = Losses(site, pair)
        for harpd in site.daemons:
            if how == "restart":
                assert "1 lease taken over" in restarted(harpd)
            else:
                harpd.end(signal.Signals[how])
                pair.sink.progresses()
                ssh.progresses()
                assert xdp_id(harpd.host) > 0
                harpd.start()
            pair.sink.progresses()
            ssh.progresses()
        losses.none()
        assert [mark(harpd) for harpd in site.daemons] == before
        # The newer harpd's program has taken the older one's place.
        assert [xdp_id(host) for host in site.lab.hosts] != programs
    pair.finish()
    for harpd in site.daemons:
        released(harpd)
        assert harpd.log_text().count("continues with") == 3


def nothing_is_left(harpd: HostDaemon) -> None:
    wait_until(lambda: xdp_id(harpd.host) == 0, "detaching")
    assert bpffs_mounts(harpd.folder) == []
    assert list(harpd.run_dir.iterdir()) == []
    assert reserved_ports(harpd) == ""


def reserved_ports(harpd: HostDaemon) -> str:
    return harpd.host.run("sysctl", "-n", "net.ipv4.ip_local_reserved_ports").strip()


def test_without_harpd_and_jobs_the_program_passes_everything_on(site: Site) -> None:
    ssh, pair, harpd = Kernel(site.lab), site.pair(), site.daemons[1]
    (lease,) = harpd.query("instances")["instances"]
    port = int(lease["ports"][0])
    harpd.end(signal.SIGKILL)
    pair.sink.progresses()
    pair.sink.process.send_signal(signal.SIGKILL)
    pair.sink.process.wait(60)
    assert pair.source.event()["event"] == "error"
    assert xdp_id(harpd.host) > 0, "pinned"
    ssh.progresses()
    # The kernel answers at a port of the dead job's lease, and at one that was never leased.
    assert refused(site.lab, port)
    assert refused(site.lab, 65000)
    harpd.start()
    words = harpd.log_text()
    assert "which a dead harpd had left" in words
    assert "is over: process" in words
    ssh.progresses()
    # Its ports rest as if harpd had been there.
    assert harpd.query("status")["nics"][0]["port_blocks_resting"] == 1
    released(harpd)
    site.pair().finish()
    assert reserved_ports(harpd) == "61000-65535"
    released(harpd)
    harpctl(harpd, "stop")
    assert harpd.process.wait(60) == 0
    nothing_is_left(harpd)


def test_stop_cleans_up_where_no_harpd_runs(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    harpd.end(signal.SIGKILL)
    refusal = harpd.harpctl("stop")
    assert refusal.returncode == 6
    assert len(refusal.stderr.splitlines()) == 1
    assert f"process {pair.sink.pid} (sink) on eth0 queue 0" in refusal.stderr
    assert refusal.stdout == ""
    pair.finish()
    lines = harpctl(harpd, "stop").splitlines()
    assert lines == [
        "no harpd runs; removed the XDP program of eth0",
        f"no harpd runs; unmounted {harpd.run_dir}/bpf",
        "no harpd runs; restored what harpd had changed of NICs and ports",
        f"no harpd runs; removed {harpd.socket}",
        f"no harpd runs; removed {harpd.run_dir}/state.json",
    ]
    nothing_is_left(harpd)
    again = harpd.harpctl("stop")
    assert again.returncode == 7
    assert again.stderr == "harpctl: no harpd runs, and none left anything behind\n"


def test_stop_by_force_cuts_jobs_that_outlived_their_harpd(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    harpd.end(signal.SIGKILL)
    assert "removed the XDP program of eth0" in harpctl(harpd, "stop", "--force")
    nothing_is_left(harpd)
    # The kernel answers for it from now on.
    error = pair.source.event()
    assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
