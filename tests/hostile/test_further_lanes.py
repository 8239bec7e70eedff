# SPDX-License-Identifier: Apache-2.0
"""Further lanes of a comm (docs/lanes.md section 3.4), with a peer written from the document.

tests/unit/wire/test_preamble.c and tests/unit/connect/test_pending.c refuse replays, other keys,
impossible lane numbers, and connections without CONFIRM.
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
class Several:
    """A comm of several lanes whose first is ours."""

    hosts: Hosts
    receiver: Actor
    handle: Handle
    first: Peer
    key: bytes
    comm: int
    messages: int = 0

    def call(self) -> Peer:
        with self.hosts.inside(1):
            peer = Peer(self.handle)
        peer.key = self.key
        return peer

    def further(self, index: int) -> Peer:
        peer = self.call()
        peer.handshake(index=index, join=True)
        assert not peer.nics  # only the first lane of a comm learns the rails
        return peer

    def goes_on(self, *lanes: Peer) -> None:
        """A message, in pieces over these lanes, the last piece first."""
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
def several(request: pytest.FixtureRequest, each: Hosts) -> Iterator[Several]:
    path = str(request.param)
    with each.ranks(path, **LANES[path]) as (receiver,), contextlib.ExitStack() as stack:
        raw, listen = receiver.call("listen")
        handle = Handle.decode(base64.b64decode(raw))
        with each.inside(1):
            first = stack.enter_context(Peer(handle))
        receiver.start("accept", listen=listen)
        first.handshake(multi_lane=True)
        comm = receiver.result()
        receiver.call("close_listen", comm=listen)  # not needed for further lanes
        yield Several(each, receiver, handle, first, first.comm_key(), comm)


def turned_away(peer: Peer) -> bool:
    """True when the plugin ends the connection instead of saying more."""
    try:
        peer.read(1)
    except (EOFError, ConnectionError):
        return True
    return False


def test_further_lanes_carry_messages(several: Several) -> None:
    several.goes_on(several.first)
    with several.further(1) as second, several.further(7) as last:
        several.goes_on(several.first, second, last)
        several.goes_on(last)


def test_a_lane_takes_the_place_of_another(several: Several) -> None:
    with several.further(1) as old, several.further(1) as new:
        several.goes_on(several.first, new)
        with contextlib.suppress(ConnectionError):
            while old.socket.recv(4096):  # acknowledgements of before, then its end
                pass
        several.goes_on(new)


def test_the_first_lane_may_be_opened_again(several: Several) -> None:
    several.first.close()
    with several.further(0) as again:
        several.goes_on(again)


def test_nothing_follows_close(several: Several) -> None:
    """A lane is over with it: what comes behind is of no message, and others bring the rest."""
    data = random.Random(SEED).randbytes(1024)
    with several.further(1) as second:
        several.receiver.start("receive", comm=several.comm, size=len(data))
        second.send(record(DATA, total=1024, payload=data[:512]))
        second.send(record(CLOSE, message=1))
        second.send(record(DATA, total=1024, offset=512, payload=bytes(512)))
        while not turned_away(second):
            pass  # acknowledgements
        several.first.send(record(DATA, total=1024, offset=512, payload=data[512:]))
        assert base64.b64decode(several.receiver.result()) == data


def test_close_on_every_lane_is_the_end_without_fin(several: Several) -> None:
    with several.further(1) as second:
        several.receiver.start("receive_error", comm=several.comm, size=64)
        for lane in (several.first, second):
            lane.send(record(CLOSE, message=1))
        assert several.receiver.result()[0] == "ncclRemoteError"
        said = several.receiver.call("warnings")
        assert len(said) == 1
        assert several.hosts.address[1] in said[0]


def test_the_plugin_sends_to_an_acceptor_written_from_the_document(hosts: Hosts) -> None:
    """Before a CREDIT at most the eager bytes, then the rest, over both lanes. A lane that is lost
    is opened again, and what it carried since the last ACK is sent again."""
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

        def read() -> None:
            """One record of the message, of any lane."""
            ready = select.select(lanes, [], [], 60)[0]
            kind, message, total, offset, payload = ready[0].record()
            assert (kind, message, total) == (DATA, 0, len(data))
            assert payload == data[offset : offset + len(payload)]
            received[offset] = payload

        sender.start("send", comm=comm, data=base64.b64encode(data).decode())
        read()
        assert sum(map(len, received.values())) <= 8192
        sizes = struct.pack("<Q", len(data))
        lanes[1].send(record(CREDIT, total=1, payload=sizes))
        lanes.pop().reset()
        lanes[0].send(record(CREDIT, total=1, payload=sizes))
        lanes.append(stack.enter_context(acceptor.accept()))
        assert lanes[1].index == 1
        while sum(map(len, received.values())) < len(data):
            read()
        lanes[0].send(record(ACK, message=1))
        assert sender.result() == len(data)
        sender.start("close_send", comm=comm)
        ends = []
        for lane in lanes:
            # A full lane may end in the middle of a record that another lane brought.
            with contextlib.suppress(EOFError, ConnectionError):
                while (end := lane.record())[0] != CLOSE:
                    pass  # what it had begun
                ends.append(end[1])
        assert set(ends) == {1}
        sender.result()
