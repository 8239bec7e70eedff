# SPDX-License-Identifier: Apache-2.0
"""harpd dies, restarts or is upgraded while jobs transfer data, and no job notices.

Counters show that no packet is lost: `absent` of the XDP program (a HARP port without a queue),
RSTs, and segments out of order. Every retransmission is a duplicate: the peer of a rank that gets
no processor time sends probes.
"""

import errno
import signal
import subprocess
from collections.abc import Iterator

import pytest
from crash_rig import KernelConnection, Pair, Site, bpffs_mounts, is_refused
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
    """Run harpctl, which must succeed; return its output."""
    done = harpd.harpctl(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restart(harpd: HostDaemon) -> str:
    """Restart harpd while clients connect, which it serves; return harpctl's output."""
    command = harpd.harpctl_command("restart")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as restarting:
        while restarting.poll() is None:
            assert harpd.query("status")["leases"] == 1
        return restarting.stdout.read()


def count_resets(host: Host) -> int:
    """Return the number of RSTs that the host's kernel has sent."""
    names, values = (
        line.split()
        for line in host.run("cat", "/proc/net/snmp").splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("OutRsts")])


class Losses:
    """Packets that were lost since this object was created."""

    def __init__(self, site: Site, pair: Pair) -> None:
        self._site, self._pair = site, pair
        self._before = self._lost()

    def _lost(self) -> dict[str, int]:
        """Return RSTs of the kernels, and HARP packets without a queue in the XDP programs."""
        counts = {f"RSTs of {host.netns}": count_resets(host) for host in self._site.lab.hosts}
        for harpd in self._site.daemons:
            verdicts = harpd.query("status")["nics"][0]["verdicts"]
            counts[f"absent, {harpd.host.netns}"] = verdicts["absent"]
        return counts

    def _all_are_duplicates(self) -> bool:
        try:
            source, sink = self._pair.source.page().counters, self._pair.sink.page().counters
        except PageError as error:
            if error.errno != errno.EBUSY:
                raise
            return False  # the writer was preempted during a write
        return all(
            one["tcp_retransmits"] <= other["drop_tcp_duplicate"]
            for one, other in ((source, sink), (sink, source))
        )

    def check_none(self) -> None:
        """Check that no packet was lost and that every retransmission was a duplicate."""
        assert self._lost() == self._before
        for rank in (self._pair.source, self._pair.sink):
            counters = rank.page().counters
            for name in ("tcp_out_of_order", "tcp_rst_in", "tcp_estab_resets"):
                assert counters[name] == 0, f"{rank.role}: {name}"
        wait_until(self._all_are_duplicates, "a duplicate for each retransmission")


def lease_fields(harpd: HostDaemon) -> dict[str, object]:
    """Return the fields of the only lease that must not change."""
    (instance,) = harpd.query("instances")["instances"]
    return {
        name: instance[name] for name in ("lease_id", "pid", "queue", "ports", "since_s", "label")
    }


def wait_for_free_queue(harpd: HostDaemon) -> None:
    wait_until(
        lambda: harpd.query("status")["nics"][0]["queues"] == {"0": "free"},
        "the release of the queue",
    )


def test_a_job_survives_each_end_of_harpd(site: Site) -> None:
    """harpd is killed, terminated and restarted, one after the other."""
    pair = site.pair()
    ssh = KernelConnection(site.lab)
    before = [lease_fields(harpd) for harpd in site.daemons]
    for method in ("SIGKILL", "SIGTERM", "restart"):
        programs = [xdp_id(host) for host in site.lab.hosts]
        losses = Losses(site, pair)
        for harpd in site.daemons:
            if method == "restart":
                assert "1 lease taken over" in restart(harpd)
            else:
                harpd.end(signal.Signals[method])
                pair.sink.wait_for_messages()
                ssh.check_echo()
                assert xdp_id(harpd.host) > 0
                harpd.start()
            pair.sink.wait_for_messages()
            ssh.check_echo()
        losses.check_none()
        assert [lease_fields(harpd) for harpd in site.daemons] == before
        # The new harpd has replaced the XDP program.
        assert [xdp_id(host) for host in site.lab.hosts] != programs
    pair.finish()
    for harpd in site.daemons:
        wait_for_free_queue(harpd)
        assert harpd.log_text().count("continues with") == 3


def check_nothing_left(harpd: HostDaemon) -> None:
    wait_until(lambda: xdp_id(harpd.host) == 0, "detaching")
    assert bpffs_mounts(harpd.folder) == []
    assert list(harpd.run_dir.iterdir()) == []
    assert reserved_ports(harpd) == ""


def reserved_ports(harpd: HostDaemon) -> str:
    return harpd.host.run("sysctl", "-n", "net.ipv4.ip_local_reserved_ports").strip()


def test_without_harpd_and_jobs_the_xdp_program_passes_all_packets(site: Site) -> None:
    ssh, pair, harpd = KernelConnection(site.lab), site.pair(), site.daemons[1]
    (lease,) = harpd.query("instances")["instances"]
    port = int(lease["ports"][0])
    harpd.end(signal.SIGKILL)
    pair.sink.wait_for_messages()
    pair.sink.process.send_signal(signal.SIGKILL)
    pair.sink.process.wait(60)
    assert pair.source.event()["event"] == "error"
    assert xdp_id(harpd.host) > 0, "pinned"
    ssh.check_echo()
    # The kernel answers at a port of the dead job's lease, and at one that was never leased.
    assert is_refused(site.lab, port)
    assert is_refused(site.lab, 65000)
    harpd.start()
    log = harpd.log_text()
    assert "which a dead harpd had left" in log
    assert "has ended: process" in log
    ssh.check_echo()
    # The ports of the lease are quarantined as if harpd had run.
    assert harpd.query("status")["nics"][0]["port_blocks_resting"] == 1
    wait_for_free_queue(harpd)
    site.pair().finish()
    assert reserved_ports(harpd) == "61000-65535"
    wait_for_free_queue(harpd)
    harpctl(harpd, "stop")
    assert harpd.process.wait(60) == 0
    check_nothing_left(harpd)


def test_stop_cleans_up_after_a_dead_harpd(site: Site) -> None:
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
        "no harpd runs; restored the settings of NICs and ports that harpd had changed",
        f"no harpd runs; removed {harpd.socket}",
        f"no harpd runs; removed {harpd.run_dir}/state.json",
    ]
    check_nothing_left(harpd)
    second = harpd.harpctl("stop")
    assert second.returncode == 7
    assert second.stderr == "harpctl: no harpd runs, and there is nothing to clean up\n"


def test_a_forced_stop_disconnects_jobs_of_a_dead_harpd(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    harpd.end(signal.SIGKILL)
    assert "removed the XDP program of eth0" in harpctl(harpd, "stop", "--force")
    check_nothing_left(harpd)
    # The kernel resets the job's connections from now on.
    error = pair.source.event()
    assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
