# SPDX-License-Identifier: Apache-2.0
"""RFC 9293: sequence numbers, windows and data (sections 3.4, 3.8.6, 3.10.7.4)."""

import itertools
from contextlib import suppress

import pytest
from packet_rig import MODULUS, MS, SECOND, CounterChanges, Rig, data_of, flags_of, with_data
from scapy.layers.inet import TCP

from harp._core import Connection


def read_all(conn: Connection) -> bytes:
    data = b""
    with suppress(BlockingIOError):
        while piece := conn.recv():
            data += piece
    return data


def test_sequence_numbers_wrap(rig: Rig) -> None:
    rig.seq = MODULUS - 20
    conn = rig.open()
    for i in range(10):
        rig.send_next(bytes([48 + i]) * 7)
    assert read_all(conn) == b"".join(bytes([48 + i]) * 7 for i in range(10))


def test_a_zero_window_is_probed_with_growing_pauses(rig: Rig) -> None:
    conn = rig.open()
    rig.send("A", window=0)
    conn.send(b"waiting")
    probes, times = 0, []
    for _ in range(200):
        if segments := rig.wait_tcp(100 * MS):
            probes += len(segments)
            times.append(rig.now)
    assert 3 <= probes <= 20
    assert rig.stat("tcp_zero_window_probes") == probes
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(longer >= gap - 200 * MS for gap, longer in itertools.pairwise(gaps))
    assert gaps[-1] > 2 * gaps[0], "section 3.8.6.1: exponential backoff"
    assert conn.error == 0
    sent = with_data(rig.send("A", window=1000))
    assert [data_of(segment) for segment in sent] == [b"waiting"]


def test_a_shrunk_zero_window_is_probed_for_minutes(rig: Rig) -> None:
    """MUST-34: data of the old window is in flight. MUST-37: ACKs keep the connection open."""
    conn = rig.open(listen={"user_timeout_ns": 10 * SECOND})
    assert rig.write(conn, b"taken back")
    rig.send("A", window=0)
    for _ in range(120):
        if rig.wait_tcp(5 * SECOND):
            rig.send("A", window=0)
    assert conn.error == 0
    retransmitted = with_data(rig.send("A", window=1000) + rig.wait_tcp(SECOND))
    assert {data_of(segment) for segment in retransmitted} == {b"taken back"}


def test_a_shrunk_zero_window_that_reopens_between_late_polls_keeps_the_connection(
    rig: Rig,
) -> None:
    conn = rig.open(listen={"user_timeout_ns": 10 * SECOND})
    rig.write(conn, b"taken back")
    rig.send("A", window=0)
    rig.inject(rig.frame(rig.segment("A", window=1000)), after_ns=5 * SECOND)
    assert conn.error == 0


def test_a_shrunk_zero_window_without_answers_ends_in_the_user_timeout(rig: Rig) -> None:
    conn = rig.open(listen={"user_timeout_ns": 10 * SECOND})
    rig.write(conn, b"taken back")
    rig.send("A", window=0)
    rig.wait_tcp(60 * SECOND)
    assert conn.error == 110


@pytest.mark.parametrize("size", [1000, 1300])
def test_a_window_that_is_larger_than_the_budget_is_closed(rig: Rig, size: int) -> None:
    """Partly filled frames exhaust the budget first: the window is closed, and reopened later."""
    conn = rig.open(listen={"rx_frames": 64})
    for _ in range(64):
        rig.send_next(bytes(size))
    assert conn.info()["rcv_wnd_bytes"] > 0
    with CounterChanges(rig) as counters:
        (answer,) = rig.send("A", bytes(size))
    assert counters.changes == {"drop_tcp_rx_budget": 1}
    assert (answer.ack, answer.window) == (rig.seq, 0)
    assert [a.window for a in rig.send("A", seq=rig.seq - 1)] == [0]
    read = 0
    while read < 64 * size:
        read += len(conn.recv())
    updates = rig.tcp(rig.poll())
    assert updates
    assert updates[-1].window >= 32 * size
    rig.send_next(bytes(size))
    assert conn.recv() == bytes(size)


def test_data_in_flight_to_a_closing_window_still_acknowledges(rig: Rig) -> None:
    """Its data is dropped, its ACK is processed, and a later segment's window is newer."""
    conn = rig.open(listen={"rx_frames": 64})
    conn.send(b"a")
    rig.poll()
    for _ in range(64):
        rig.send_next(bytes(1000))
    assert [a.window for a in rig.send("A", bytes(1000))] == [0]
    behind = rig.seq + 1000
    with CounterChanges(rig) as counters:
        rig.send("A", bytes(1000), seq=behind, ack=rig.ack + 1)
        rig.send("A", seq=behind + 1000, ack=rig.ack + 1)
    assert counters.changes == {"drop_tcp_rx_budget": 1}
    assert conn.info()["bytes_acked"] == 1
    rig.send("A", seq=rig.seq, ack=rig.ack + 1, window=7)
    assert conn.info()["snd_wnd_bytes"] == 7 << conn.info()["snd_wscale"]


def test_an_ack_after_a_shrunk_window_lies_within_it(rig: Rig) -> None:
    """The peer would discard an ACK whose sequence number is beyond its window."""
    conn = rig.open()
    rig.write(conn, bytes(5000))
    rig.send("A", window=1000)
    answers = rig.send_next(b"hello", window=1000) + rig.wait_tcp(MS)
    assert [(a.seq - rig.ack, a.ack) for a in answers if not data_of(a)] == [(1000, rig.seq)]
    conn.recv()
    conn.abort()
    (rst,) = rig.tcp(rig.poll())
    assert (str(rst.flags), rst.seq) == ("RA", rig.ack + 1000)


def test_a_window_that_shrinks_by_rounding_is_not_a_shrunk_window(rig: Rig) -> None:
    """RFC 7323 section 2.4."""
    conn = rig.open(wscale=7)
    rig.write(conn, bytes(1000))
    rig.send("A", window=7)
    answers = rig.send_next(b"hello", window=7) + rig.wait_tcp(MS)
    assert [a.seq - rig.ack for a in answers if not data_of(a)] == [1000]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_zero_window_does_not_keep_a_closed_connection_forever(rig: Rig, in_flight: bool) -> None:
    """RFC 6429: a connection without an application may end although the peer sends ACKs."""
    conn = rig.open(listen={"user_timeout_ns": 10 * SECOND})
    if in_flight:
        rig.write(conn, b"for nobody")
    rig.send("A", window=0)
    conn.send(b"for nobody")
    conn.close()
    for _ in range(30):
        if rig.wait_tcp(5 * SECOND):
            rig.send("A", window=0)
    assert rig.stat("tcp_conns") == 0


def test_a_stale_ack_does_not_move_the_window_back(rig: Rig) -> None:
    conn = rig.open()
    rig.write(conn, b"first")
    rig.send("A", ack=rig.ack + 5, window=5000)
    rig.send("A", ack=rig.ack, window=10)
    assert conn.info()["snd_wnd_bytes"] == 5000


def pushed(segments: list[TCP]) -> list[int]:
    """Return the indexes of the segments with PSH."""
    return [i for i, flags in enumerate(flags_of(segments)) if "P" in flags]


def long_path(rig: Rig, **listen: object) -> Connection:
    """A connection with an RTT of 20 ms, on which a full window does not end with PSH."""
    return rig.open(rtt_ns=20 * MS, listen=listen, wscale=4)


def acknowledge_all(rig: Rig, sent: list[TCP]) -> list[TCP]:
    """Acknowledge data until the stack sends no more. Return all segments, including `sent`."""
    more = sent
    while more:
        rig.ack = more[-1].seq + len(data_of(more[-1]))
        more = with_data(rig.send("A") + rig.wait_tcp(19 * MS))
        sent = sent + more
    return sent


def test_push_marks_the_end_of_each_write_behind_a_full_window(rig: Rig) -> None:
    conn = long_path(rig)
    sent = []
    for segments in (10, 3, 8):
        sent += rig.write(conn, bytes(segments * rig.mss))
    assert len(sent) == 10, "the initial window"
    sent = acknowledge_all(rig, sent)
    assert len(sent) == 21
    assert pushed(sent) == [9, 12, 20]


def test_writes_between_two_polls_share_one_push(rig: Rig) -> None:
    conn = long_path(rig)
    for _ in range(4):
        conn.send(bytes(rig.mss))
    conn.send(b"end")
    assert pushed(with_data(rig.tcp(rig.poll()))) == [4]


def test_a_partial_write_does_not_end_with_push(rig: Rig) -> None:
    """The application sends the rest as soon as the queue has space."""
    conn = long_path(rig, tx_frames=40)
    data = bytes(50 * rig.mss)
    accepted = conn.send(data)
    assert accepted == 40 * rig.mss
    sent = with_data(rig.tcp(rig.poll()))
    assert len(sent) == 10
    while accepted < len(data):
        rig.ack += 2 * rig.mss
        sent += with_data(rig.send("A"))
        assert accepted > len(sent) * rig.mss, "the queue is not empty"
        accepted += conn.send(data[accepted:])
    sent = acknowledge_all(rig, sent + with_data(rig.wait_tcp(20 * MS)))
    assert len(sent) == 50
    assert pushed(sent) == [49]


def test_a_retransmission_has_the_push_of_its_segment(rig: Rig) -> None:
    conn = long_path(rig)
    first = rig.write(conn, bytes(rig.mss))
    rig.write(conn, bytes(3 * rig.mss))
    answers = rig.send("A") + rig.send("A") + rig.send("A")
    assert [(s.seq, "P" in str(s.flags)) for s in with_data(answers)] == [(first[0].seq, True)]


def test_a_split_segment_keeps_push_on_its_last_piece(rig: Rig) -> None:
    """A smaller path MTU splits queued segments, and PSH stays on the last piece of each."""
    conn = long_path(rig)
    sent = rig.write(conn, bytes(10 * rig.mss))
    rig.write(conn, bytes(rig.mss))
    rig.write(conn, bytes(rig.mss))
    rig.stack.route_add(rig.peer, 128 if rig.family == "ipv6" else 32, mtu_bytes=1300)
    split = acknowledge_all(rig, sent)[10:]
    assert [len(data_of(s)) for s in split] == [
        1300 - rig.headers,
        rig.mss + rig.headers - 1300,
    ] * 2
    assert pushed(split) == [1, 3]


def test_push_marks_the_last_segment_that_the_window_allows(rig: Rig) -> None:
    """The stack can send no more before an ACK, so PSH tells the receiver not to delay it."""
    conn = rig.open()
    segments = rig.write(conn, bytes(30 * rig.mss))
    assert ["P" in flags for flags in flags_of(segments)] == [False] * 9 + [True]


def test_push_is_rare_in_a_large_window(rig: Rig) -> None:
    conn = rig.open(wscale=4)
    pushed = sent = 0
    for _ in range(6):
        room = conn.send_room
        segments = rig.write(conn, bytes(room)) if room else rig.wait_tcp(MS)
        sent += len(segments)
        pushed += sum("P" in flags for flags in flags_of(segments))
        if segments:
            rig.ack = segments[-1].seq + len(segments[-1].payload)
        more = with_data(rig.send("A"))
        sent += len(more)
        pushed += sum("P" in flags for flags in flags_of(more))
        if more:
            rig.ack = more[-1].seq + len(more[-1].payload)
    assert sent > 100
    assert pushed <= 12


def test_urgent_data_is_delivered_in_line(rig: Rig) -> None:
    conn = rig.open()
    rig.send_next(b"urgent!", flags="PAU", urgptr=3)
    assert conn.recv() == b"urgent!"


def test_small_writes_share_segments(rig: Rig) -> None:
    conn = rig.open()
    for _ in range(100):
        conn.send(b"0123456789")
    segments = with_data(rig.tcp(rig.poll()))
    assert len(segments) == 1
    assert len(data_of(segments[0])) == 1000


def test_reserved_bits_are_ignored(rig: Rig) -> None:
    """MUST-1: they are zero in segments that the stack sends."""
    conn = rig.open()
    reply = (rig.send_next(b"reserved", reserved=7) + rig.tcp(rig.poll()))[0]
    assert conn.recv() == b"reserved"
    assert reply.reserved == 0
