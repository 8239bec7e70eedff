# SPDX-License-Identifier: Apache-2.0
"""An open Connection: options, readable bytes, frames, half-close, loss state."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import harp


@dataclass
class Pair:
    """A connection between two stacks that the test polls."""

    stacks: tuple[harp.Stack, harp.Stack]
    here: harp.Connection
    there: harp.Connection
    now_ns: int

    def step(self, count: int = 3) -> None:
        for _ in range(count):
            self.now_ns += 10**6
            for stack in self.stacks:
                stack.poll(self.now_ns)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        harp.Wire(strict=True) as wire,
        harp.Stack(wire.port(0)) as a,
        harp.Stack(wire.port(1)) as b,
    ):
        a.address_add("10.0.0.1", 24)
        b.address_add("10.0.0.2", 24)
        listener = b.listen(7000, sack=False, user_timeout_ns=7 * 10**9)
        here, there, now_ns = a.connect("10.0.0.2", 7000, mss_bytes=600), None, 0
        while there is None:
            now_ns += 10**6
            a.poll(now_ns)
            b.poll(now_ns)
            there = listener.accept()
        yield Pair((a, b), here, there, now_ns)
        here.abort()
        there.abort()
        listener.close()


def test_options_of_an_open_connection(pair: Pair) -> None:
    before = pair.there.options()
    assert before["user_timeout_ns"] == 7 * 10**9, "inherited from the listener"
    assert before["sack"] is False
    assert before["timestamps"] is before["window_scaling"] is True
    assert before["congestion"] == "cubic"
    assert before["ecn"] == "default"
    assert pair.here.options()["mss_bytes"] == 600
    assert pair.here.info()["snd_mss_bytes"] == 588
    pair.there.set_options(**before)  # all values that options() returns can be set
    pair.there.set_options(congestion="newreno", tx_frames=40, keepalive_idle_ns=10**9)
    changed = {
        "congestion": "newreno",
        "tx_frames": 40,
        "keepalive_idle_ns": 10**9,
        "keepalive_interval_ns": 10**9,
    }
    assert pair.there.options() == before | changed


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mss_bytes": 87}, OSError),
        ({"dscp": 64}, OSError),
        ({"delayed_ack_ns": 10**9}, OSError),
        ({"sack": True}, OSError),  # negotiated in the handshake
        ({"ecn": "request"}, OSError),
        ({"ecn": "maybe"}, ValueError),
        ({"congestion": "dctcp"}, OSError),  # without ECN
        ({"congestion": "fastest"}, ValueError),
        ({"rx_frames": -1}, OverflowError),
        ({"mss_bytes": 2**32}, OverflowError),
        ({"color": 1}, TypeError),
    ],
)
def test_refused_options_change_nothing(
    pair: Pair, options: dict[str, Any], error: type[Exception]
) -> None:
    before = pair.there.options()
    with pytest.raises(error):
        pair.there.set_options(user_timeout_ns=1, **options)
    assert pair.there.options() == before


def test_readable_bytes_and_shutdown_of_reading(pair: Pair) -> None:
    assert pair.there.readable_bytes == 0
    pair.here.send(bytes(1000))
    pair.step()
    assert pair.there.readable_bytes == 1000
    assert len(pair.there.recv(300)) == 300
    assert pair.there.readable_bytes == 700
    with pytest.raises(OSError, match="Invalid"):
        pair.there.shutdown(3)
    pair.there.shutdown(socket.SHUT_RD)
    pair.here.send(bytes(500))
    pair.step()
    assert pair.there.readable_bytes == 0
    assert pair.there.recv() == b""
    assert pair.here.acked_bytes == 1500
    assert pair.stacks[1].stats()["rx_discarded_bytes"] == 1200
    pair.there.send(b"still")
    pair.step()
    assert pair.here.recv() == b"still"


def test_the_loss_state_of_a_connection(pair: Pair) -> None:
    info = pair.here.info()
    assert info["ca_state_name"] == "open"
    assert info["snd_ssthresh_bytes"] == harp.SSTHRESH_NONE
    assert info["backoff"] == info["lost_out_segs"] == info["retrans_out_segs"] == 0
    pair.here.send(bytes(1000))
    while pair.here.info()["backoff"] < 2:  # the peer is not polled
        pair.now_ns += 10**6
        pair.stacks[0].poll(pair.now_ns)
    info = pair.here.info()
    assert info["ca_state_name"] == "loss"
    assert info["lost_out_segs"] + info["retrans_out_segs"] == 2
    assert info["snd_ssthresh_bytes"] < harp.SSTHRESH_NONE
    pair.step(200)
    info = pair.here.info()
    assert (info["ca_state_name"], info["backoff"], info["retrans_out_segs"]) == ("open", 0, 0)


def test_a_received_frame_lives_until_its_stack_is_closed(pair: Pair) -> None:
    here, there, receiver = pair.here, pair.there, pair.stacks[1]
    with pytest.raises(BlockingIOError):
        there.recv_frame()
    frame = here.frame()
    memoryview(frame)[:3] = b"abc"
    here.send_frame(frame, 3)
    pair.step()
    received = there.recv_frame()
    assert received is not None
    with memoryview(received) as view:
        assert bytes(view) == b"abc"
        with pytest.raises(BufferError):
            receiver.close()
        with pytest.raises(TypeError):
            view[0] = 1
    assert not receiver.closed
    here.shutdown()
    pair.step()
    assert there.recv_frame() is None
    receiver.close()
    assert received.released
    for call in (there.recv_frame, there.frame, lambda: memoryview(received)):
        with pytest.raises(ValueError, match=r"closed|released"):
            call()
