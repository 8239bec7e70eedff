# SPDX-License-Identifier: Apache-2.0
"""Clients that behave badly: each is closed or capped, and everyone else is served."""

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
    descriptors,
    greeted,
    in_child,
    lease_once,
    listener,
    refusal,
)
from fake_kernel import FakeKernel
from lease_client import LeaseClient

from harp import _host
from harp._host import Kind
from harp.daemon import documents, leasing, limits, peer, server
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.daemon.messages import Hello, LeaseId, Request, pack, pack_port, unpack
from harp.daemon.server import ROOT_RESERVE
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


def test_a_second_hello_and_a_descriptor_close_the_connection(harpd: Running) -> None:
    with greeted(harpd.path) as sock:
        sock.send(HELLO)
        assert closed(sock)
    with connect(harpd.path) as sock:
        socket.send_fds(sock, [HELLO], [0] * 200)
        assert closed(sock)
    served(harpd)


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
    path = harpd.path

    def enemy() -> list[int]:
        with LeaseClient(path, "enemy") as client:
            return [refusal(client.query, each).error for each in ("stop", "restart", "reload")]

    assert in_child(enemy, NOBODY) == [errno.EPERM] * 3
    served(harpd)


def test_root_without_capabilities_controls_nothing(harpd: Running) -> None:
    """Root of a container that was given the socket."""
    if not peer.capabilities(os.getpid()) & (1 << 12):
        pytest.skip("needs CAP_NET_ADMIN: the container is the one without")
    path = harpd.path

    def contained() -> list[int]:
        libc = CDLL(None, use_errno=True)
        assert libc.capset(b"\x22\x05\x08\x20\0\0\0\0", bytes(24)) == 0
        with LeaseClient(path, "contained") as client:
            return [refusal(client.query, each).error for each in ("stop", "restart", "reload")]

    assert in_child(contained) == [errno.EPERM] * 3
    assert harpd.alive


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


def test_the_wrong_user_and_group(start: Start, settings: Settings) -> None:
    harpd = start(given=replace(settings, users=(), groups=("daemon",)))
    path = harpd.path

    def enemy() -> tuple[int, str]:
        with LeaseClient(path, "enemy") as client:
            refused = refusal(client.lease, "eth0")
        return refused.error, refused.why

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
                return refusal(other.release, lease.lease_id).error

        assert in_child(enemy) == errno.ENOENT
        client.release(lease.lease_id)
        close_all(fds)


def test_harpctl_rejects_a_harpd_of_another_user(run_dir: Path) -> None:
    """Root's harpctl would act on what it answers."""
    path = run_dir / "harpd.sock"
    with listener(path, 1, uid=NOBODY) as listening:
        why = f"user {NOBODY} listens there, and harpd must run as root or as this user"
        with pytest.raises(HarpError, match=why) as caught:
            LeaseClient(path)
        assert caught.value.code == Exit.NOT_RUNNING
        with listening.accept()[0] as asked:
            assert asked.recv(64) == b"", "nothing was sent"


# --------------------------------------------------------------------------------------------------
# Mutated messages, and connections of processes that ended.
#
MESSAGES = [
    pack(Kind.HELLO, 1, Hello("harp")),
    pack(Kind.LEASE, 2, Request("eth0", label="x")),
    pack(Kind.LEASE, 2, Request("eth0", queue=1, frame_count=0xFFFFFFFF, copy_mode=7)),
    pack(Kind.LEASE, 2, Request("rail0", queues=0xFFFFFFFF, label="x")),
    pack_port(2, 1, 2, 4096, "net_memif0"),
    pack(Kind.RELEASE, 3, LeaseId(2**63)),
    pack(Kind.QUERY, 4, rest=b'{"command": "status"}'),
    pack(Kind.QUERY, 4, rest=b'{"command": "stats", "flows": [{}]}'),
    pack(Kind.QUERY, 4, rest=b'{"command": "instances", "x": 1e999}'),
    pack(Kind.DONE, 5),
]


def mutated(rng: random.Random) -> bytes:
    """A message with a few bytes changed, cut, grown or doubled; sometimes none of it."""
    raw = bytearray(rng.choice(MESSAGES))
    for _ in range(rng.randrange(4)):
        what = rng.randrange(5)
        if what == 0 and raw:
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif what == 1:
            del raw[rng.randrange(len(raw) + 1) :]
        elif what == 2:
            raw += rng.randbytes(rng.choice((1, 16, 300)))
        elif what == 3:
            at = rng.randrange(len(raw) + 1)
            raw[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80"))
        elif len(raw) >= 12:
            raw[8:12] = len(raw).to_bytes(4, "little")  # the size is right again
    return bytes(raw)


def assail(path: Path, rng: random.Random, count: int) -> None:
    """One connection after the other, each ended in its own bad way."""
    sock: socket.socket | None = None
    for _ in range(count):
        try:
            if sock is None:
                sock = connect(path)
                sock.settimeout(0.2)
                if rng.random() < 0.8:
                    sock.send(MESSAGES[0])
            how = rng.randrange(12)
            if how == 0:
                socket.send_fds(sock, [mutated(rng)], [0] * rng.choice((1, 7, 250)))
            elif how == 1:
                sock.send(mutated(rng), socket.MSG_OOB)
            elif how == 2:
                sock.shutdown(rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))
            elif how == 3:
                sock.recv(rng.choice((1, 16, 65536)))
            elif how == 4:
                sock.close()
                sock = None
            elif how == 5:
                own = array.array("i", [os.getpid(), os.getuid(), os.getgid()])
                control = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)]
                sock.sendmsg([mutated(rng)], control)
            else:
                sock.send(mutated(rng), socket.MSG_DONTWAIT)
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
    monkeypatch.setattr(documents, "HELD_S", 0.05)
    before = descriptors()
    enemies = [
        threading.Thread(target=assail, args=(harpd.path, random.Random(n), 250)) for n in range(4)
    ]
    for enemy in enemies:
        enemy.start()
    for enemy in enemies:
        enemy.join(60)
        assert not enemy.is_alive()
    harpd.until(lambda: not harpd.daemon._server.clients, "the enemies' end")
    harpd.until(lambda: all(lease.active for lease in harpd.daemon.table.leases.values()), "work")
    # A lease is this process's and may live on; one pidfd watches it. Answers are closed later.
    harpd.until(lambda: descriptors() <= before + 1, "the closing of descriptors")
    assert "internal error" not in caplog.text
    with harpd.client() as client:
        client.query("status")


def left_behind(path: Path, greets: bool) -> socket.socket:
    """A connection that a process passed to this one before it ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                sock = greeted(path) if greets else connect(path)
                socket.send_fds(theirs, [b"x"], [sock.fileno()])
            os._exit(0)
        ours.settimeout(10)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(pid, 0)
    sock = socket.socket(fileno=fds[0])
    sock.settimeout(10)
    return sock


def test_a_connection_of_an_ended_process_leases_nothing(harpd: Running) -> None:
    """What it asks for has no owner."""
    with left_behind(harpd.path, greets=True) as sock:
        sock.send(pack(Kind.LEASE, 9, Request("eth0")))
        message = unpack(sock.recv(65536))
        assert message.kind is Kind.REFUSED
        assert message.body.error == errno.ESRCH
    harpd.until(lambda: not harpd.daemon.table.leases, "the lease's end")


def test_a_connection_of_a_process_that_harpd_never_saw_is_closed(harpd: Running) -> None:
    """The process ended before harpd looked at it; its number may be another's."""
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(20)

    harpd.daemon.loop.call_soon_threadsafe(block)
    assert blocked.wait(10)
    with left_behind(harpd.path, greets=False) as sock:
        go_on.set()
        assert closed(sock)


# --------------------------------------------------------------------------------------------------
# A user that exceeds its share: queues held by children of dead jobs, quarantined ports, silent
# connections.
#
class Released(FakeKernel):
    """A kernel that releases queues at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = type("Never", (set,), {"__contains__": lambda *_: False})()


def lease_and_die(harpd: Running, again: int = 1) -> list[int]:
    """Lease as user nobody until the process ends; return the errors of refused requests."""
    path = harpd.path

    def enemy() -> list[int]:
        errors = []
        with LeaseClient(path, "enemy") as client:
            for _ in range(again):
                try:
                    lease, fds = client.lease("eth0")
                    client.release(lease.lease_id)
                    close_all(fds)
                except RefusedByDaemonError as error:
                    errors.append(error.error)
        return errors

    return in_child(enemy, NOBODY)


def test_queues_that_children_hold_count(
    start: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(leasing.WAITS_S, errno.EDQUOT, 0.15)
    # The fake kernel never releases a queue: another process holds the socket.
    harpd = start(given=replace(settings, leases_per_uid=2))
    assert lease_and_die(harpd, 5) == [errno.EDQUOT] * 3
    assert len(harpd.kernel.held) == 2
    with harpd.client() as client:
        assert client.query("status")["nics"][0]["queues_free"] == 2
        client.lease("eth0")  # another user's


def test_a_queue_returned_just_now_does_not_count(start: Start, settings: Settings) -> None:
    harpd = start(Released(), given=replace(settings, leases_per_uid=1))
    assert lease_and_die(harpd, 5) == []


def test_quarantined_ports_are_shared_between_users(start: Start, settings: Settings) -> None:
    harpd = start(Released(), given=replace(settings, leases_per_uid=4))
    errors = lease_and_die(harpd, 40)
    assert set(errors) == {errno.EBUSY}
    with harpd.client() as client:  # another user still gets a block for each queue
        ports = [client.lease("eth0", queue=queue)[0].port_min for queue in range(4)]
    assert len(set(ports)) == 4


@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_client_without_hello_is_dropped_first(harpd: Running, uid: int) -> None:
    """More silent connections than a user, or root, may have: a client that sends HELLO is
    served, of either user."""
    path, places = harpd.path, harpd.daemon._server
    count = places.total_max + ROOT_RESERVE if uid == 0 else places.per_uid_max

    def enemy() -> list[bool]:
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count + 20)]
        served = []
        for sock in held:
            sock.connect(str(path))
        for each in {uid, NOBODY}:
            os.seteuid(each)
            with LeaseClient(path, "one that speaks") as client:
                served.append(client.query("status")["connections"] >= places.per_uid_max)
        return served

    assert in_child(enemy, uid) == [True] * (1 if uid else 2)


def test_a_large_welcome_still_fits(start: Start, settings: Settings) -> None:
    harpd = start(given=replace(settings, job="HARP_X=" + "x" * 50_000 + "\n"))
    with harpd.client() as client:
        assert len(client.settings) > 50_000
        client.query("status")
