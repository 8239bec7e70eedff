# SPDX-License-Identifier: Apache-2.0
"""harpd's answers: the limited cost of answers that clients keep open."""

import errno
import functools
import json
import os
import resource
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest_stats import make_owner, owner
from daemon_rig import Running, count_descriptors
from lease_client import LeaseClient

from harp._host import Kind
from harp.cli import cli
from harp.daemon.client import DaemonClient, RefusedByDaemonError
from harp.daemon.documents import Document
from harp.daemon.limits import connections_possible
from harp.daemon.messages import pack, pack_welcome
from harp.errors import Exit, HarpError

__all__ = ["make_owner", "owner"]
STATUS = b'{"command": "status"}'


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
