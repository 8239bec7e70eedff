# SPDX-License-Identifier: Apache-2.0
"""harpd's generic program on a device beside the NIC: where it is, who keeps the device, and what
becomes of it when harpd, jobs, the NIC or the device itself go."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_rig import REMOTE_ERROR, Kernel, Site, add_nic, bpffs_mounts, refused, wait_for
from harpd_rig import HARPCTL, HostDaemon, beside, links, xdp_id

from harp import _host
from harp.daemon.loop import close_all
from harp.lab import Host, Lab, LabOptions

SYSTEM_ERROR = 2
COPIED = "what the kernel receives for itself is copied once more"
# The kernel may join more than IP has a length for: then there can be no device beside.
NOT_BESIDE, BESIDE = "65537", "65536"


@pytest.fixture
def site(need_root: None) -> Iterator[Site]:
    """Two hosts on a switch, so that a NIC may go without its peer; harpd on both."""
    with Lab(LabOptions(switch=True)) as lab:
        add_nic(lab, "eth1", "10.88.0.")
        with Site(lab) as site:
            yield site


@pytest.fixture
def daemon(need_root: None) -> Iterator[HostDaemon]:
    """One that is not started yet."""
    with Lab() as lab:
        made = HostDaemon(lab.hosts[0])
        try:
            yield made
        finally:
            made.close()


def allow(host: Host, size: str) -> None:
    host.run("ip", "link", "set", "dev", host.ifname, "gro_max_size", size)


def keeper(harpd: HostDaemon) -> Path:
    """What keeps the network namespace of the other ends."""
    return harpd.run_dir / "bpf.netns"


def other_ends(harpd: HostDaemon) -> set[str]:
    """The devices in that namespace."""
    command = ["nsenter", f"--net={keeper(harpd)}", "ip", "-j", "link"]
    return {each["ifname"] for each in json.loads(subprocess.check_output(command))} - {"lo"}


def nic(harpd: HostDaemon) -> dict[str, object]:
    found: dict[str, object] = harpd.query("status")["nics"][0]
    return found


def check(harpd: HostDaemon) -> str:
    """What `harpctl check` says of the NIC, line ends aside."""
    command = harpd.command(sys.executable, "-c", HARPCTL, "check", harpd.host.ifname)
    env = os.environ | {"HARP_CONFIG": str(harpd.file), "HARP_SOCKET": str(harpd.socket)}
    said = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False).stdout
    return " ".join(said.split())


def mounted(path: Path) -> bool:
    return any(
        line.split()[4] == str(path)
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    )


def nothing_is_left(harpd: HostDaemon, name: str) -> None:
    wait_for(lambda: name not in links(harpd.host), "the device's end")
    assert xdp_id(harpd.host) == 0
    assert not mounted(keeper(harpd))
    assert bpffs_mounts(harpd.folder) == []
    assert list(harpd.run_dir.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Where it is.
#
def test_a_lease_receives_from_the_device_and_the_nic_has_no_program(daemon: HostDaemon) -> None:
    harpd = daemon.start()
    host, name = harpd.host, beside(daemon.host)
    assert "xdp" not in links(host)[host.ifname]
    assert links(host)[name]["xdp"]["prog"]["name"] == "harp_side"
    with harpd.client() as asked:
        lease, fds = asked.lease(host.ifname)
        assert len(fds) == _host.FDS_MAX
        assert other_ends(harpd) == {host.ifname}
        assert lease.side_ifindex == links(host)[name]["ifindex"]
        assert not lease.native
        close_all(fds)
    found = nic(harpd)
    assert (found["side"], found["mode"], found["copied"]) == (name, "generic", False)
    assert f"on a device beside it ({name})" in harpd.words()
    said = harpd.harpctl("status")
    assert f"beside, {name}" in said.stdout
    checked = check(harpd)
    assert f"on the device {name} beside it" in checked
    assert "xdp off" not in checked


def test_where_there_can_be_no_device_it_is_on_the_nic_and_said(daemon: HostDaemon) -> None:
    allow(daemon.host, NOT_BESIDE)
    harpd = daemon.start()
    host, name = harpd.host, beside(daemon.host)
    assert name not in links(host)
    assert "xdp" in links(host)[host.ifname]
    assert other_ends(harpd) == set()
    (line,) = [line for line in harpd.words().splitlines() if COPIED in line]
    why = "it cannot run on a device beside it: the kernel joins packets up to 65537 bytes there"
    assert why in line
    with harpd.client() as asked:
        lease, fds = asked.lease(host.ifname)
        assert (len(fds), lease.side_ifindex) == (_host.FDS, 0)
        close_all(fds)
    found = nic(harpd)
    assert (found["side"], found["mode"], found["copied"]) == ("", "generic", True)
    assert why in harpd.harpctl("status").stdout
    assert COPIED in check(harpd)


def test_a_name_that_is_taken_is_somebody_elses(daemon: HostDaemon) -> None:
    host, name = daemon.host, beside(daemon.host)
    host.run("ip", "link", "add", name, "type", "veth")
    harpd = daemon.start()
    assert nic(harpd)["copied"]
    assert f"making {name}: File exists" in harpd.words()
    assert harpd.harpctl("stop").returncode == 0
    assert name in links(host)


def test_where_it_can_not_be_kept_it_is_on_the_nic(daemon: HostDaemon) -> None:
    """Something else is at the namespace's place."""
    keeper(daemon).mkdir(parents=True)
    harpd = daemon.start()
    assert nic(harpd)["copied"]
    assert "the device beside it can't be kept" in harpd.words()
    assert beside(harpd.host) not in links(harpd.host)
    assert harpd.harpctl("stop").returncode == 0
    keeper(harpd).rmdir()


# --------------------------------------------------------------------------------------------------
# Versions.
#
def ask(harpd: HostDaemon, message: bytes) -> tuple[_host.Message, list[int]]:
    """One message behind HELLO."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(str(harpd.socket))
        sock.send(_host.pack_hello(1, "harp of before"))
        sock.recv(65536)
        sock.send(message)
        raw, fds, _, _ = socket.recv_fds(sock, 65536, 16)
        return _host.unpack(raw), list(fds)


def of_before(harpd: HostDaemon) -> bytes:
    """LEASE as a HARP says it that knows no device beside: eight bytes shorter."""
    raw = bytearray(_host.pack_lease(2, harpd.host.ifname)[:-8])
    raw[8:12] = len(raw).to_bytes(4, "little")
    return bytes(raw)


def test_a_job_that_knows_no_device_beside_is_told(daemon: HostDaemon) -> None:
    harpd = daemon.start()
    for message in (of_before(harpd), _host.pack_lease(2, harpd.host.ifname, accepts=0)):
        answer, fds = ask(harpd, message)
        assert fds == []
        assert answer.kind is _host.Kind.REFUSED
        assert answer.fields["error"] == errno.EPROTONOSUPPORT
        assert "the job's HARP does not know: it is older than harpd" in answer.fields["why"]
    assert harpd.query("status")["leases"] == 0


def test_a_job_that_knows_none_is_served_where_there_is_none(daemon: HostDaemon) -> None:
    allow(daemon.host, NOT_BESIDE)
    harpd = daemon.start()
    answer, fds = ask(harpd, of_before(harpd))
    assert answer.kind is _host.Kind.LEASED
    assert len(fds) == _host.FDS
    assert answer.fields["lease"].side_ifindex == 0
    close_all(fds)


@pytest.mark.parametrize("size", [-9, -7, -1])
def test_a_request_of_no_version_is_none(daemon: HostDaemon, size: int) -> None:
    harpd = daemon.start()
    raw = bytearray(_host.pack_lease(2, harpd.host.ifname)[:size])
    raw[8:12] = len(raw).to_bytes(4, "little")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(str(harpd.socket))
        sock.send(_host.pack_hello(1, "short"))
        sock.recv(65536)
        sock.send(bytes(raw))
        assert sock.recv(65536) == b"", "hung up"
    assert harpd.query("status")["leases"] == 0


# --------------------------------------------------------------------------------------------------
# Who keeps it.
#
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_lives_while_a_job_does_and_the_next_harpd_has_it(
    site: Site, how: signal.Signals
) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    host, name = harpd.host, beside(site.daemons[1].host)
    before = links(host)[name]["ifindex"]
    harpd.end(how)
    pair.sink.goes_on()
    assert links(host)[name]["ifindex"] == before
    assert mounted(keeper(harpd))
    harpd.start()
    pair.sink.goes_on()
    assert links(host)[name]["ifindex"] == before
    assert nic(harpd)["side"] == name
    # The new one holds it by itself: without the file it stays as long as harpd.
    subprocess.run(["umount", str(keeper(harpd))], check=True)
    pair.sink.goes_on()
    pair.finish()
    assert links(host)[name]["ifindex"] == before
    assert harpd.harpctl("stop").returncode == 0
    nothing_is_left(harpd, name)


def test_when_all_are_dead_stop_takes_it_away(site: Site) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    ssh = Kernel(site.lab)
    host, name = harpd.host, beside(site.daemons[1].host)
    (lease,) = harpd.query("instances")["instances"]
    harpd.end(signal.SIGKILL)
    pair.sink.process.kill()
    pair.sink.process.wait(60)
    assert pair.source.event()["nccl"] == REMOTE_ERROR
    # What is pinned passes everything on, and the kernel answers.
    assert name in links(host)
    ssh.goes_on()
    assert refused(site.lab, int(lease["ports"][0]))
    assert harpd.harpctl("stop").returncode == 0
    nothing_is_left(harpd, name)
    ssh.goes_on()


def test_a_job_can_not_keep_it(site: Site) -> None:
    """It holds sockets of the device, and nothing of the namespace."""
    pair, harpd = site.pair(), site.daemons[1]
    name = beside(harpd.host)
    harpd.end(signal.SIGKILL)
    assert harpd.harpctl("stop", "--force").returncode == 0
    nothing_is_left(harpd, name)
    ended = pair.sink.event()
    assert (ended["event"], ended["nccl"]) == ("error", SYSTEM_ERROR)
    assert "the device beside eth0 was removed" in pair.sink.words()


@pytest.mark.parametrize("names", [None, ["link"], ["link", "side_link"]], ids=str)
def test_what_a_harpd_left_that_died_at_its_start_is_removed(
    daemon: HostDaemon, names: list[str] | None
) -> None:
    """Killed between pins, and between removing pins and the device: all is made anew."""
    harpd = daemon.start()
    name, pins = beside(harpd.host), harpd.run_dir / "bpf" / harpd.host.ifname
    before = links(harpd.host)[name]["ifindex"]
    harpd.end(signal.SIGKILL)
    for each in pins.iterdir() if names is None else [pins / one for one in names]:
        each.unlink()
    assert mounted(keeper(harpd))
    harpd.start()
    assert nic(harpd)["side"] == name
    assert links(harpd.host)[name]["ifindex"] != before
    assert harpd.harpctl("stop").returncode == 0
    nothing_is_left(harpd, name)


def test_the_namespace_alone_is_cleaned(daemon: HostDaemon) -> None:
    harpd = daemon.start()
    name, pins = beside(harpd.host), harpd.run_dir / "bpf" / harpd.host.ifname
    harpd.end(signal.SIGKILL)
    for each in pins.iterdir():
        each.unlink()
    pins.rmdir()
    subprocess.run(["umount", str(pins.parent)], check=True)
    assert mounted(keeper(harpd))
    assert harpd.harpctl("stop").returncode == 0
    nothing_is_left(harpd, name)


def test_a_keeper_of_another_device_is_not_believed(daemon: HostDaemon, tmp_path: Path) -> None:
    harpd = daemon.start()
    host, name, file = harpd.host, beside(daemon.host), keeper(daemon)
    before = links(host)[name]["ifindex"]
    harpd.end(signal.SIGKILL)
    # Held meanwhile elsewhere, so that the device lives; at its place is this test's namespace.
    held = tmp_path / "held"
    held.touch()
    subprocess.run(["mount", "--bind", str(file), str(held)], check=True)
    subprocess.run(["umount", str(file)], check=True)
    subprocess.run(["mount", "--bind", f"/run/netns/{host.netns}", str(file)], check=True)
    try:
        harpd.start()
        assert "the device beside the interface is not in it" in harpd.words()
        assert links(host)[name]["ifindex"] == before, "it is not ours to remove"
        assert nic(harpd)["copied"], harpd.words()
    finally:
        subprocess.run(["umount", str(held)], check=True)


# --------------------------------------------------------------------------------------------------
# What befalls it.
#
def test_switched_off_it_makes_no_difference(site: Site) -> None:
    """No packet passes at the end that all see."""
    pair, harpd = site.pair(), site.daemons[1]
    harpd.host.run("ip", "link", "set", "dev", beside(harpd.host), "down")
    pair.sink.goes_on()
    pair.finish()


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_taken_away_its_jobs_end_and_new_ones_have_another(site: Site, how: str) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    host, name = harpd.host, beside(site.daemons[1].host)
    before, elsewhere = links(host)[name]["ifindex"], f"{host.netns}-away"
    if how == "deleted":
        host.run("ip", "link", "delete", "dev", name)
    else:
        subprocess.run(["ip", "netns", "add", elsewhere], check=True)
        host.run("ip", "link", "set", "dev", name, "netns", elsewhere)
    ended = pair.sink.event()
    assert (ended["event"], ended["nccl"], ended["wrong"]) == ("error", SYSTEM_ERROR, 0)
    assert pair.source.event()["nccl"] == REMOTE_ERROR
    wait_for(lambda: nic(harpd)["side"] == name, "another one")
    assert links(host)[name]["ifindex"] != before
    assert f"{name} was removed: attached anew; its leases receive nothing any more: process" in (
        harpd.words()
    )
    if how == "moved":
        there = subprocess.check_output(["ip", "-n", elsewhere, "link"], text=True)
        subprocess.run(["ip", "netns", "del", elsewhere], check=True)
        assert name not in there
    wait_for(lambda: harpd.query("status")["leases"] == 0, "the lease's end")
    wait_for(lambda: nic(harpd)["queues"] == {"0": "free"}, "the queue")
    site.pair().finish()


@pytest.mark.parametrize("how", ["deleted", "moved"])
@pytest.mark.parametrize("alive", [True, False], ids=["harpd", "no harpd"])
def test_it_goes_with_the_nic(site: Site, how: str, alive: bool) -> None:
    pair, harpd = site.pair(), site.daemons[1]
    host, name = harpd.host, beside(site.daemons[1].host)
    if not alive:
        harpd.end(signal.SIGKILL)
    if how == "deleted":
        host.run("ip", "link", "delete", "dev", "eth0")
    else:
        away = f"{host.netns}-away"
        subprocess.run(["ip", "netns", "add", away], check=True)
        host.run("ip", "link", "set", "dev", "eth0", "netns", away)
    try:
        assert pair.sink.event()["nccl"] == SYSTEM_ERROR
        if not alive:
            harpd.start()
        wait_for(lambda: name not in links(host), "the device's end")
        wait_for(lambda: not other_ends(harpd), "the other end's end")
    finally:
        if how == "moved":
            subprocess.run(["ip", "netns", "del", away], check=True)


# --------------------------------------------------------------------------------------------------
# A program that was on the NIC.
#
def test_one_on_the_nic_stays_under_leases_and_goes_beside_without(site: Site) -> None:
    """As an older harpd left it."""
    harpd = site.daemons[1]
    host, name = harpd.host, beside(site.daemons[1].host)
    assert harpd.harpctl("stop").returncode == 0
    allow(host, NOT_BESIDE)
    harpd.start()
    allow(host, BESIDE)
    pair = site.pair()
    harpd.end(signal.SIGTERM)
    pair.sink.goes_on()
    harpd.start()
    pair.sink.goes_on()
    assert nic(harpd)["copied"]
    assert f"leases of an earlier harpd depend on it (process {pair.sink.pid})" in harpd.words()
    assert "restart harpd when they have ended" in harpd.harpctl("status").stdout
    pair.finish()
    assert harpd.harpctl("restart").returncode == 0
    assert nic(harpd)["side"] == name
    assert "xdp" not in links(host)[host.ifname]
    site.pair().finish()
