# SPDX-License-Identifier: Apache-2.0
"""harpd's answers: which users may read statistics, and the limited cost of answers that clients
keep open."""

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
from daemon_rig import NOBODY, Running, Start, count_descriptors, in_child, refusal
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
        without_flows = client.query("stats", flows=False)
    instances = [
        instance for instance in document["instances"] if instance["pid"] == owner.process.pid
    ]
    assert [name_of(instance) for instance in instances] == ["harp7/0", "harp7/1"]
    assert len(instances[0]["flows"]) == 3
    assert not any(instance["flows"] for instance in without_flows["instances"])


def test_harpctl_without_root_asks_harpd(harpd: Running, owner: Owner) -> None:
    """harpd reads pages that this user may not open."""
    done = harpctl_without_root("stats", "-o", "json", HARP_SOCKET=str(harpd.path))
    assert done.returncode == 0, done.stderr
    pids = {instance["pid"] for instance in json.loads(done.stdout)["instances"]}
    assert owner.process.pid in pids


def test_harpctl_stats_asks_the_harpd_of_harp_toml(harpd: Running, owner: Owner) -> None:
    file = harpd.path.parent.parent / "harp.toml"
    file.write_text(f'[daemon]\nsocket = "{harpd.path}"\n')
    done = harpctl_without_root("stats", "-o", "json", HARP_CONFIG=str(file))
    assert done.returncode == 0, done.stderr
    pids = {instance["pid"] for instance in json.loads(done.stdout)["instances"]}
    assert owner.process.pid in pids


@pytest.mark.parametrize("command", ["status", "start", "stop", "restart"])
def test_a_harpd_that_does_not_answer_is_reported(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """harpctl must not treat it as ended: start and stop would take over its files."""
    short_timeout = functools.partial(DaemonClient, timeout_s=0.05)
    monkeypatch.setattr("harp.cli.daemon.DaemonClient", short_timeout)
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
    """The earlier request timed out. The descriptor of its answer is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(pack_welcome(1, "harpd", [], ""))
        with DaemonClient(Path("here"), sock=ours) as client:
            before = count_descriptors()
            for serial in (client.next_serial(), 3):
                document = Document(json.dumps({"serial": serial}).encode())
                socket.send_fds(theirs, [pack(Kind.ANSWER, serial)], [document.fd])
                document.close(empty=False)
            assert client.query("status") == {"serial": 3}
            assert count_descriptors() == before


def test_users_that_may_not_lease_see_no_statistics(start: Start, settings: Settings) -> None:
    harpd = start(settings=replace(settings, users=("root",), groups=()))

    def ask() -> Any:
        with LeaseClient(harpd.path, "test", 10) as client:
            return refusal(client.query, "stats").why

    assert in_child(ask, NOBODY) == (
        f"user {NOBODY} may neither have leases nor see instances of other users"
    )


def test_other_requests_are_served_during_a_scan(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan of any length blocks no request; statistics requests during it share its result."""
    threads, may_end = [], threading.Event()

    def scan(_alive: socket.socket, _flows: bool) -> Document:
        assert may_end.wait(60)
        threads.append(threading.current_thread().name[:10])
        return Document(b"{}")

    monkeypatch.setattr(documents, "read_statistics", scan)
    with harpd.client() as one, harpd.client() as other:
        for client in (one, other):
            client._sock.send(pack(Kind.QUERY, 9, rest=STATS))
        harpd.until(
            lambda: sum(c.busy for c in harpd.daemon._server.clients) == 2, "two requests that wait"
        )
        with harpd.client() as third:
            assert third.query("status")["leases"] == 0
        may_end.set()
        for client in (one, other):
            fds = socket.recv_fds(client._sock, 65536, 4)[1]
            assert os.read(fds[0], 9) == b"{}"
            os.close(fds[0])
    assert threads == ["harpd-work"]


# --------------------------------------------------------------------------------------------------
# Answers that clients keep open.
#
def query_fd(client: LeaseClient, query: bytes = STATUS) -> int:
    """Send a query; return the descriptor of its answer."""
    _, fds = client.ask(pack(Kind.QUERY, client.next_serial(), rest=query), Kind.ANSWER)
    return fds[0]


def test_an_answer_is_emptied_at_the_next_query_and_at_disconnect(
    harpd: Running,
) -> None:
    with harpd.client() as client:
        first, second = query_fd(client), query_fd(client)
        assert (os.fstat(first).st_size, os.fstat(first).st_blocks) == (0, 0)
        assert os.fstat(second).st_size > 0
    harpd.until(lambda: os.fstat(second).st_size == 0, "the release of the memory")
    for fd in (first, second):
        os.close(fd)


def unsealable(_self: Document) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_an_answer_that_cannot_be_created_leaves_no_descriptor(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """harpd closes the previous answer only once: its descriptor may be another file by then."""
    with harpd.client() as client:
        os.close(query_fd(client))
        before = harpd.call(count_descriptors)
        with monkeypatch.context() as patch:
            patch.setattr(Document, "seal", unsealable)
            for _ in range(3):
                with pytest.raises(RefusedByDaemonError, match="harpd failed"):
                    client.query("status")
        assert harpd.call(count_descriptors) == before - 1, "the previous answer"
        other = os.memfd_create("other")
        os.write(other, b"other")
        assert client.query("status")["daemon"] == "harpd"
        assert os.fstat(other).st_size == 5
        os.close(other)


def test_a_large_statistics_document_is_reused(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated queries share one document in memory, each with its own file offset."""
    monkeypatch.setattr(documents, "AGE_S", 0)
    monkeypatch.setattr(documents, "READ_BYTES_PER_S", 1)
    with harpd.client() as client:
        fds = [query_fd(client, STATS) for _ in range(20)]
    assert len({os.fstat(fd).st_ino for fd in fds}) == 1
    assert [os.read(fd, 10) for fd in fds] == [b'{"format":'] * 20
    close_all(fds)


def test_the_memory_of_kept_statistics_is_released(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "HELD_S", 0.05)
    monkeypatch.setattr(documents, "AGE_S", 0.05)
    with harpd.client() as client:
        fd = query_fd(client, STATS)
    harpd.until(lambda: os.fstat(fd).st_size == 0, "the release of the memory")
    os.close(fd)


def test_statistics_can_be_read_after_the_end_of_harpd(harpd: Running) -> None:
    with harpd.client() as client:
        fd = query_fd(client, STATS)
        harpd.end(remove=False)
    with os.fdopen(fd, "rb") as file:
        assert "instances" in json.load(file)


def test_an_answer_cannot_be_written_or_truncated(harpd: Running) -> None:
    with harpd.client() as client:
        fd = query_fd(client)
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
