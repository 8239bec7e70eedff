# SPDX-License-Identifier: Apache-2.0
"""Misbehaving clients: harpd closes or limits them and serves all other clients."""

import array
import contextlib
import errno
import os
import random
import socket
import struct
import threading
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_rig import (
    NOBODY,
    Running,
    Start,
    connect,
    count_descriptors,
    greet,
    in_child,
    lease_once,
    listener,
    refusal,
)
from fake_kernel import FakeKernel
from lease_client import LeaseClient

from harp import _host
from harp._host import Kind
from harp.daemon import leasing, limits, peer, server
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.daemon.messages import Hello, LeaseId, Request, pack, pack_port, unpack
from harp.daemon.server import ROOT_RESERVE
from harp.daemon.settings import Settings
from harp.errors import Exit, HarpError

HELLO = pack(Kind.HELLO, 1, Hello("enemy"))


def is_closed(sock: socket.socket) -> bool:
    """Read until harpd closes the connection."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def check_service(harpd: Running) -> None:
    """Check that another client can lease and query."""
    with harpd.client() as client:
        assert [device.ifname for device in client.devices] == ["eth0"]
        lease_once(client, "eth0", label="good")
        assert client.query("status")["leases"] == 0
    harpd.kernel.busy_queues.clear()


def header(**fields: int) -> bytes:
    values = {"magic": 0x4C505248, "version": 2, "type": 1, "size": 16, "serial": 1} | fields
    return struct.pack("=IHHII", *values.values())


INVALID_MESSAGES = {
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


@pytest.mark.parametrize("kind", INVALID_MESSAGES)
def test_an_invalid_message_closes_only_its_connection(harpd: Running, kind: str) -> None:
    with connect(harpd.path) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.send(INVALID_MESSAGES[kind])
        assert is_closed(sock)
    check_service(harpd)


def test_a_second_hello_and_a_descriptor_close_the_connection(harpd: Running) -> None:
    with greet(harpd.path) as sock:
        sock.send(HELLO)
        assert is_closed(sock)
    with connect(harpd.path) as sock:
        socket.send_fds(sock, [HELLO], [0] * 200)
        assert is_closed(sock)
    check_service(harpd)


def test_a_client_that_sends_nothing_is_closed(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_S", 0.1)
    with connect(harpd.path) as silent, greet(harpd.path) as quiet:
        assert is_closed(silent)
        # After HELLO a client may be silent.
        quiet.send(pack(Kind.QUERY, 2, rest=b'{"command": "status"}'))
        assert unpack(quiet.recv(65536)).kind is Kind.ANSWER
    check_service(harpd)


def test_a_client_that_reads_no_answer_is_closed(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TAKE_S", 0.2)
    monkeypatch.setattr(server, "CLIENT_BURST", 1e6)
    monkeypatch.setattr(server, "USER_BURST", 1e6)
    harpd.daemon._server.buckets = server.Buckets(1e6, 1e6)
    before = count_descriptors()
    # REFUSED is the longest answer that is not a document.
    request = pack(Kind.RELEASE, 2, LeaseId(1))
    with greet(harpd.path) as sock:

        def never_read() -> None:
            while True:
                sock.send(request)

        # Blocks while the buffer is full, and fails when harpd closes the connection.
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            never_read()
        assert is_closed(sock)
    check_service(harpd)
    harpd.until(lambda: len(harpd.daemon._server.clients) == 0, "the end of the clients")
    assert count_descriptors() <= before


def test_a_user_with_many_connections_blocks_no_other(harpd: Running) -> None:
    path = harpd.path

    def enemy() -> tuple[int, int]:
        connections, refused_count = [], 0
        for _ in range(1000):
            sock = connect(path)
            try:
                sock.send(HELLO)
                raw = sock.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                raw = b""
            if raw and unpack(raw).kind is Kind.WELCOME:
                connections.append(sock)
            else:
                refused_count += 1
                sock.close()
        return len(connections), refused_count

    assert in_child(enemy, NOBODY) == (128, 872)
    check_service(harpd)


def test_only_root_controls_harpd(harpd: Running) -> None:
    path = harpd.path

    def enemy() -> list[int]:
        with LeaseClient(path, "enemy") as client:
            return [refusal(client.query, command).error for command in ("stop", "restart")]

    assert in_child(enemy, NOBODY) == [errno.EPERM] * 2
    check_service(harpd)


def test_root_without_capabilities_may_not_control_harpd(harpd: Running) -> None:
    """Root in a container that can access the socket."""
    if not peer.capabilities(os.getpid()) & (1 << 12):
        pytest.skip("needs CAP_NET_ADMIN, which only the contained client lacks")
    path = harpd.path

    def contained() -> list[int]:
        libc = CDLL(None, use_errno=True)
        assert libc.capset(b"\x22\x05\x08\x20\0\0\0\0", bytes(24)) == 0
        with LeaseClient(path, "contained") as client:
            return [refusal(client.query, command).error for command in ("stop", "restart")]

    assert in_child(contained) == [errno.EPERM] * 2
    assert harpd.alive


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b"{}", b'{"command": 7}', b"\xff\xfe", b"[" * 50000, b'{"command": "nope"}'],
    ids=repr,
)
def test_an_invalid_query_is_refused_in_one_line(harpd: Running, document: bytes) -> None:
    with greet(harpd.path) as sock:
        sock.send(pack(Kind.QUERY, 5, rest=document))
        message = unpack(sock.recv(65536))
        assert (message.kind, message.serial) == (Kind.REFUSED, 5)
        assert "\n" not in message.body.why
    check_service(harpd)


def test_a_user_without_permission_gets_no_lease(start: Start, settings: Settings) -> None:
    harpd = start(settings=replace(settings, users=(), groups=("daemon",)))
    path = harpd.path

    def enemy() -> tuple[int, str]:
        with LeaseClient(path, "enemy") as client:
            refused = refusal(client.lease, "eth0")
        return refused.error, refused.why

    error, why = in_child(enemy, NOBODY)
    assert error == errno.EACCES
    assert why.startswith(f"user {NOBODY} may not have leases")
    assert harpd.kernel.queues_made == [], "no queue was created"
    check_service(harpd)


def test_a_process_cannot_release_the_lease_of_another(harpd: Running) -> None:
    path = harpd.path
    with harpd.client() as client:
        lease, fds = client.lease("eth0")

        def enemy() -> int:
            with LeaseClient(path, "enemy") as other:
                return refusal(other.release, lease.lease_id).error

        assert in_child(enemy) == errno.ENOENT
        client.release(lease.lease_id)
        close_all(fds)


def test_harpctl_rejects_a_harpd_of_another_user(run_dir: Path) -> None:
    """Root's harpctl would trust its answers."""
    path = run_dir / "harpd.sock"
    with listener(path, 1, uid=NOBODY) as listening:
        why = f"user {NOBODY} listens on it, but harpd must run as root or as this user"
        with pytest.raises(HarpError, match=why) as caught:
            LeaseClient(path)
        assert caught.value.code == Exit.NOT_RUNNING
        with listening.accept()[0] as connection:
            assert connection.recv(64) == b"", "nothing was sent"


# --------------------------------------------------------------------------------------------------
# Mutated messages, and connections of processes that have ended.
#
MESSAGES = [
    pack(Kind.HELLO, 1, Hello("harp")),
    pack(Kind.LEASE, 2, Request("eth0", label="x")),
    pack(Kind.LEASE, 2, Request("eth0", queue=1, frame_count=0xFFFFFFFF, copy_mode=7)),
    pack(Kind.LEASE, 2, Request("rail0", queues=0xFFFFFFFF, label="x")),
    pack_port(2, 1, 2, 4096, "net_memif0"),
    pack(Kind.RELEASE, 3, LeaseId(2**63)),
    pack(Kind.QUERY, 4, rest=b'{"command": "status"}'),
    pack(Kind.QUERY, 4, rest=b'{"command": "unknown", "x": [{}]}'),
    pack(Kind.QUERY, 4, rest=b'{"command": "instances", "x": 1e999}'),
    pack(Kind.DONE, 5),
]


def mutate(rng: random.Random) -> bytes:
    """Return a message with up to three changes: bytes replaced, cut or appended."""
    raw = bytearray(rng.choice(MESSAGES))
    for _ in range(rng.randrange(4)):
        change = rng.randrange(5)
        if change == 0 and raw:
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif change == 1:
            del raw[rng.randrange(len(raw) + 1) :]
        elif change == 2:
            raw += rng.randbytes(rng.choice((1, 16, 300)))
        elif change == 3:
            offset = rng.randrange(len(raw) + 1)
            raw[offset : offset + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80"))
        elif len(raw) >= 12:
            raw[8:12] = len(raw).to_bytes(4, "little")  # the correct size
    return bytes(raw)


def assail(path: Path, rng: random.Random, count: int) -> None:
    """Misuse one connection after the other with random messages and calls."""
    sock: socket.socket | None = None
    for _ in range(count):
        try:
            if sock is None:
                sock = connect(path)
                sock.settimeout(0.2)
                if rng.random() < 0.8:
                    sock.send(MESSAGES[0])
            action = rng.randrange(12)
            if action == 0:
                socket.send_fds(sock, [mutate(rng)], [0] * rng.choice((1, 7, 250)))
            elif action == 1:
                sock.send(mutate(rng), socket.MSG_OOB)
            elif action == 2:
                sock.shutdown(rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))
            elif action == 3:
                sock.recv(rng.choice((1, 16, 65536)))
            elif action == 4:
                sock.close()
                sock = None
            elif action == 5:
                credentials = array.array("i", [os.getpid(), os.getuid(), os.getgid()])
                control = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]
                sock.sendmsg([mutate(rng)], control)
            else:
                sock.send(mutate(rng), socket.MSG_DONTWAIT)
        except (OSError, ValueError):
            if sock is not None:
                sock.close()
            sock = None
    if sock is not None:
        sock.close()


def test_mutated_messages_crash_nothing(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "CLIENT_BURST", 1e6)
    monkeypatch.setattr(harpd.daemon._server, "buckets", limits.Buckets(1e6, 1e6))
    before = count_descriptors()
    enemies = [
        threading.Thread(target=assail, args=(harpd.path, random.Random(n), 250)) for n in range(4)
    ]
    for enemy in enemies:
        enemy.start()
    for enemy in enemies:
        enemy.join(60)
        assert not enemy.is_alive()
    harpd.until(lambda: not harpd.daemon._server.clients, "the end of the enemies")
    harpd.until(
        lambda: all(lease.active for lease in harpd.daemon.table.leases.values()), "the workers"
    )
    # One pidfd may watch a lease of this process.
    harpd.until(lambda: count_descriptors() <= before + 1, "the closing of descriptors")
    assert "internal error" not in caplog.text
    with harpd.client() as client:
        client.query("status")


def inherited_connection(path: Path, with_hello: bool) -> socket.socket:
    """Return a connection that another process opened, passed to this one, and ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                sock = greet(path) if with_hello else connect(path)
                socket.send_fds(theirs, [b"x"], [sock.fileno()])
            os._exit(0)
        ours.settimeout(10)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(pid, 0)
    sock = socket.socket(fileno=fds[0])
    sock.settimeout(10)
    return sock


def test_a_connection_of_an_ended_process_leases_nothing(harpd: Running) -> None:
    """A lease would have no owner."""
    with inherited_connection(harpd.path, with_hello=True) as sock:
        sock.send(pack(Kind.LEASE, 9, Request("eth0")))
        message = unpack(sock.recv(65536))
        assert message.kind is Kind.REFUSED
        assert message.body.error == errno.ESRCH
    harpd.until(lambda: not harpd.daemon.table.leases, "the end of the lease")


def test_a_connection_whose_process_has_ended_is_closed(harpd: Running) -> None:
    """Its PID may belong to another process when harpd reads it."""
    blocked, may_continue = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        may_continue.wait(20)

    harpd.daemon.loop.call_soon_threadsafe(block)
    assert blocked.wait(10)
    with inherited_connection(harpd.path, with_hello=False) as sock:
        may_continue.set()
        assert is_closed(sock)


# --------------------------------------------------------------------------------------------------
# A user that exceeds its share: queues held by children of dead jobs, quarantined ports, silent
# connections.
#
class ReleasingKernel(FakeKernel):
    def __init__(self) -> None:
        super().__init__()
        self.busy_queues = type("Never", (set,), {"__contains__": lambda *_: False})()


def lease_and_die(harpd: Running, count: int = 1) -> list[int]:
    """Lease `count` times as user nobody, and end; return the errors of refusals."""
    path = harpd.path

    def enemy() -> list[int]:
        errors = []
        with LeaseClient(path, "enemy") as client:
            for _ in range(count):
                try:
                    lease, fds = client.lease("eth0")
                    client.release(lease.lease_id)
                    close_all(fds)
                except RefusedByDaemonError as error:
                    errors.append(error.error)
        return errors

    return in_child(enemy, NOBODY)


def test_queues_that_children_hold_count_for_the_user(
    start: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(leasing.WAITS_S, errno.EDQUOT, 0.15)
    # The fake kernel never releases a queue: another process holds the socket.
    harpd = start(settings=replace(settings, leases_per_uid=2))
    assert lease_and_die(harpd, 5) == [errno.EDQUOT] * 3
    assert len(harpd.kernel.busy_queues) == 2
    with harpd.client() as client:
        assert client.query("status")["nics"][0]["queues_free"] == 2
        client.lease("eth0")  # another user may


def test_a_returned_queue_does_not_count_for_the_user(start: Start, settings: Settings) -> None:
    harpd = start(ReleasingKernel(), settings=replace(settings, leases_per_uid=1))
    assert lease_and_die(harpd, 5) == []


def test_quarantined_ports_are_shared_between_users(start: Start, settings: Settings) -> None:
    harpd = start(ReleasingKernel(), settings=replace(settings, leases_per_uid=4))
    errors = lease_and_die(harpd, 40)
    assert set(errors) == {errno.EBUSY}
    with harpd.client() as client:  # another user still gets a block for each queue
        ports = [client.lease("eth0", queue=queue)[0].port_min for queue in range(4)]
    assert len(set(ports)) == 4


@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_client_without_hello_is_dropped_first(harpd: Running, uid: int) -> None:
    """Silent connections fill the limit of a user or of root; clients with HELLO are served."""
    path, listening = harpd.path, harpd.daemon._server
    count = listening.total_max + ROOT_RESERVE if uid == 0 else listening.per_uid_max

    def enemy() -> list[bool]:
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count + 20)]
        at_limit = []
        for sock in sockets:
            sock.connect(str(path))
        for user in {uid, NOBODY}:
            os.seteuid(user)
            with LeaseClient(path, "client") as client:
                at_limit.append(client.query("status")["connections"] >= listening.per_uid_max)
        return at_limit

    assert in_child(enemy, uid) == [True] * (1 if uid else 2)


def test_a_large_welcome_still_fits(start: Start, settings: Settings) -> None:
    harpd = start(settings=replace(settings, job="HARP_X=" + "x" * 50_000 + "\n"))
    with harpd.client() as client:
        assert len(client.settings) > 50_000
        client.query("status")
