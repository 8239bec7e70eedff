# SPDX-License-Identifier: Apache-2.0
"""Users that keep harpd's answers: the cost for harpd is bounded, and the memory is released."""

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
from daemon_rig import NOBODY, Running, in_child

from harp import _host
from harp._host import Kind
from harp.daemon import documents, readings
from harp.daemon.client import DaemonClient, RefusedByDaemonError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays two users")
STATUS, STATS = b'{"command": "status"}', b'{"command": "stats"}'


def keep(client: DaemonClient, question: bytes = STATUS) -> int:
    """An answer's descriptor."""
    _, fds = client._ask(_host.pack_query(client._next(), question), Kind.ANSWER)
    return fds[0]


def kept(client: DaemonClient, most: int) -> tuple[list[int], str]:
    """Keep answers until harpd refuses; return them and the reason."""
    fds: list[int] = []
    try:
        while len(fds) < most:
            fds.append(keep(client))
    except RefusedByDaemonError as refused:
        return fds, refused.why if refused.error == errno.EDQUOT else ""
    return fds, ""


@ROOT_ONLY
def test_only_the_user_that_keeps_answers_is_refused(harpd: Running) -> None:
    harpd.daemon._lending._each_max = 5
    path = harpd.path

    def enemy() -> list[Any]:
        with DaemonClient(path, "enemy") as client, DaemonClient(path, "another") as other:
            fds, why = kept(client, 50)
            refused = kept(other, 1)[1]
            os.close(fds.pop())
            return [len(fds) + 1, why, refused != "", kept(client, 50)[1] != "", len(fds)]

    found = in_child(enemy, NOBODY)
    assert found[:1] + found[2:] == [5, True, True, 4]
    assert found[1].startswith(f"user {NOBODY} keeps 5 of harpd's answers open, 0 MiB in all, ")
    held = []
    with harpd.client() as client:  # root's are not counted, and do not pile up either
        held, why = kept(client, 50)
        assert (len(held), why) == (50, "")
        assert harpd.call(lambda: len(harpd.daemon._lending._lent[0])) <= 5
    for fd in held:
        os.close(fd)


@ROOT_ONLY
def test_the_limit_counts_bytes(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "HELD_BYTES_MAX", 3000)
    monkeypatch.setattr(
        readings, "_read", lambda _reader, _flows: documents.document_fd("x" * 2000)
    )
    monkeypatch.setattr(readings, "AGE_S", 0.01)
    path = harpd.path

    def enemy() -> list[int]:
        with DaemonClient(path, "enemy") as client:
            first = keep(client, STATS)
            errors = []
            while not errors:  # the same one, as long as it is young
                try:
                    os.close(keep(client, STATS))
                except RefusedByDaemonError as refused:
                    errors.append(refused.error)
            os.close(first)
            os.close(keep(client, STATS))
            return errors

    assert in_child(enemy, NOBODY) == [errno.EDQUOT]


def until_empty(harpd: Running) -> None:
    harpd.until(lambda: not harpd.daemon._lending._lent, "nothing lent")


def test_memory_comes_back_although_a_path_is_kept(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An O_PATH descriptor does not count as open: the kernel does not report it."""
    monkeypatch.setattr(documents, "SWEEP_S", 0.01)
    harpd = start()
    with harpd.client() as client:
        fd = keep(client)
        path = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
        for _ in range(20):
            harpd.call(lambda: harpd.daemon._lending._sweep())
        assert os.fstat(fd).st_size > 100, "who has it open relies on it"
        os.close(fd)
        until_empty(harpd)
        assert os.fstat(path).st_blocks == 0
        os.close(path)


def test_an_answer_cannot_be_written_or_truncated(harpd: Running) -> None:
    with harpd.client() as client:
        fd = keep(client)
    for attempt in (
        lambda: os.ftruncate(fd, 0),
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0),
    ):
        with pytest.raises(OSError, match=r"\[Errno"):
            attempt()
    os.close(fd)


def test_a_client_that_disconnects_keeps_no_memory(harpd: Running) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(harpd.path))
        sock.send(_host.pack_hello(1, "enemy"))
        assert sock.recv(65536)
        for _ in range(5):
            sock.send(_host.pack_query(5, STATUS))
    until_empty(harpd)


def test_opening_an_answer_during_the_check_does_not_end_harpd(harpd: Running) -> None:
    """An open breaks the file lease and the kernel sends a signal; SIGIO would end harpd."""
    lock, opens = fcntl.fcntl, []

    def opened_meanwhile(fd: int, what: int, value: int = 0) -> Any:
        found = lock(fd, what, value)
        if (what, value) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
            with pytest.raises(BlockingIOError):
                os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
            opens.append(fd)
        return found

    def sweep() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "fcntl", opened_meanwhile)
            harpd.daemon._lending._sweep()

    received: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _frame: received.append(number))
    try:
        with harpd.client() as client:
            os.close(keep(client))
            harpd.call(sweep)
        assert opens
        assert not received
    finally:
        signal.signal(signal.SIGIO, before)
