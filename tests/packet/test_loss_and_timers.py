# SPDX-License-Identifier: Apache-2.0
"""RFC 5681, 6298, 6582, 6928, 3042, 3522: windows, losses and timeouts, observed by a peer."""

import pytest
from packet_rig import MODULUS, MS, PORT, SECOND, Rig, data_of, with_data

from harp._core import Connection


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_syn_lost_twice_means_a_window_of_one(rig: Rig, lost: int) -> None:
    """RFC 6928 section 2: the loss of a single SYN does not reduce the initial window."""
    rig.listen()
    reply = rig.send("S", ack=0, options=rig.syn_options())[0]
    for _ in range(lost):
        while not rig.tcp(rig.poll(10 * MS)):
            pass
    conn = rig.complete_handshake(reply)
    assert len(rig.write(conn, bytes(20 * rig.mss))) == (10 if lost < 2 else 1)


def test_acks_of_single_bytes_do_not_open_the_window_faster(rig: Rig) -> None:
    """RFC 3465 counts bytes, not ACKs, against ACK division (Savage et al.)."""
    conn = rig.open(wscale=4)
    rig.write(conn, bytes(60 * rig.mss))
    before = conn.info()["snd_cwnd_bytes"]
    for _ in range(100):
        rig.ack += 1
        rig.send("A")
    assert conn.info()["snd_cwnd_bytes"] <= before + rig.mss


def test_three_duplicate_acks_send_the_missing_segment(rig: Rig) -> None:
    """RFC 5681 section 3.2."""
    conn = rig.open()
    rig.write(conn, bytes(8 * rig.mss))
    answers = [with_data(rig.send("A")) for _ in range(3)]
    assert any(segment.seq == rig.ack for segment in answers[2])
    assert not any(segment.seq == rig.ack for segment in answers[0] + answers[1])


def test_two_duplicate_acks_let_new_data_out(rig: Rig) -> None:
    """RFC 3042: limited transmit."""
    conn = rig.open()
    sent = rig.write(conn, bytes(14 * rig.mss))
    end = sent[-1].seq + len(sent[-1].payload)
    fresh = with_data(rig.send("A")) + with_data(rig.send("A"))
    assert [segment.seq for segment in fresh] == [end, (end + rig.mss) % MODULUS]


def test_a_partial_ack_sends_the_next_hole(rig: Rig) -> None:
    """RFC 6582 section 3.2 step 3."""
    conn = rig.open()
    rig.write(conn, bytes(8 * rig.mss))
    for _ in range(4):
        rig.send("A")
    rig.ack += 2 * rig.mss
    retransmitted = with_data(rig.send("A"))
    assert rig.ack in [segment.seq for segment in retransmitted]


def handshake(rig: Rig, opens: str, answer_after_ns: int, **options: object) -> Connection:
    """Open a connection without timestamps, "active" (by the stack) or "passive" (by the peer).

    The peer answers once, after answer_after_ns.
    """
    if opens == "passive":
        return rig.open(rtt_ns=answer_after_ns - MS, listen=options)
    conn = rig.stack.connect(rig.peer, PORT, **options)
    first = rig.tcp(rig.poll(0))[0]
    rig.sport, rig.dport, rig.ack = PORT, first.sport, first.seq + 1
    rig.wait(answer_after_ns - MS)
    rig.send("SA", options=rig.syn_options())
    rig.seq += 1
    assert conn.state == "ESTABLISHED"
    return conn


FIRST_RTO = {"default": (0, 1), "data-center": (200 * MS, 2)}


@pytest.mark.parametrize("segments", [1, 10])
@pytest.mark.parametrize("opens", ["active", "passive"])
@pytest.mark.parametrize("name", FIRST_RTO)
def test_the_first_flight_on_a_path_of_250_ms_is_not_retransmitted(
    rig: Rig, name: str, opens: str, segments: int
) -> None:
    """RFC 6298 (2.1), and (5.7) if the initial RTO is shorter and the SYN is retransmitted."""
    initial_rto_ns, syns = FIRST_RTO[name]
    conn = handshake(rig, opens, 250 * MS, initial_rto_ns=initial_rto_ns)
    assert conn.info()["rto_count"] == syns - 1
    sent = rig.write(conn, bytes(segments * rig.mss))
    assert len(sent) == segments
    assert with_data(rig.wait_tcp(249 * MS)) == []
    rig.ack += segments * rig.mss
    rig.send("A")
    assert conn.info()["retransmits"] == 0
    assert conn.info()["srtt_ns"] // MS in range(248, 253)


@pytest.mark.parametrize("opens", ["active", "passive"])
@pytest.mark.parametrize(("initial_rto_ns", "after_ns"), [(0, 3 * SECOND), (200 * MS, 600 * MS)])
def test_after_a_syn_sent_twice_the_first_timeout_is_longer(
    rig: Rig, initial_rto_ns: int, after_ns: int, opens: str
) -> None:
    """RFC 6298 (5.7): 3 s for an initial RTO of 1 s, and three times any other."""
    first_ns = initial_rto_ns or SECOND
    conn = handshake(rig, opens, first_ns + 100 * MS, initial_rto_ns=initial_rto_ns)
    sent = rig.write(conn, bytes(2 * rig.mss))
    assert with_data(rig.wait_tcp(after_ns - 2 * MS)) == []
    assert [s.seq for s in with_data(rig.wait_tcp(3 * MS))] == [sent[0].seq]


def test_the_first_sample_replaces_the_longer_timeout(rig: Rig) -> None:
    conn = handshake(rig, "active", SECOND + 100 * MS)
    assert conn.info()["rto_ns"] == 3 * SECOND
    rig.write(conn, bytes(2 * rig.mss))
    rig.ack += 2 * rig.mss
    rig.send("A")
    assert conn.info()["rto_ns"] < 100 * MS


@pytest.mark.parametrize("congestion", ["newreno", "cubic"])
def test_slow_start_continues_after_the_timeout_of_a_lone_segment(
    rig: Rig, congestion: str
) -> None:
    """RFC 5681 section 3.1: its ACK ends the recovery, and the loss window has limited sending."""
    conn = rig.open(listen={"congestion": congestion})
    rig.write(conn, bytes(rig.mss))
    assert len(with_data(rig.wait_tcp(60 * MS))) == 1
    assert conn.info()["snd_cwnd_bytes"] == rig.mss
    rig.ack += rig.mss
    rig.send("A")
    assert conn.info()["snd_cwnd_bytes"] == 2 * rig.mss
    assert len(rig.write(conn, bytes(20 * rig.mss))) == 2
    rig.ack += 2 * rig.mss
    rig.send("A")
    assert conn.info()["snd_cwnd_bytes"] >= 3 * rig.mss


def test_a_spurious_timeout_of_a_lone_segment_restores_the_window(rig: Rig) -> None:
    """The window did not limit the sender, so the ACK must not increase it."""
    conn = rig.open(timestamps=True)
    window = conn.info()["snd_cwnd_bytes"]
    rig.write(conn, bytes(rig.mss - 12))
    original = rig.tsecr
    assert len(with_data(rig.wait_tcp(60 * MS))) == 1
    rig.tsecr = original
    rig.ack += rig.mss - 12
    rig.send("A")
    assert rig.stat("tcp_spurious_rto") == 1
    assert conn.info()["snd_cwnd_bytes"] == window


def test_an_ack_in_the_middle_of_a_segment_is_honored(rig: Rig) -> None:
    conn = rig.open()
    rig.write(conn, bytes(range(200)))
    rig.ack += 50
    rig.send("A")
    assert conn.acked_bytes == 50
    retransmitted = with_data(rig.wait_tcp(2 * SECOND))
    assert retransmitted[0].seq == rig.ack
    assert data_of(retransmitted[0])[:10] == bytes(range(50, 60))
