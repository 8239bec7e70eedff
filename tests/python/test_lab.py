# SPDX-License-Identifier: Apache-2.0
"""Lab hosts reach each other and leave nothing behind. Team reports the error of the process that
failed first."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import finished

from harp import lab
from harp.closing import unwinding
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions
from harp.lab.netns import run
from harp.lab.rails import Rails
from harp.lab.team import Team

pytestmark = pytest.mark.usefixtures("need_root")


def own_namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob(f"harp-{os.getpid()}-*")}


@pytest.mark.sample("1500-2-IPv4", "9000-3-IPv6", "1500-4-IPv6", "9000-2-IPv4")
@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_hosts_reach_each_other_at_full_mtu(hosts: int, mtu: int, ipv6: bool) -> None:
    with Lab(LabOptions(hosts=hosts, mtu_bytes=mtu, ipv6=ipv6)) as lab:
        first = lab.hosts[0]
        for other in lab.hosts[1:]:
            send_packet(first, other, mtu)
    assert not own_namespaces()


def send_packet(first: Host, other: Host, mtu: int) -> None:
    """Send an unfragmentable packet of exactly the MTU."""
    payload = mtu - (48 if ":" in other.address else 28)  # IP and UDP headers
    listener = other.popen([sys.executable, "-c", RECEIVE, other.address])
    assert listener.stdout.readline().strip() == "ready"
    first.run(sys.executable, "-c", SEND, other.address, str(payload))
    assert listener.stdout.readline().strip() == str(payload)


RECEIVE = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
sock = socket.socket(family, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], 7000))
sock.settimeout(10)
print("ready", flush=True)
print(len(sock.recv(65536)), flush=True)
"""
SEND = """
import socket, sys
ipv6 = ":" in sys.argv[1]
sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
if ipv6: # IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO
    sock.setsockopt(socket.IPPROTO_IPV6, 23, 2)
else: # IP_MTU_DISCOVER, IP_PMTUDISC_DO
    sock.setsockopt(socket.IPPROTO_IP, 10, 2)
sock.sendto(bytes(int(sys.argv[2])), (sys.argv[1], 7000))
"""


def test_an_exception_cleans_up() -> None:
    with contextlib.suppress(ZeroDivisionError), Lab():
        assert own_namespaces()
        raise ZeroDivisionError
    assert not own_namespaces()


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwinding():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


# A shell that starts the tests in the background makes them ignore SIGINT; nohup, SIGHUP.
HOLD = """
import signal, sys
from harp.lab import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with Lab() as lab:
    child = lab.hosts[0].popen(["sh", "-c", "echo; exec sleep 1000"])
    child.stdout.readline()
    print(lab.hosts[0].netns, flush=True)
    sys.stdin.read()
"""


def start_lab() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cleans_up(number: signal.Signals) -> None:
    process, name = start_lab()
    assert (Path("/run/netns") / name).exists()
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode != 0
    assert not (Path("/run/netns") / name).exists()


# With a private /run/netns, since another lab of this machine would clean up, too.
PRIVATE = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
PRIVATE += ['mount -t tmpfs tmpfs /run/netns && exec "$@"', "sh", sys.executable, "-c"]
KILL_AND_CLEAN = """
import subprocess, sys
from pathlib import Path
from harp.lab import Lab
process = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
name = process.stdout.readline().strip()
process.kill()
process.wait()
assert (Path("/run/netns") / name).exists(), "SIGKILL leaves no chance to clean up"
(pid,) = subprocess.check_output(["ip", "netns", "pids", name], text=True).split()
with Lab():
    assert not (Path("/run/netns") / name).exists()
stat = Path("/proc") / pid / "stat"
assert not stat.exists() or "Z" in stat.read_text()
print(name)
"""


def test_the_next_run_cleans_up_after_a_killed_one() -> None:
    command = [*PRIVATE, KILL_AND_CLEAN, HOLD]
    done = finished(command, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in done.stderr


def test_a_running_lab_is_not_cleaned_up() -> None:
    process, name = start_lab()
    with Lab():
        assert (Path("/run/netns") / name).exists()
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (LabOptions(hosts=1), "hosts"),
        (LabOptions(hosts=9), "hosts"),
        (LabOptions(mtu_bytes=100), "mtu"),
        (LabOptions(queues=0), "queues"),
    ],
)
def test_bad_options_are_named(options: LabOptions, word: str) -> None:
    with pytest.raises(HarpError, match=word) as caught:
        Lab(options)
    assert caught.value.code == Exit.USAGE


def test_without_root_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HarpError, match="needs root") as caught:
        Lab().__enter__()
    assert caught.value.code == Exit.PRIVILEGE


def test_a_missing_interface_of_a_rail_is_named() -> None:
    with Lab(LabOptions(switch=True)) as lab:
        rails = Rails(lab)
        port = lab.switch.rails[0][0]
        run(["ip", "-n", lab.switch.netns, "link", "delete", port])
        with pytest.raises(HarpError, match=rf"^namespace {lab.switch.netns}: {port}: no such int"):
            rails.shape(0, 100)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(HarpError, match="apt install iproute2") as caught:
        lab.require_programs("ip")
    assert caught.value.code == Exit.MISSING


# --------------------------------------------------------------------------------------------------
# Teams.
#
def test_the_first_failed_process_ends_the_wait() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        team.start(None, ["sh", "-c", "echo no route >&2; exit 3"])
        with pytest.raises(HarpError, match=r"^no route$"):
            team.finish()
        assert team.processes[0].wait() != 0


def test_a_process_that_lost_another_waits_for_its_error() -> None:
    with Team("tool") as team:
        reader, writer = os.pipe()
        lost = ["sh", "-c", "echo lost the peer >&2; exit 4"]
        team.start(None, lost, pass_fds=[writer])
        os.close(writer)
        cause = [
            "sh",
            "-c",
            f"cat /dev/fd/{reader}; echo cause >&2; exit 3",
        ]  # ends after the other process
        team.start(None, cause, pass_fds=[reader])
        os.close(reader)
        with pytest.raises(HarpError, match=r"^cause$"):
            team.finish(late=(4,))


def test_a_lost_peer_is_reported_if_no_other_error_follows_in_time() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        team.start(None, ["sh", "-c", "echo lost the peer >&2; exit 4"])
        team.processes[1].wait()
        with pytest.raises(HarpError, match=r"^lost the peer$"):
            team.finish(0.1, late=(4,))


def test_a_hanging_team_is_an_error() -> None:
    with Team("tool") as team:
        team.start(None, ["sleep", "600"])
        with pytest.raises(HarpError, match=r"^tool: not done after 0 s; try less$"):
            team.finish(0, remedy="; try less")


def test_outputs_are_in_the_order_of_the_processes() -> None:
    with Team("tool") as team:
        team.start(None, ["echo", "first"])
        team.start(None, ["echo", "second"])
        assert team.finish() == ["first\n", "second\n"]
