# SPDX-License-Identifier: Apache-2.0
"""Clients that behave badly: each is closed or capped, and everyone else is served."""

import errno
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_rig import (
    NOBODY,
    Running,
    connect,
    descriptors,
    errors_of,
    greeted,
    in_child,
    lease_once,
)
from lease_client import LeaseClient

from harp import _host
from harp._host import Kind
from harp.daemon import server
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.messages import Hello, LeaseId, Request, pack, unpack
from harp.daemon.settings import Settings
from harp.errors import Exit, HarpError

HELLO = pack(Kind.HELLO, 1, Hello("enemy"))


def closed(sock: socket.socket) -> bool:
    """harpd has ended the connection: what is still in the way is read first."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def served(harpd: Running) -> None:
    """Another client can lease everything."""
    with harpd.client() as client:
        assert [device.ifname for device in client.devices] == ["eth0"]
        lease_once(client, "eth0", label="good")
        assert client.query("status")["leases"] == 0
    harpd.kernel.held.clear()


def header(**fields: int) -> bytes:
    values = {"magic": 0x4C505248, "version": 2, "type": 1, "size": 16, "serial": 1} | fields
    return struct.pack("=IHHII", *values.values())


NONSENSE = {
    "one-byte": b"\0",
    "text": b"GET / HTTP/1.0\r\n\r\n",
    "zeros": bytes(64),
    "magic": header(magic=1) + bytes(32),
    "version": header(version=1, size=48) + bytes(32),
    "size": header(size=4096) + bytes(32),
    "short-hello": header(),
    "type": header(type=99),
    "answer": pack(Kind.DONE, 1),
    "lease-before-hello": pack(Kind.LEASE, 1, Request("eth0")),
    "query-before-hello": pack(Kind.QUERY, 1, rest=b'{"command": "stop"}'),
    "too-long": bytes(_host.MESSAGE_MAX + 1),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_ends_the_connection_and_nothing_else(harpd: Running, kind: str) -> None:
    with connect(harpd.path) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.send(NONSENSE[kind])
        assert closed(sock)
    served(harpd)


def test_a_second_hello_closes_the_connection(harpd: Running) -> None:
    with greeted(harpd.path) as sock:
        sock.send(HELLO)
        assert closed(sock)
    served(harpd)


def test_descriptors_passed_to_harpd_are_dropped_and_the_connection_with_them(
    harpd: Running,
) -> None:
    before = descriptors()
    for _ in range(20):
        with connect(harpd.path) as sock:
            socket.send_fds(sock, [HELLO], [0] * 200)
            assert closed(sock)
    served(harpd)
    harpd.until(lambda: len(harpd.daemon._server.clients) == 0, "the clients' end")
    assert descriptors() <= before


def test_a_client_that_sends_nothing_is_closed(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_S", 0.1)
    with connect(harpd.path) as silent, greeted(harpd.path) as quiet:
        assert closed(silent)
        # After HELLO a client may be silent.
        quiet.send(pack(Kind.QUERY, 2, rest=b'{"command": "status"}'))
        assert unpack(quiet.recv(65536)).kind is Kind.ANSWER
    served(harpd)


def test_a_client_that_reads_no_answer_is_closed(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TAKE_S", 0.2)
    monkeypatch.setattr(server, "CLIENT_BURST", 1e6)
    monkeypatch.setattr(server, "USER_BURST", 1e6)
    harpd.daemon._server.buckets = server.Buckets(1e6, 1e6)
    before = descriptors()
    # REFUSED is the longest answer that is not a document.
    question = pack(Kind.RELEASE, 2, LeaseId(1))
    with greeted(harpd.path) as sock:

        def never_read() -> None:
            while True:
                sock.send(question)

        # Blocks when its own buffer is full, and fails when harpd has had enough.
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            never_read()
        assert closed(sock)
    served(harpd)
    harpd.until(lambda: len(harpd.daemon._server.clients) == 0, "the clients' end")
    assert descriptors() <= before


def test_a_thousand_connections_of_a_user_leave_room_for_others(harpd: Running) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it plays two users")
    path = harpd.path

    def enemy() -> tuple[int, int]:
        kept, refused = [], 0
        for _ in range(1000):
            sock = connect(path)
            try:
                sock.send(HELLO)
                raw = sock.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                raw = b""
            if raw and unpack(raw).kind is Kind.WELCOME:
                kept.append(sock)
            else:
                refused += 1
                sock.close()
        return len(kept), refused

    assert in_child(enemy, NOBODY) == (128, 872)
    served(harpd)


def test_only_root_stops_restarts_or_reloads(harpd: Running) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it plays two users")
    path = harpd.path

    def enemy() -> list[int]:
        with LeaseClient(path, "enemy") as client:
            return errors_of(client, ("stop", "restart", "reload"))

    assert in_child(enemy, NOBODY) == [errno.EPERM] * 3
    served(harpd)


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b"{}", b'{"command": 7}', b"\xff\xfe", b"[" * 50000, b'{"command": "nope"}'],
    ids=repr,
)
def test_bad_questions_are_refused_in_a_line(harpd: Running, document: bytes) -> None:
    with greeted(harpd.path) as sock:
        sock.send(pack(Kind.QUERY, 5, rest=document))
        message = unpack(sock.recv(65536))
        assert (message.kind, message.serial) == (Kind.REFUSED, 5)
        assert "\n" not in message.body.why
    served(harpd)


def test_the_wrong_user_and_group(start: Callable[..., Running], settings: Settings) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it plays two users")
    from dataclasses import replace

    harpd = start(given=replace(settings, users=(), groups=("daemon",)))
    path = harpd.path

    def enemy() -> tuple[int, str]:
        with LeaseClient(path, "enemy") as client:
            try:
                client.lease("eth0")
            except RefusedByDaemonError as error:
                return error.error, error.why
        return 0, ""

    error, why = in_child(enemy, NOBODY)
    assert error == errno.EACCES
    assert why.startswith(f"user {NOBODY} may not have leases")
    assert harpd.kernel.made == [], "nothing was made for it"
    served(harpd)


def test_another_processs_lease_can_not_be_released(harpd: Running) -> None:
    path = harpd.path
    with harpd.client() as client:
        lease, fds = client.lease("eth0")

        def enemy() -> int:
            with LeaseClient(path, "enemy") as other:
                try:
                    other.release(lease.lease_id)
                except RefusedByDaemonError as error:
                    return error.error
            return 0

        assert in_child(enemy) == errno.ENOENT
        client.release(lease.lease_id)
        for fd in fds:
            os.close(fd)


@pytest.mark.usefixtures("need_root")
def test_harpctl_rejects_a_harpd_of_another_user(run_dir: Path) -> None:
    """Root's harpctl would act on what it answers."""
    run_dir.mkdir()
    path = run_dir / "harpd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        os.seteuid(NOBODY)  # SO_PEERCRED names the user that listened
        try:
            listening.listen(1)
        finally:
            os.seteuid(0)
        why = f"user {NOBODY} listens there, and harpd must run as root or as this user"
        with pytest.raises(HarpError, match=why) as caught:
            LeaseClient(path)
        assert caught.value.code == Exit.NOT_RUNNING
        with listening.accept()[0] as asked:
            assert asked.recv(64) == b"", "nothing was sent"
