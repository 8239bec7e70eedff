# SPDX-License-Identifier: Apache-2.0
"""harpd's answers: statistics, for users that may lease; and users that keep them, whose cost for
harpd is bounded."""

import errno
import functools
import json
import os
import resource
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest_stats import Owner, make_owner, owner
from daemon_rig import NOBODY, Running, Start, descriptors, in_child, refusal
from harpctl import harpctl_without_root
from lease_client import LeaseClient

from harp._host import Kind
from harp.cli import cli
from harp.daemon import documents
from harp.daemon.client import DaemonClient, RefusedByDaemonError
from harp.daemon.documents import Document
from harp.daemon.limits import connections_possible
from harp.daemon.loop import close_all
from harp.daemon.messages import pack, pack_welcome
from harp.daemon.settings import Settings
from harp.errors import Exit, HarpError
from harp.stats.view import name_of

__all__ = ["make_owner", "owner"]
STATUS, STATS = b'{"command": "status"}', b'{"command": "stats"}'


def test_harpd_sends_the_statistics_of_instances(harpd: Running, owner: Owner) -> None:
    with harpd.client() as client:
        document = client.query("stats")
        brief = client.query("stats", flows=False)
    mine = [each for each in document["instances"] if each["pid"] == owner.process.pid]
    assert [name_of(each) for each in mine] == ["harp7/0", "harp7/1"]
    assert len(mine[0]["flows"]) == 3
    assert not any(each["flows"] for each in brief["instances"])


def test_harpctl_without_root_asks_harpd(harpd: Running, owner: Owner) -> None:
    """harpd opens pages that this user may not open."""
    done = harpctl_without_root("stats", "-o", "json", HARP_SOCKET=str(harpd.path))
    assert done.returncode == 0, done.stderr
    pids = {each["pid"] for each in json.loads(done.stdout)["instances"]}
    assert owner.process.pid in pids


def test_harpctl_stats_asks_the_harpd_of_harp_toml(harpd: Running, owner: Owner) -> None:
    file = harpd.path.parent.parent / "harp.toml"
    file.write_text(f'[daemon]\nsocket = "{harpd.path}"\n')
    done = harpctl_without_root("stats", "-o", "json", HARP_CONFIG=str(file))
    assert done.returncode == 0, done.stderr
    pids = {each["pid"] for each in json.loads(done.stdout)["instances"]}
    assert owner.process.pid in pids


@pytest.mark.parametrize("command", ["status", "start", "stop", "restart"])
def test_a_silent_harpd_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no harpd that has ended: start and stop would then take over its files."""
    impatient = functools.partial(DaemonClient, timeout_s=0.05)
    monkeypatch.setattr("harp.cli.daemon.DaemonClient", impatient)
    path = tmp_path / "s"
    file = tmp_path / "harp.toml"
    file.write_text(f'[daemon]\nsocket = "{path}"\nrun_dir = "{tmp_path}"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen()
        done = CliRunner().invoke(cli, [command, "--file", str(file)])
    assert isinstance(done.exception, HarpError)
    assert done.exception.code == Exit.NOT_RUNNING
    line = f"harpd at {path} (process {os.getpid()}) does not answer; `kill -9 {os.getpid()}` ends"
    assert line in str(done.exception)


def test_an_answer_to_an_earlier_request_is_skipped() -> None:
    """Its request timed out. Its descriptor is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(pack_welcome(1, "harpd", [], ""))
        with DaemonClient(Path("here"), sock=ours) as client:
            before = descriptors()
            for serial in (client.next_serial(), 3):
                document = Document(json.dumps({"serial": serial}).encode())
                socket.send_fds(theirs, [pack(Kind.ANSWER, serial)], [document.fd])
                document.close(empty=False)
            assert client.query("status") == {"serial": 3}
            assert descriptors() == before


def test_users_that_may_not_lease_see_no_statistics(start: Start, settings: Settings) -> None:
    harpd = start(given=replace(settings, users=("root",), groups=()))

    def ask() -> Any:
        with LeaseClient(harpd.path, "test", 10) as client:
            return refusal(client.query, "stats").why

    assert in_child(ask, NOBODY) == (
        f"user {NOBODY} may not have leases, nor see others' instances"
    )


def test_other_requests_are_served_during_a_scan(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes; requests that arrive meanwhile get its result."""
    looked, seen = [], threading.Event()

    def look(_alive: socket.socket, _flows: bool) -> Document:
        assert seen.wait(60)
        looked.append(threading.current_thread().name[:10])
        return Document(b"{}")

    monkeypatch.setattr(documents, "read_statistics", look)
    with harpd.client() as one, harpd.client() as other:
        for client in (one, other):
            client._sock.send(pack(Kind.QUERY, 9, rest=STATS))
        harpd.until(lambda: sum(c.busy for c in harpd.daemon._server.clients) == 2, "two wait")
        with harpd.client() as third:
            assert third.query("status")["leases"] == 0
        seen.set()
        for client in (one, other):
            fds = socket.recv_fds(client._sock, 65536, 4)[1]
            assert os.read(fds[0], 9) == b"{}"
            os.close(fds[0])
    assert looked == ["harpd-work"]


# --------------------------------------------------------------------------------------------------
# Answers that are kept.
#
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


def unsealable(_self: Document) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_an_answer_that_can_not_be_made_leaves_no_descriptor(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does harpd close the previous answer twice: its number may be another file's."""
    with harpd.client() as client:
        os.close(keep(client))
        before = harpd.call(descriptors)
        with monkeypatch.context() as short:
            short.setattr(Document, "seal", unsealable)
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
    """However often it is asked for, few of them are in memory; none moves another's offset."""
    monkeypatch.setattr(documents, "AGE_S", 0)
    monkeypatch.setattr(documents, "READ_BYTES_PER_S", 1)
    with harpd.client() as client:
        fds = [keep(client, STATS) for _ in range(20)]
    assert len({os.fstat(fd).st_ino for fd in fds}) == 1
    assert [os.read(fd, 10) for fd in fds] == [b'{"format":'] * 20
    close_all(fds)


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
