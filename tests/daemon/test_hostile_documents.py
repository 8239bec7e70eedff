# SPDX-License-Identifier: Apache-2.0
"""Users that keep harpd's answers: the cost for harpd is bounded, and the memory is released."""

import errno
import json
import os
import resource

import pytest
from daemon_rig import Running, descriptors
from lease_client import LeaseClient

from harp._host import Kind
from harp.daemon import documents
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.limits import connections_possible
from harp.daemon.messages import pack

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays two users")
STATUS, STATS = b'{"command": "status"}', b'{"command": "stats"}'


def keep(client: LeaseClient, question: bytes = STATUS) -> int:
    """An answer's descriptor."""
    _, fds = client.ask(pack(Kind.QUERY, client.next_serial(), rest=question), Kind.ANSWER)
    return fds[0]


def test_a_client_s_answer_is_emptied_at_its_next_question_and_its_end(harpd: Running) -> None:
    with harpd.client() as client:
        first, second = keep(client), keep(client)
        assert (os.fstat(first).st_size, os.fstat(first).st_blocks) == (0, 0)
        assert os.fstat(second).st_size > 0
    harpd.until(lambda: os.fstat(second).st_size == 0, "the memory comes back")
    for fd in (first, second):
        os.close(fd)


def unsealable(_self: documents.Document) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_an_answer_that_can_not_be_made_leaves_no_descriptor(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does harpd close the previous answer twice: its number may be another file's."""
    with harpd.client() as client:
        os.close(keep(client))
        before = harpd.call(descriptors)
        with monkeypatch.context() as short:
            short.setattr(documents.Document, "seal", unsealable)
            for _ in range(3):
                with pytest.raises(RefusedByDaemonError, match="harpd failed"):
                    client.query("status")
        assert harpd.call(descriptors) == before - 1, "the previous answer"
        other = os.memfd_create("other")
        os.write(other, b"other")
        assert client.query("status")["daemon"] == "harpd"
        assert os.fstat(other).st_size == 5
        os.close(other)


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


def test_memory_of_statistics_comes_back_although_they_are_kept(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "HELD_S", 0.05)
    monkeypatch.setattr(documents, "AGE_S", 0.05)
    with harpd.client() as client:
        fd = keep(client, STATS)
    harpd.until(lambda: os.fstat(fd).st_size == 0, "the memory comes back")
    os.close(fd)


def test_statistics_can_be_read_while_harpd_ends(harpd: Running) -> None:
    with harpd.client() as client:
        fd = keep(client, STATS)
        harpd.end(remove=False)
    with os.fdopen(fd, "rb") as file:
        assert "instances" in json.load(file)


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


def test_connections_leave_descriptors_for_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (512, 512))
    assert connections_possible(1024) * 3 <= 512 - 48
