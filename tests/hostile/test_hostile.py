# SPDX-License-Identifier: Apache-2.0
"""Unauthenticated peers, invalid data and killed peers against the real plugin on a real queue.

Each causes one clear error or a counted drop. Nothing crashes or hangs, and established comms
continue. Every test runs over HARP's TCP (AF_XDP on veth) and over kernel lanes.
"""

import base64
import contextlib
import random
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from actor import TIMEOUT_S, Actor, ActorError, actors, polled
from hosts import Hosts
from wire import DATA, Handle, Peer, record

SEED = 20261121


@pytest.fixture(params=["xdp", "kernel"])
def path(request: pytest.FixtureRequest) -> str:
    """The kind of lane on the side under test."""
    return str(request.param)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Pair:
    """Two ranks with one comm from host 1 to host 0, which is the side under test."""

    def __init__(self, receiver: Actor, sender: Actor) -> None:
        self.receiver, self.sender = receiver, sender
        self.handle, self.listen = receiver.call("listen")
        receiver.start("accept", listen=self.listen)
        self.send_comm = sender.call("connect", handle=self.handle)
        self.recv_comm = receiver.result()

    def exchange(self, data: bytes) -> None:
        """Transfers a message and checks it."""
        self.receiver.start("receive", comm=self.recv_comm, size=len(data) + 64)
        assert self.sender.call("send", comm=self.send_comm, data=b64(data)) == len(data)
        assert base64.b64decode(self.receiver.result()) == data


@contextlib.contextmanager
def ranks(hosts: Hosts, path: str, sender_path: str | None = None) -> Iterator[Pair]:
    with hosts.ranks(path, sender_path or path) as (receiver, sender):
        yield Pair(receiver, sender)


def wait_closed(sock: socket.socket) -> None:
    """Waits until the other side closes the connection; raises TimeoutError."""
    sock.settimeout(TIMEOUT_S)
    with contextlib.suppress(ConnectionError):
        while sock.recv(4096):
            pass


@contextlib.contextmanager
def connected_peer(
    hosts: Hosts, receiver: Actor, peer_type: type[Peer] = Peer
) -> Iterator[tuple[Any, int]]:
    """A peer on host 1 after a correct preamble, and the plugin's comm."""
    raw, listen = receiver.call("listen")
    with hosts.inside(1):
        peer = peer_type(Handle.decode(base64.b64decode(raw)))
    with peer:
        receiver.start("accept", listen=listen)
        peer.handshake()
        yield peer, receiver.result()


@pytest.mark.parametrize("sender_path", ["xdp", "kernel"])
def test_lane_kinds_interoperate(family_hosts: Hosts, path: str, sender_path: str) -> None:
    with ranks(family_hosts, path, sender_path) as pair:
        for size in (0, 1, 7, 8, 9, 1447, 4096, 65536, 1 << 20):
            pair.exchange(random.Random(SEED + size).randbytes(size))


@pytest.mark.parametrize("sender_path", ["xdp", "kernel"])
def test_link_local_addresses_are_the_last_resort(
    link_local: Hosts, path: str, sender_path: str
) -> None:
    with ranks(link_local, path, sender_path) as pair:
        for size in (1, 4096, 1 << 20):
            pair.exchange(random.Random(SEED + size).randbytes(size))
        kind = "HARP TCP" if sender_path == "xdp" else "kernel TCP"
        line = rf"connected by {kind} \[fe80::[0-9a-f:]+%\d+\]:\d+ -> \[fe80::[0-9a-f:]+%\d+\]:\d+"
        assert any(re.search(line, text) for text in pair.sender.call("log"))


def test_unauthenticated_peers_that_send_garbage_are_closed(family_hosts: Hosts, path: str) -> None:
    rng = random.Random(SEED)
    with ranks(family_hosts, path) as pair:
        handle = Handle.decode(base64.b64decode(pair.handle))
        garbage = [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(200),
            b"\x16\x03\x01" + rng.randbytes(200),
            b"HELO" + rng.randbytes(100),
            b"HELO" + struct.pack("<H", 1) + bytes(100),
            b"HARP" + rng.randbytes(200),
            *(rng.randbytes(rng.randrange(64, 4000)) for _ in range(20)),
        ]
        _, listen = pair.receiver.call("listen")
        for data in garbage:
            with family_hosts.inside(1):
                sock = socket.create_connection((handle.address, handle.port), TIMEOUT_S)
            with sock, polled(pair.receiver, listen):
                sock.sendall(data)
                wait_closed(sock)
        pair.exchange(b"established")
        Pair(pair.receiver, pair.sender).exchange(b"new")


def test_an_invalid_record_fails_its_comm_only(hosts: Hosts, path: str) -> None:
    """tests/unit/comm/test_comm.c tests every kind of invalid record."""
    with ranks(hosts, path) as pair:
        with connected_peer(hosts, pair.receiver) as (peer, comm):
            pair.receiver.start("receive_error", comm=comm, size=1 << 16)
            peer.send(record(DATA, total=8, length=4096) + bytes(4096))
            result, _ = pair.receiver.result()
            assert result == "ncclRemoteError"
            # The error is permanent and logged once.
            assert pair.receiver.call("receive_error", comm=comm, size=8)[0] == result
            assert len(pair.receiver.call("warnings")) == 1
        pair.exchange(b"established")


def test_children_forked_while_an_engine_opens_or_closes_hold_no_queue(hosts: Hosts) -> None:
    with actors(Actor(hosts.netns[0], hosts.env("xdp"))) as (actor,):
        failures, holders = actor.call("fork_while_opening", path=str(hosts.plugin), cycles=15)
        assert (failures, holders) == (0, 0), "children hold the queue or a BPF object"


# ---- HARP_PATH=xdp where AF_XDP is not available: init fails; auto continues and logs the reason


def test_a_missing_interface_fails_init(hosts: Hosts) -> None:
    actor = Actor(hosts.netns[0], hosts.env("xdp", NCCL_SOCKET_IFNAME="=nope0"))
    with actors(actor):
        with pytest.raises(ActorError, match=r"init: |devices: "):
            actor.load()


def test_a_missing_privilege_fails_init_or_is_logged(hosts: Hosts) -> None:
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    with actors(Actor(hosts.netns[0], hosts.env("xdp"), drop)) as (actor,):
        with pytest.raises(ActorError, match="init: "):
            actor.load()
    with actors(Actor(hosts.netns[0], hosts.env("auto"), drop)) as (actor,):
        actor.load()
        actor.call("open_interfaces")
        assert any("CAP_" in line for line in actor.call("log")), actor.call("log")


def test_a_busy_queue_fails_init_or_is_logged(hosts: Hosts) -> None:
    with hosts.ranks("xdp") as (owner,):
        owner.call("listen")
        with actors(Actor(hosts.netns[0], hosts.env("xdp"))) as (second,):
            with pytest.raises(ActorError, match="init: "):
                second.load()
        with hosts.ranks("auto", "auto") as (second, sender):
            Pair(second, sender).exchange(b"over a kernel lane")
            log = "\n".join(second.call("log"))
            assert "is attached already" in log, log
