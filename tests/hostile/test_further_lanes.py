# SPDX-License-Identifier: Apache-2.0
"""Further lanes of a comm (docs/lanes.md section 3.4), with a peer written from the document.

tests/unit/wire/test_preamble.c and tests/unit/connect/test_pending.c test replays, wrong keys,
invalid lane numbers, and connections without CONFIRM.
"""

import base64
import contextlib
import dataclasses
import random
import select
import struct
from collections.abc import Iterator

import pytest
from actor import Actor, actors
from hosts import Hosts
from wire import ACK, CLOSE, CREDIT, DATA, Acceptor, Handle, Peer, record

SEED = 20261122
LANES = {"xdp": {"HARP_LANES": "2"}, "kernel": {"HARP_KERNEL_LANES": "2"}}


@dataclasses.dataclass
class MultiLaneComm:
    """A comm of several lanes; the test is the peer of the first."""

    hosts: Hosts
    receiver: Actor
    handle: Handle
    first: Peer
    key: bytes
    comm: int
    messages: int = 0

    def connect(self) -> Peer:
        with self.hosts.inside(1):
            peer = Peer(self.handle)
        peer.key = self.key
        return peer

    def open_lane(self, index: int) -> Peer:
        peer = self.connect()
        peer.handshake(index=index, join=True)
        assert not peer.nics  # only a comm's first lane gets the rails
        return peer

    def transfer(self, *lanes: Peer) -> None:
        """Sends a message in pieces over these lanes, the last piece first, and checks it."""
        data = random.Random(SEED + self.messages).randbytes(5000)
        self.receiver.start("receive", comm=self.comm, size=8192)
        cuts = list(range(0, len(data), 640))
        for n, at in enumerate(reversed(cuts)):
            piece = record(
                DATA, message=self.messages, total=5000, offset=at, payload=data[at : at + 640]
            )
            lanes[n % len(lanes)].send(piece)
        assert base64.b64decode(self.receiver.result()) == data
        self.messages += 1


@pytest.fixture(params=["xdp", "kernel"])
def multi(request: pytest.FixtureRequest, family_hosts: Hosts) -> Iterator[MultiLaneComm]:
    path = str(request.param)
    with family_hosts.ranks(path, **LANES[path]) as (receiver,), contextlib.ExitStack() as stack:
        raw, listen = receiver.call("listen")
        handle = Handle.decode(base64.b64decode(raw))
        with family_hosts.inside(1):
            first = stack.enter_context(Peer(handle))
        receiver.start("accept", listen=listen)
        first.handshake(multi_lane=True)
        comm = receiver.result()
        receiver.call("close_listen", comm=listen)  # further lanes do not need it
        yield MultiLaneComm(family_hosts, receiver, handle, first, first.comm_key(), comm)


def is_closed(peer: Peer) -> bool:
    """Reads a byte; True if the plugin has closed the connection."""
    try:
        peer.read(1)
    except (EOFError, ConnectionError):
        return True
    return False


def test_further_lanes_carry_messages(multi: MultiLaneComm) -> None:
    multi.transfer(multi.first)
    with multi.open_lane(1) as second, multi.open_lane(7) as last:
        multi.transfer(multi.first, second, last)
        multi.transfer(last)


def test_a_new_lane_replaces_the_one_with_its_index(multi: MultiLaneComm) -> None:
    with multi.open_lane(1) as old, multi.open_lane(1) as new:
        multi.transfer(multi.first, new)
        with contextlib.suppress(ConnectionError):
            while old.socket.recv(4096):  # earlier ACKs
                pass
        multi.transfer(new)


def test_the_first_lane_can_be_reopened(multi: MultiLaneComm) -> None:
    multi.first.close()
    with multi.open_lane(0) as reopened:
        multi.transfer(reopened)


def test_data_after_close_is_ignored(multi: MultiLaneComm) -> None:
    """CLOSE ends a lane: later records on it are ignored, and other lanes deliver the rest."""
    data = random.Random(SEED).randbytes(1024)
    with multi.open_lane(1) as second:
        multi.receiver.start("receive", comm=multi.comm, size=len(data))
        second.send(record(DATA, total=1024, payload=data[:512]))
        second.send(record(CLOSE, message=1))
        second.send(record(DATA, total=1024, offset=512, payload=bytes(512)))
        while not is_closed(second):
            pass  # ACKs
        multi.first.send(record(DATA, total=1024, offset=512, payload=data[512:]))
        assert base64.b64decode(multi.receiver.result()) == data


def test_close_on_every_lane_ends_the_comm_without_fin(multi: MultiLaneComm) -> None:
    with multi.open_lane(1) as second:
        multi.receiver.start("receive_error", comm=multi.comm, size=64)
        for lane in (multi.first, second):
            lane.send(record(CLOSE, message=1))
        assert multi.receiver.result()[0] == "ncclRemoteError"
        warnings = multi.receiver.call("warnings")
        assert len(warnings) == 1
        assert multi.hosts.address[1] in warnings[0]


def test_the_plugin_sends_to_an_acceptor_written_from_the_document(hosts: Hosts) -> None:
    """Before a CREDIT, the plugin sends at most the eager bytes. It reopens a lost lane and sends
    the lane's bytes since the last ACK again."""
    data = random.Random(SEED).randbytes(3 << 20)
    received: dict[int, bytes] = {}
    env = hosts.env("kernel", HARP_KERNEL_LANES="2", HARP_EAGER_BYTES="8192")
    with contextlib.ExitStack() as stack:
        with hosts.inside(0):
            acceptor = stack.enter_context(Acceptor(hosts.address[0]))
        (sender,) = stack.enter_context(actors(Actor(hosts.netns[1], env)))
        sender.load()
        sender.start("connect", handle=base64.b64encode(acceptor.handle).decode())
        lanes = [stack.enter_context(acceptor.accept())]
        comm = sender.result()
        lanes.append(stack.enter_context(acceptor.accept()))
        assert [lane.index for lane in lanes] == [0, 1]

        def read_data() -> None:
            """Reads a DATA record of the message from any lane."""
            ready = select.select(lanes, [], [], 60)[0]
            kind, message, total, offset, payload = ready[0].record()
            assert (kind, message, total) == (DATA, 0, len(data))
            assert payload == data[offset : offset + len(payload)]
            received[offset] = payload

        sender.start("send", comm=comm, data=base64.b64encode(data).decode())
        read_data()
        assert sum(map(len, received.values())) <= 8192
        sizes = struct.pack("<Q", len(data))
        lanes[1].send(record(CREDIT, total=1, payload=sizes))
        lanes.pop().reset()
        lanes[0].send(record(CREDIT, total=1, payload=sizes))
        lanes.append(stack.enter_context(acceptor.accept()))
        assert lanes[1].index == 1
        while sum(map(len, received.values())) < len(data):
            read_data()
        lanes[0].send(record(ACK, message=1))
        assert sender.result() == len(data)
        sender.start("close_send", comm=comm)
        ends = []
        for lane in lanes:
            # A full lane may end in the middle of a record that another lane has delivered.
            with contextlib.suppress(EOFError, ConnectionError):
                while (end := lane.record())[0] != CLOSE:
                    pass  # DATA in progress
                ends.append(end[1])
        assert set(ends) == {1}
        sender.result()
