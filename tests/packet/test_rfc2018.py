# SPDX-License-Identifier: Apache-2.0
"""RFC 2018, 2883: selective acknowledgments, received and sent; visible parts of RFC 6675, 8985."""

import struct

import pytest
from packet_rig import MS, SECOND, WINDOW, Rig, options_of, sack_of, seal, with_data
from scapy.layers.inet import TCP

from harp._core import Connection


def sack(*blocks: tuple[int, int]) -> list[object]:
    """Return the TCP options of a peer's segment with these blocks."""
    edges = [edge % 2**32 for block in blocks for edge in block]
    return [("NOP", None), ("NOP", None), ("SAck", tuple(edges))]


def flight(rig: Rig, segments: int = 8) -> tuple[object, int]:
    """Open a connection with full-sized segments in flight. Return it and the MSS."""
    conn = rig.open(sack=True)
    sent = rig.write(conn, bytes(segments * rig.mss))
    assert len(sent) == segments
    return conn, rig.mss


# ---- the receiver --------------------------------------------------------------------------------


def test_the_newest_block_comes_first(rig: Rig) -> None:
    """RFC 2018 section 4 (1) and (3)."""
    rig.open(sack=True)
    rig.send("A", b"x" * 100, seq=rig.seq + 100)
    rig.send("A", b"x" * 100, seq=rig.seq + 500)
    (answer,) = rig.send("A", b"x" * 100, seq=rig.seq + 300)
    assert sack_of(answer)[0] == (rig.seq + 300, rig.seq + 400)
    assert set(sack_of(answer)) == {(rig.seq + at, rig.seq + at + 100) for at in (100, 300, 500)}


def test_adjacent_pieces_are_one_block(rig: Rig) -> None:
    rig.open(sack=True)
    rig.send("A", b"x" * 100, seq=rig.seq + 100)
    (answer,) = rig.send("A", b"x" * 100, seq=rig.seq + 200)
    assert sack_of(answer) == [(rig.seq + 100, rig.seq + 300)]


def test_at_most_four_blocks_fit(rig: Rig) -> None:
    rig.open(sack=True)
    for i in range(8):
        (answer,) = rig.send("A", b"x" * 10, seq=rig.seq + 100 * (i + 1))
    assert 3 <= len(sack_of(answer)) <= 4


def test_three_blocks_fit_with_a_timestamp(rig: Rig) -> None:
    rig.open(sack=True, timestamps=True)
    for i in range(8):
        (answer,) = rig.send("A", b"x" * 10, seq=rig.seq + 100 * (i + 1))
    assert len(sack_of(answer)) == 3
    assert "Timestamp" in options_of(answer)


def test_blocks_vanish_as_holes_are_filled(rig: Rig) -> None:
    rig.open(sack=True)
    rig.send("A", b"x" * 100, seq=rig.seq + 100)
    (answer,) = rig.send("A", b"x" * 100)
    assert sack_of(answer) == []
    assert answer.ack == rig.seq + 200


def test_without_agreement_no_blocks_are_sent(rig: Rig) -> None:
    rig.open()
    (answer,) = rig.send("A", b"x" * 100, seq=rig.seq + 100)
    assert "SAck" not in options_of(answer)


def test_a_duplicate_below_the_ack_is_reported_first(rig: Rig) -> None:
    """RFC 2883 section 4.1.1."""
    rig.open(sack=True)
    rig.send_next(b"x" * 200)
    (answer,) = rig.send("A", b"x" * 100, seq=rig.seq - 200)
    assert sack_of(answer)[0] == (rig.seq - 200, rig.seq - 100)


def test_a_duplicate_within_a_block_is_reported_with_its_block(rig: Rig) -> None:
    """RFC 2883 section 4.2.1."""
    rig.open(sack=True)
    rig.send("A", b"x" * 300, seq=rig.seq + 100)
    (answer,) = rig.send("A", b"x" * 100, seq=rig.seq + 200)
    assert sack_of(answer)[:2] == [
        (rig.seq + 200, rig.seq + 300),
        (rig.seq + 100, rig.seq + 400),
    ]


def test_a_partial_duplicate_is_reported(rig: Rig) -> None:
    """RFC 2883 section 4.2.1: the first half of a segment had arrived before."""
    rig.open(sack=True)
    start = rig.seq
    rig.send("A", b"x" * 500, seq=start + 1000)
    rig.send("A", b"x" * 500, seq=start)
    (answer,) = rig.send("A", b"x" * 1000, seq=start)
    assert answer.ack == start + 1500
    assert sack_of(answer) == [(start, start + 500)]


@pytest.mark.parametrize("first", [0, 500])
def test_the_first_of_two_partial_duplicates_is_reported(rig: Rig, first: int) -> None:
    """RFC 2883 sections 4.2.2 and 4.2.3: below the ACK and above it."""
    rig.open(sack=True)
    start = rig.seq + first
    rig.send("A", b"x" * 100, seq=start + 2000)
    rig.send("A", b"x" * 100, seq=start + 100)
    rig.send("A", b"x" * 100, seq=start + 300)
    (answer,) = rig.send("A", b"x" * 600, seq=start)
    assert answer.ack == (rig.seq if first else start + 600)
    assert sack_of(answer) == [
        (start + 100, start + 200),
        *([(start, start + 600)] if first else []),
        (start + 2000, start + 2100),
    ]


def test_adjacent_duplicate_pieces_are_one_block(rig: Rig) -> None:
    """Linux: tools/testing/selftests/net/packetdrill/tcp_dsack_mult.pkt."""
    rig.open(sack=True)
    start = rig.seq
    for piece in (100, 200, 400, 700):
        rig.send("A", b"x" * 100, seq=start + piece)
    (answer,) = rig.send("A", b"x" * 600, seq=start)
    assert answer.ack == start + 600
    assert sack_of(answer) == [(start + 100, start + 300), (start + 700, start + 800)]


# ---- the sender ----------------------------------------------------------------------------------


def test_two_holes_are_filled_in_one_round_trip(rig: Rig) -> None:
    _, mss = flight(rig, 10)
    start = rig.ack
    blocks = sack((start + 4 * mss, start + 10 * mss), (start + mss, start + 3 * mss))
    answers = rig.send("A", ack=start, options=blocks) + rig.wait_tcp(2 * MS)
    retransmitted = {segment.seq for segment in with_data(answers)}
    assert {start, start + 3 * mss} <= retransmitted
    assert not retransmitted & {start + i * mss for i in (1, 2, 4, 5, 6, 7, 8, 9)}


def test_a_lost_tail_is_probed_before_the_timeout_of_a_long_path(rig: Rig) -> None:
    """RFC 8985 section 7.2: if the RTO would expire first, the probe is sent instead."""
    conn = rig.open(sack=True, rtt_ns=40 * MS)
    for _ in range(20):
        sent = rig.write(conn, bytes(2 * rig.mss))
        rig.wait(40 * MS)
        rig.send("A", ack=sent[1].seq + rig.mss)
    assert conn.info()["rto_ns"] < 2 * conn.info()["srtt_ns"]
    timeouts = conn.info()["rto_count"]
    sent = rig.write(conn, bytes(4 * rig.mss))
    while not (probes := with_data(rig.wait_tcp(MS))):
        pass
    assert [segment.seq for segment in probes] == [sent[3].seq]
    assert conn.info()["rto_count"] == timeouts
    rig.wait(40 * MS)
    last = (sent[3].seq, sent[3].seq + rig.mss)
    replies = rig.send("A", ack=sent[0].seq, options=sack(last)) + rig.wait_tcp(15 * MS)
    assert [segment.seq for segment in with_data(replies)][:1] == [sent[0].seq]
    assert conn.info()["rto_count"] == timeouts


def long_path(rig: Rig, **offer: object) -> Connection:
    """A connection with an RTT of 100 ms, an RTO of 250 ms, and a probe after 200 ms."""
    conn = rig.open(rtt_ns=100 * MS, **offer)
    rig.write(conn, bytes(2 * rig.mss))
    rig.wait(100 * MS)
    rig.ack += 2 * rig.mss
    rig.send("A")
    assert conn.info()["rto_ns"] // MS in range(240, 260)
    assert conn.info()["srtt_ns"] // MS in range(100, 103)
    return conn


def send_dsack(rig: Rig) -> list[TCP]:
    return rig.send("A", options=sack((rig.ack - rig.mss, rig.ack)))


USELESS_ACKS = {
    "dsack": send_dsack,
    "sack-of-unsent-data": lambda rig: rig.send(
        "A", options=sack((rig.ack + 9 * rig.mss, rig.ack + 10 * rig.mss))
    ),
    "sack-of-a-part": lambda rig: rig.send("A", options=sack((rig.ack + 10, rig.ack + 20))),
    "old-sack": lambda rig: rig.send(
        "A", ack=rig.ack - 2 * rig.mss, options=sack((rig.ack - rig.mss, rig.ack))
    ),
    "old-ack": lambda rig: rig.send("A", ack=rig.ack - rig.mss),
    "window-update": lambda rig: rig.send("A", window=WINDOW - rig.now // MS % 1000),
    "beyond-the-window": lambda rig: rig.send("A", seq=rig.seq + 2**24),
    "keepalive": lambda rig: rig.send("A", seq=rig.seq - 1),
}


def send_useless_acks(rig: Rig, name: str, count: int, pause_ns: int) -> list[TCP]:
    """Send ACKs that acknowledge nothing new. Return the data that the stack sends meanwhile."""
    sent = []
    for _ in range(count):
        sent += rig.wait_tcp(pause_ns - MS)
        sent += USELESS_ACKS[name](rig)
    return with_data(sent)


@pytest.mark.parametrize("name", USELESS_ACKS)
def test_acks_without_new_data_prevent_neither_probe_nor_timeout(rig: Rig, name: str) -> None:
    """RFC 6298 (5.3): the timeout follows one RTO after the probe (RFC 8985 section 7.3)."""
    conn = long_path(rig, sack=True)
    sent = rig.write(conn, bytes(4 * rig.mss))
    rto = conn.info()["rto_ns"]
    due = rig.now + 2 * conn.info()["srtt_ns"] + rto
    out = send_useless_acks(rig, name, 8, 50 * MS)
    assert [s.seq for s in out] == [sent[3].seq]
    assert conn.info()["rto_count"] == 0
    while rig.now < due + 2 * MS:
        out += send_useless_acks(rig, name, 1, 10 * MS)
    assert conn.info()["rto_count"] == 1
    assert sent[0].seq in [s.seq for s in out]


@pytest.mark.parametrize("name", ["old-ack", "window-update", "beyond-the-window", "keepalive"])
def test_acks_without_new_data_do_not_move_the_timeout(rig: Rig, name: str) -> None:
    """RFC 6298 (5.3), without SACK."""
    conn = long_path(rig)
    rig.write(conn, bytes(4 * rig.mss))
    due = rig.now + conn.info()["rto_ns"]
    while rig.now < due - 15 * MS:
        assert send_useless_acks(rig, name, 1, 10 * MS) == []
    rig.wait(due + 2 * MS - rig.now)
    assert conn.info()["rto_count"] == 1


def test_a_window_that_opens_and_closes_does_not_move_the_timeout(rig: Rig) -> None:
    conn = long_path(rig)
    rig.write(conn, bytes(4 * rig.mss))
    due = rig.now + conn.info()["rto_ns"]
    for _ in range(23):
        rig.wait(8 * MS)
        rig.send("A", window=0)
        rig.send("A")
    assert conn.info()["rto_count"] == 0
    rig.wait(due + 2 * MS - rig.now)
    assert conn.info()["rto_count"] == 1


INVALID_BLOCKS = {
    "reversed": lambda una, nxt: [(una + 2000, una + 1000)],
    "empty": lambda una, nxt: [(una + 1000, una + 1000)],
    "below": lambda una, nxt: [(una - 5000, una - 3000)],
    "beyond": lambda una, nxt: [(nxt, nxt + 5000)],
    "across-the-end": lambda una, nxt: [(nxt - 100, nxt + 100)],
    "whole-space": lambda una, nxt: [(una, una + 2**31)],
    "twice": lambda una, nxt: [(una + 1460, una + 2920)] * 3,
    "nested": lambda una, nxt: [(una + 1460, una + 8000), (una + 2000, una + 3000)],
    "inside-a-segment": lambda una, nxt: [(una + 10, una + 20), (una + 30, una + 40)],
    "all": lambda una, nxt: [(una, nxt)],
}


@pytest.mark.parametrize("name", INVALID_BLOCKS)
def test_invalid_sack_blocks_are_ignored(rig: Rig, name: str) -> None:
    conn, mss = flight(rig)
    end = rig.ack + 8 * mss
    for _ in range(20):
        rig.send("A", ack=rig.ack, options=sack(*INVALID_BLOCKS[name](rig.ack, end)))
    assert conn.error == 0
    rig.send("A", ack=end)
    assert conn.acked_bytes == 8 * mss
    assert rig.stat("frames_tcp_tx") == 0


def test_after_a_timeout_sacked_bytes_do_not_open_the_window(rig: Rig) -> None:
    """RFC 3465 section 2.3: the ACK that fills the hole covers bytes that were SACKed before."""
    conn = rig.open(sack=True)
    sent = rig.write(conn, bytes(30 * rig.mss))
    assert len(sent) == 10
    edges = (sent[1].seq, sent[0].seq + 10 * rig.mss)
    rig.send("A", ack=sent[0].seq, options=sack(edges))
    while conn.info()["rto_count"] == 0:
        rig.wait(5 * MS)
    rig.send("A", ack=sent[0].seq + 10 * rig.mss)
    assert conn.info()["snd_cwnd_bytes"] == 2 * rig.mss


def test_data_discarded_by_close_is_not_sacked(rig: Rig) -> None:
    conn = rig.open(sack=True)
    assert sack_of(rig.send("A", b"ahead", seq=rig.seq + 10)[-1])
    conn.close()
    (fin,) = rig.tcp(rig.poll())
    assert "F" in str(fin.flags)
    assert sack_of(fin) == []


def test_a_reneging_peer_gets_all_data(rig: Rig) -> None:
    """RFC 2018 section 8: a peer drops SACKed data, and the stack sends it again."""
    _, mss = flight(rig)
    start = rig.ack
    rig.send("A", ack=start, options=sack((start + mss, start + 8 * mss)))
    arrived = {s.seq for s in with_data(rig.wait_tcp(2 * SECOND))}
    for _ in range(20):
        rig.ack += mss if rig.ack in arrived else 0
        arrived |= {s.seq for s in with_data(rig.send("A") + rig.wait_tcp(2 * SECOND))}
        if rig.ack == start + 8 * mss:
            break
    assert rig.ack == start + 8 * mss


@pytest.mark.parametrize("length", [2, 3, 9, 11, 35, 42])
def test_a_sack_option_of_a_wrong_length_is_refused(rig: Rig, length: int) -> None:
    conn, _ = flight(rig)
    body = struct.pack("!BB", 5, length) + bytes(max(0, min(length, 36) - 2))
    options = body[:36] + b"\1" * (-len(body[:36]) % 4)
    segment = bytearray(bytes(rig.segment("A"))[:20] + options)
    segment[12] = (len(segment) // 4) << 4
    before = rig.stat("drop_tcp_options")
    rig.inject(seal(rig, bytes(segment)))
    assert rig.stat("drop_tcp_options") == before + 1
    assert conn.error == 0
