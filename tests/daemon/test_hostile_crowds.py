# SPDX-License-Identifier: Apache-2.0
"""Many clients at the metrics port, and operators that start, stop and restart at the same time."""

import contextlib
import errno
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daemon_rig import lease_once
from harpd_rig import HostDaemon, Job, paused, xdp_id
from netns_tools import wait_until

from harp import procfs
from harp.errors import Exit
from harp.lab import Lab, LabOptions

CROWD = 120
PORT = 9747
Send = Callable[[Any], None]


@pytest.fixture
def daemon(need_root: None) -> Iterator[HostDaemon]:
    """A harpd that was not started yet, with a metrics endpoint."""
    with Lab(LabOptions(queues=2)) as lab:
        daemon = HostDaemon(lab.hosts[0], metrics_port=PORT)
        try:
            yield daemon
        finally:
            daemon.close()


def crowd(rng: random.Random) -> list[socket.socket]:
    """Open connections that send part of a request, or nonsense, and stay."""
    held = []
    for number in range(CROWD):
        sock = socket.create_connection(("127.0.0.1", PORT), timeout=10)
        words = (b"GET /metrics HT", rng.randbytes(300) + b"\r\n", b"")[number % 3]
        with contextlib.suppress(OSError):  # turned away already
            sock.sendall(words)
        held.append(sock)
    return held


def test_a_crowd_at_the_metrics_port(daemon: HostDaemon) -> None:
    """Slow, silent and talking nonsense: leases are given, and metrics when the crowd is gone."""
    daemon.start()

    def work(send: Send, wait_fd: int) -> None:
        held = crowd(random.Random(4))
        send(len(held))
        paused(wait_fd)
        for sock in held:
            sock.close()
        # The last of them may still hold a place for a moment: turned away, we come again.
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as page:
                    send(page.read().decode())
                    return
            except (OSError, urllib.request.HTTPError) as error:
                if getattr(error, "code", None) is not None:
                    raise

    job = Job(work, uid=None, netns=daemon.host.netns)
    try:
        assert job.receive(60) == CROWD
        with daemon.client() as client:
            lease_once(client, daemon.host.ifname)
            assert client.query("status")["nics"]
        job.go()
        assert "harpd_nic_usable" in job.receive(60)
        assert job.join() == 0
    finally:
        job.close()
    assert "Traceback" not in daemon.log_text()


def operator(daemon: HostDaemon, *words: str) -> subprocess.Popen[str]:
    """A harpctl that was not waited for."""
    return subprocess.Popen(
        daemon.harpctl_command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(*those: subprocess.Popen[str]) -> list[int]:
    """Return their exit codes; each printed at most two lines."""
    for one in those:
        words = one.communicate(timeout=60)[0]
        assert "Traceback" not in words
        assert words.count("\n") <= 2, words
        assert one.returncode in (Exit.OK, Exit.RUNNING, Exit.NOT_RUNNING), words
    return [one.returncode for one in those]


def gone(daemon: HostDaemon) -> bool:
    """Tell whether no harpd listens."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(daemon.socket))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ECONNREFUSED)
    return False


# Leaves a command no descriptor below 1024, as a program that has many open does.
MANY_OPEN = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
for fd in range(3, 1024):
    os.dup2(0, fd)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_harpctl_works_with_many_open_descriptors(daemon: HostDaemon) -> None:
    for word in ("start", "restart", "stop"):
        command = [sys.executable, "-c", MANY_OPEN, *daemon.harpctl_command(word)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert (done.returncode, done.stderr) == (Exit.OK, "")
    assert gone(daemon)


def shields(pid: int, number: signal.Signals) -> bool:
    """Does the process block a signal, or handle it?"""
    masks = (int(procfs.status_field(pid, name) or "0", 16) for name in ("SigBlk", "SigCgt"))
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_signals_while_it_starts_restarts_and_ends(daemon: HostDaemon) -> None:
    daemon.start(wait=False)
    assert daemon.process is not None
    process, over = daemon.process, threading.Event()
    wait_until(lambda: shields(process.pid, signal.SIGHUP), "harpd's first steps")

    def storm() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGHUP)
            over.wait(0.1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        wait_until(lambda: not gone(daemon), "harpd serves")
        assert ends(operator(daemon, "restart")) == [Exit.OK]
        assert daemon.query("status")["pid"] == process.pid
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        over.set()
        thread.join()
    assert list(daemon.run_dir.iterdir()) == []
    assert xdp_id(daemon.host) == 0


def test_concurrent_harpctl_commands_leave_one_harpd(daemon: HostDaemon) -> None:
    """Five starts: one harpd. Then stops and restarts at once: it runs, or all is taken back."""
    starts = ends(*(operator(daemon, "start") for _ in range(5)))
    assert starts.count(Exit.OK) == 1
    assert set(starts) == {Exit.OK, Exit.RUNNING}
    one = daemon.query("status")["pid"]
    assert ends(operator(daemon, "restart"))[0] == Exit.OK
    assert daemon.query("status")["pid"] == one
    both = ends(*(operator(daemon, word) for word in ("stop", "restart") * 3))
    assert Exit.OK in both
    if not gone(daemon):
        ends(operator(daemon, "stop"))
    wait_until(lambda: gone(daemon), "gone")
    wait_until(lambda: xdp_id(daemon.host) == 0, "detached")
    assert not (daemon.run_dir / "state.json").exists()
