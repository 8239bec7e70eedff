# SPDX-License-Identifier: Apache-2.0
"""RFC 5681, 6298, 6582, 6928, 3042, 3522: windows, losses and time-outs as a peer sees them."""

import pytest
from packet_rig import MODULUS, MS, PORT, SECOND, Rig, data_of, with_data

from harp._core import Connection


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_syn_lost_twice_means_a_window_of_one(rig: Rig, lost: int) -> None:
    """RFC 6928 section 2: one may be lost by chance."""
    rig.listen()
    reply = rig.says("S", ack=0, options=rig.syn_options())[0]
    for _ in range(lost):
        while not rig.tcp(rig.poll(10 * MS)):
            pass
    conn = rig.completes(reply)
    assert len(rig.sends(conn, bytes(20 * rig.mss))) == (10 if lost < 2 else 1)


def test_acks_of_single_bytes_do_not_open_the_window_faster(rig: Rig) -> None:
    """ACK division (Savage et al.): bytes are counted, not ACKs; RFC 3465."""
    conn = rig.open(wscale=4)
    rig.sends(conn, bytes(60 * rig.mss))
    before = conn.info()["snd_cwnd_bytes"]
    for _ in range(100):
        rig.ack += 1
        rig.says("A")
    assert conn.info()["snd_cwnd_bytes"] <= before + rig.mss


def test_three_duplicate_acks_send_the_missing_segment(rig: Rig) -> None:
    """RFC 5681 section 3.2."""
    conn = rig.open()
    rig.sends(conn, bytes(8 * rig.mss))
    answers = [with_data(rig.says("A")) for _ in range(3)]
    assert any(segment.seq == rig.ack for segment in answers[2])
    assert not any(segment.seq == rig.ack for segment in answers[0] + answers[1])


def test_two_duplicate_acks_let_new_data_out(rig: Rig) -> None:
    """RFC 3042: limited transmit."""
    conn = rig.open()
    sent = rig.sends(conn, bytes(14 * rig.mss))
    end = sent[-1].seq + len(sent[-1].payload)
    fresh = with_data(rig.says("A")) + with_data(rig.says("A"))
    assert [segment.seq for segment in fresh] == [end, (end + rig.mss) % MODULUS]


def test_a_partial_ack_sends_the_next_hole(rig: Rig) -> None:
    """RFC 6582 section 3.2 step 3."""
    conn = rig.open()
    rig.sends(conn, bytes(8 * rig.mss))
    for _ in range(4):
        rig.says("A")
    rig.ack += 2 * rig.mss
    again = with_data(rig.says("A"))
    assert rig.ack in [segment.seq for segment in again]


def handshake(rig: Rig, opens: str, answer_after_ns: int, **options: object) -> Connection:
    """Without timestamps, by us ("active") or by the peer, which answers so late and only once."""
    if opens == "passive":
        return rig.open(rtt_ns=answer_after_ns - MS, listen=options)
    conn = rig.stack.connect(rig.peer, PORT, **options)
    first = rig.tcp(rig.poll(0))[0]
    rig.sport, rig.dport, rig.ack = PORT, first.sport, first.seq + 1
    rig.wait(answer_after_ns - MS)
    rig.says("SA", options=rig.syn_options())
    rig.seq += 1
    assert conn.state == "ESTABLISHED"
    return conn


FIRST_RTO = {"default": (0, 1), "data-center": (200 * MS, 2)}


@pytest.mark.parametrize("segments", [1, 10])
@pytest.mark.parametrize("opens", ["active", "passive"])
@pytest.mark.parametrize("name", FIRST_RTO)
def test_a_path_of_250_ms_has_its_first_flight_sent_once(
    rig: Rig, name: str, opens: str, segments: int
) -> None:
    """RFC 6298 (2.1), and (5.7) where the first RTO is shorter and repeats the SYN in vain."""
    initial_rto_ns, syns = FIRST_RTO[name]
    conn = handshake(rig, opens, 250 * MS, initial_rto_ns=initial_rto_ns)
    assert conn.info()["rto_count"] == syns - 1
    sent = rig.sends(conn, bytes(segments * rig.mss))
    assert len(sent) == segments
    assert with_data(rig.waits(249 * MS)) == []
    rig.ack += segments * rig.mss
    rig.says("A")
    assert conn.info()["retransmits"] == 0
    assert conn.info()["srtt_ns"] // MS in range(248, 253)


@pytest.mark.parametrize("opens", ["active", "passive"])
@pytest.mark.parametrize(("initial_rto_ns", "after_ns"), [(0, 3 * SECOND), (200 * MS, 600 * MS)])
def test_after_a_syn_sent_twice_the_first_timeout_is_longer(
    rig: Rig, initial_rto_ns: int, after_ns: int, opens: str
) -> None:
    """RFC 6298 (5.7): 3 s for 1 s, and as much more of another first RTO."""
    first_ns = initial_rto_ns or SECOND
    conn = handshake(rig, opens, first_ns + 100 * MS, initial_rto_ns=initial_rto_ns)
    sent = rig.sends(conn, bytes(2 * rig.mss))
    assert with_data(rig.waits(after_ns - 2 * MS)) == []
    assert [s.seq for s in with_data(rig.waits(3 * MS))] == [sent[0].seq]


def test_the_first_sample_replaces_the_longer_timeout(rig: Rig) -> None:
    conn = handshake(rig, "active", SECOND + 100 * MS)
    assert conn.info()["rto_ns"] == 3 * SECOND
    rig.sends(conn, bytes(2 * rig.mss))
    rig.ack += 2 * rig.mss
    rig.says("A")
    assert conn.info()["rto_ns"] < 100 * MS


@pytest.mark.parametrize("congestion", ["newreno", "cubic"])
def test_slow_start_goes_on_after_the_timeout_of_a_lone_segment(rig: Rig, congestion: str) -> None:
    """RFC 5681 section 3.1: its ACK ends the recovery, and the loss window was what limited it."""
    conn = rig.open(listen={"congestion": congestion})
    rig.sends(conn, bytes(rig.mss))
    assert len(with_data(rig.waits(60 * MS))) == 1
    assert conn.info()["snd_cwnd_bytes"] == rig.mss
    rig.ack += rig.mss
    rig.says("A")
    assert conn.info()["snd_cwnd_bytes"] == 2 * rig.mss
    assert len(rig.sends(conn, bytes(20 * rig.mss))) == 2
    rig.ack += 2 * rig.mss
    rig.says("A")
    assert conn.info()["snd_cwnd_bytes"] >= 3 * rig.mss


def test_the_undone_timeout_of_a_lone_segment_leaves_the_window_as_it_was(rig: Rig) -> None:
    """The window had not limited anything, so the ACK must not make it larger either."""
    conn = rig.open(timestamps=True)
    window = conn.info()["snd_cwnd_bytes"]
    rig.sends(conn, bytes(rig.mss - 12))
    original = rig.tsecr
    assert len(with_data(rig.waits(60 * MS))) == 1
    rig.tsecr = original
    rig.ack += rig.mss - 12
    rig.says("A")
    assert rig.stat("tcp_spurious_rto") == 1
    assert conn.info()["snd_cwnd_bytes"] == window


def test_an_ack_in_the_middle_of_a_segment_is_honoured(rig: Rig) -> None:
    conn = rig.open()
    rig.sends(conn, bytes(range(200)))
    rig.ack += 50
    rig.says("A")
    assert conn.acked_bytes == 50
    again = with_data(rig.waits(2 * SECOND))
    assert again[0].seq == rig.ack
    assert data_of(again[0])[:10] == bytes(range(50, 60))
