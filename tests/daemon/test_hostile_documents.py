# SPDX-License-Identifier: Apache-2.0
"""Users that keep harpd's answers: the cost for harpd is bounded, and the memory is released."""

import errno
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest
from daemon_rig import NOBODY, Running, in_child
from lease_client import LeaseClient

from harp._host import Kind
from harp.daemon import documents
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.messages import Hello, pack

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays two users")
STATUS, STATS = b'{"command": "status"}', b'{"command": "stats"}'


def keep(client: LeaseClient, question: bytes = STATUS) -> int:
    """An answer's descriptor."""
    _, fds = client.ask(pack(Kind.QUERY, client.next_serial(), rest=question), Kind.ANSWER)
    return fds[0]


def kept(client: LeaseClient, most: int) -> tuple[list[int], str]:
    """Keep answers until harpd refuses; return them and the reason."""
    fds: list[int] = []
    try:
        while len(fds) < most:
            fds.append(keep(client))
    except RefusedByDaemonError as refused:
        return fds, refused.why if refused.error == errno.EDQUOT else ""
    return fds, ""


def until_empty(harpd: Running) -> None:
    harpd.until(lambda: not harpd.daemon._documents._held, "no document held")


@ROOT_ONLY
def test_only_the_user_with_many_answers_is_refused(harpd: Running) -> None:
    harpd.daemon._documents._each_max = 5
    path = harpd.path

    def enemy() -> list[Any]:
        with LeaseClient(path, "enemy") as client, LeaseClient(path, "another") as other:
            fds, why = kept(client, 50)
            return [len(fds), why, kept(other, 1)[1] != ""]

    found = in_child(enemy, NOBODY)
    assert (found[0], found[2]) == (5, True)
    assert found[1] == (
        f"user {NOBODY} got 5 answers of 0 MiB within 10 s, which is the limit; ask less often"
    )
    with harpd.client() as client:  # root is never refused, and its answers do not pile up
        held, why = kept(client, 50)
        assert (len(held), why) == (50, "")
        assert harpd.call(lambda: len(harpd.daemon._documents._held[0])) <= 5
        assert os.fstat(held[0]).st_size == 0 < os.fstat(held[-1]).st_size
    for fd in held:
        os.close(fd)


@ROOT_ONLY
def test_the_limit_counts_bytes(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "HELD_BYTES_MAX", 10)
    path = harpd.path

    def enemy() -> str:
        with LeaseClient(path, "enemy") as client:
            return kept(client, 1)[1]

    assert "which is the limit" in in_child(enemy, NOBODY)
    with harpd.client() as client:
        os.close(keep(client))


@ROOT_ONLY
def test_all_users_get_one_document_of_statistics(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as an answer of no user, even while users keep it open."""
    monkeypatch.setattr(documents, "AGE_S", 60)
    harpd.daemon._documents._each_max = 1
    path = harpd.path

    def number() -> list[int]:
        with LeaseClient(path, "one of them") as client:
            return [os.fstat(keep(client, STATS)).st_ino for _ in range(3)]

    assert len({*number(), *in_child(number, NOBODY)}) == 1


def test_a_large_document_of_statistics_is_used_longer(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is asked for, few of them are in memory."""
    monkeypatch.setattr(documents, "AGE_S", 0)
    monkeypatch.setattr(documents, "READ_BYTES_PER_S", 1)
    with harpd.client() as client:
        fds = [keep(client, STATS) for _ in range(20)]
    assert len({os.fstat(fd).st_ino for fd in fds}) == 1
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("question", [STATUS, STATS], ids=["status", "stats"])
def test_memory_comes_back_although_an_answer_is_kept(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, question: bytes
) -> None:
    monkeypatch.setattr(documents, "HELD_S", 0.05)
    monkeypatch.setattr(documents, "AGE_S", 0.05)
    with harpd.client() as client:
        fd = keep(client, question)
    until_empty(harpd)
    assert (os.fstat(fd).st_size, os.fstat(fd).st_blocks) == (0, 0)
    os.close(fd)


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


def test_a_client_that_disconnects_keeps_no_memory(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "HELD_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(harpd.path))
        sock.send(pack(Kind.HELLO, 1, Hello("enemy")))
        assert sock.recv(65536)
        for _ in range(5):
            sock.send(pack(Kind.QUERY, 5, rest=STATUS))
    until_empty(harpd)


def test_answers_leave_descriptors_for_leases(start: Callable[..., Running]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        harpd = start()
        assert harpd.daemon._documents._each_max == 512 // 16 // 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
