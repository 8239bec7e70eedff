# SPDX-License-Identifier: Apache-2.0
"""Signals, and operators that start, stop and restart at the same time."""

import errno
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harpd_rig import HostDaemon, xdp_id
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
        with HostDaemon(lab.hosts[0]) as daemon:
            yield daemon


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
