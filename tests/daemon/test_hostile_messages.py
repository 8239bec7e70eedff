# SPDX-License-Identifier: Apache-2.0
"""Mutated messages over many connections, connections of dead processes, root of a container."""

import array
import contextlib
import errno
import os
import random
import socket
import threading
from ctypes import CDLL
from pathlib import Path

import pytest
from daemon_rig import Running, connect, descriptors, errors_of, in_child
from lease_client import LeaseClient

from harp._host import Kind
from harp.daemon import documents, limits, peer, server
from harp.daemon.messages import Hello, LeaseId, Request, pack, pack_port, unpack

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


def test_a_passed_connection_of_an_ended_process_leases_nothing(harpd: Running) -> None:
    """Passed on by its process, which ended: what it asks for has no owner."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            sock = connect(harpd.path)
            sock.send(MESSAGES[0])
            sock.recv(65536)
            socket.send_fds(theirs, [b"x"], [sock.fileno()])
        os._exit(0)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(pid, 0)
    with socket.socket(fileno=fds[0]) as sock:
        sock.settimeout(10)
        sock.send(pack(Kind.LEASE, 9, Request("eth0")))
        message = unpack(sock.recv(65536))
        assert message.kind is Kind.REFUSED
        assert message.body.error == errno.ESRCH
    ours.close()
    theirs.close()
    harpd.until(lambda: not harpd.daemon.table.leases, "the lease's end")


def test_a_connection_of_an_ended_process_is_closed(harpd: Running) -> None:
    """The process ended before harpd looked at it; its number may be another's."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(20)

    harpd.daemon.loop.call_soon_threadsafe(block)
    assert blocked.wait(10)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            sock = connect(harpd.path)
            socket.send_fds(theirs, [b"x"], [sock.fileno()])
        os._exit(0)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(pid, 0)
    go_on.set()
    with socket.socket(fileno=fds[0]) as sock:
        sock.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    ours.close()
    theirs.close()


def test_root_without_capabilities_controls_nothing(harpd: Running) -> None:
    """Root of a container that was given the socket."""
    if not peer.capabilities(os.getpid()) & (1 << 12):
        pytest.skip("needs CAP_NET_ADMIN: the container is the one without")
    path = harpd.path

    def contained() -> list[int]:
        libc = CDLL(None, use_errno=True)
        assert libc.capset(b"\x22\x05\x08\x20\0\0\0\0", bytes(24)) == 0
        with LeaseClient(path, "contained") as client:
            return errors_of(client, ("stop", "restart", "reload"))

    assert in_child(contained) == [errno.EPERM] * 3
    assert harpd.alive
