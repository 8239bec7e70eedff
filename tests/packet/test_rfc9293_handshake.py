# SPDX-License-Identifier: Apache-2.0
"""RFC 9293: connection establishment (sections 3.5, 3.7.1, 3.10.7.1 to 3.10.7.3)."""

from typing import Any

import pytest
from packet_rig import MODULUS, MS, PORT, SECOND, Rig, data_of


def test_a_syn_without_mss_means_the_default_mss(rig: Rig) -> None:
    """MUST-15: 576 or 1280 bytes minus the headers."""
    rig.listen()
    reply = rig.send("S", ack=0)[0]
    conn = rig.complete_handshake(reply)
    assert conn.info()["snd_mss_bytes"] == {"ipv4": 536, "ipv6": 1220}[rig.family]


@pytest.mark.parametrize("mss", [88, 536, 1000, 1220])
def test_the_peers_mss_bounds_our_segments(rig: Rig, mss: int) -> None:
    conn = rig.open(mss=mss)
    sizes = {len(segment.payload) for segment in rig.write(conn, bytes(5 * mss))}
    assert max(sizes) == mss


def test_an_mss_of_zero_does_not_stop_us(rig: Rig) -> None:
    conn = rig.open(mss=0)
    segments = rig.write(conn, bytes(1000))
    assert segments
    assert all(len(segment.payload) >= 64 for segment in segments)


def test_a_duplicate_syn_gets_the_same_answer(rig: Rig) -> None:
    rig.listen()
    first = rig.send("S", ack=0)[0]
    second = rig.send("S", ack=0)[0]
    assert (first.seq, first.ack, str(first.flags)) == (second.seq, second.ack, str(second.flags))


def test_data_on_a_syn_is_not_acknowledged(rig: Rig) -> None:
    """A SYN must not cost memory."""
    rig.listen()
    (reply,) = rig.send("S", b"early", ack=0)
    assert reply.ack == rig.seq + 1
    rig.seq, rig.ack = rig.seq + 1, reply.seq + 1
    rig.send("PA", b"early")
    conn = rig.accept()
    assert conn.recv() == b"early"


def test_data_on_a_syn_ack_is_not_acknowledged(rig: Rig) -> None:
    conn = rig.stack.connect(rig.peer, PORT)
    syn = rig.tcp(rig.poll())[0]
    rig.sport, rig.dport, rig.ack = PORT, syn.sport, (syn.seq + 1) % MODULUS
    replies = rig.send("SA", b"early") + rig.wait_tcp(300 * MS)
    assert conn.state == "ESTABLISHED"
    rig.seq += 1
    assert replies[-1].ack == rig.seq
    assert (rig.send_next(b"early") + rig.tcp(rig.poll()))[-1].ack == rig.seq
    assert conn.recv() == b"early"


def test_a_closed_port_refuses_a_syn_and_ignores_a_rst(rig: Rig) -> None:
    assert rig.send("R") == []
    assert rig.send("RA") == []
    (answer,) = rig.send("S", ack=0)
    assert (str(answer.flags), answer.seq, answer.ack) == ("RA", 0, rig.seq + 1)


def test_the_rst_for_data_without_ack_counts_the_data(rig: Rig) -> None:
    (answer,) = rig.send("S", b"x" * 10, ack=0)
    assert answer.ack == rig.seq + 11


@pytest.mark.parametrize("initial_rto_ns", [0, 200 * MS])
def test_a_syn_is_retransmitted_with_backoff_until_the_timeout(
    rig: Rig, initial_rto_ns: int
) -> None:
    """RFC 6298 (2.1), (5.5)."""
    rto_ns = initial_rto_ns or SECOND
    conn = rig.stack.connect(
        rig.peer, 80, initial_rto_ns=initial_rto_ns, connect_timeout_ns=8 * rto_ns
    )
    (first,) = rig.wait_tcp(0)
    for pause_ns in (rto_ns, 2 * rto_ns, 4 * rto_ns):
        assert rig.wait_tcp(pause_ns - 3 * MS) == []
        assert [(syn.seq, str(syn.flags)) for syn in rig.wait_tcp(4 * MS)] == [(first.seq, "S")]
    assert rig.wait_tcp(rto_ns) == []
    assert conn.error == 110


def test_a_rst_refuses_a_simultaneous_open(rig: Rig) -> None:
    conn = rig.stack.connect(rig.peer, PORT)
    (syn,) = rig.tcp(rig.poll())
    rig.sport, rig.dport, rig.ack = PORT, syn.sport, syn.seq + 1
    rig.send("S", ack=0)
    rig.seq += 1
    rig.send("RA")
    assert conn.error == 111


def test_a_connection_reset_before_accept_is_not_accepted(rig: Rig) -> None:
    listener = rig.listen()
    (reply,) = rig.send("S", ack=0)
    rig.seq, rig.ack = rig.seq + 1, reply.seq + 1
    rig.send("A")
    rig.send("R")
    assert listener.accept() is None
    assert rig.stat("tcp_conns") == 0


def test_options_of_a_handshake_are_ignored_later(rig: Rig) -> None:
    conn = rig.open()
    before = conn.info()
    rig.send("PA", b"x", options=[("MSS", 100), ("WScale", 3), *[("NOP", None)] * 5])
    assert conn.recv() == b"x"
    names = ("snd_mss_bytes", "snd_wscale")
    assert [conn.info()[name] for name in names] == [before[name] for name in names]


@pytest.mark.parametrize("error", [-1, 0, 2, 100000])
def test_a_rst_with_a_wrong_ack_in_syn_sent_is_ignored(rig: Rig, error: int) -> None:
    conn = rig.stack.connect(rig.peer, 80)
    syn = rig.tcp(rig.poll())[0]
    rig.send("RA", sport=80, dport=syn.sport, seq=0, ack=syn.seq + error)
    assert conn.error == 0
    assert conn.state == "SYN-SENT"


@pytest.mark.parametrize("offer", [{}, {"timestamps": True, "sack": True, "wscale": 3}])
def test_a_forged_syn_does_not_end_a_connect(rig: Rig, offer: dict[str, Any]) -> None:
    """The SYN starts a simultaneous open, which a SYN-ACK of our ISN overrides."""
    conn = rig.stack.connect(rig.peer, PORT)
    (syn,) = rig.tcp(rig.poll())
    rig.sport, rig.dport, rig.ack = PORT, syn.sport, syn.seq + 1
    (crossed,) = rig.send("S", seq=rig.seq + 10**6, ack=0, options=rig.syn_options(wscale=9))
    assert (str(crossed.flags), conn.state) == ("SA", "SYN-RECEIVED")
    rig.send("SA", options=rig.syn_options(**offer))
    assert conn.state == "ESTABLISHED"
    rig.timestamps = bool(offer)
    rig.seq += 1
    rig.send_next(b"hello")
    assert conn.recv() == b"hello"
    assert [data_of(sent) for sent in rig.write(conn, b"you, too")] == [b"you, too"]
    info = conn.info()
    assert (info["snd_wscale"], bool(info["options"])) == (offer.get("wscale", 0), bool(offer))


@pytest.mark.parametrize("flags", ["R", "RA"])
def test_a_forged_syn_and_its_rst_do_not_end_a_connect(rig: Rig, flags: str) -> None:
    """The RST matches RCV.NXT, which is the attacker's own, but does not acknowledge our SYN."""
    conn = rig.stack.connect(rig.peer, PORT)
    (syn,) = rig.tcp(rig.poll())
    rig.sport, rig.dport, rig.ack = PORT, syn.sport, syn.seq + 1
    forged = rig.seq + 10**6
    rig.send("S", seq=forged, ack=0, options=rig.syn_options(wscale=9))
    assert rig.send(flags, seq=forged + 1, ack=0) == []
    assert (conn.state, conn.error) == ("SYN-SENT", 0)
    rig.send("SA", options=[])
    assert (conn.state, conn.info()["options"]) == ("ESTABLISHED", 0)
    rig.seq += 1
    rig.send_next(b"hello")
    assert conn.recv() == b"hello"


def test_after_a_rst_of_another_syn_the_connect_retransmits_its_syn(rig: Rig) -> None:
    """The peer refuses the retransmitted SYN, so the application gets the error after one RTO."""
    conn = rig.stack.connect(rig.peer, PORT)
    (syn,) = rig.tcp(rig.poll())
    rig.sport, rig.dport, rig.ack = PORT, syn.sport, syn.seq + 1
    rig.send("S", ack=0)
    rig.send("R", seq=rig.seq + 1, ack=0)
    retransmitted, *_ = rig.wait_tcp(3 * SECOND)
    assert (str(retransmitted.flags), retransmitted.seq) == ("S", syn.seq)
    rig.send("RA", seq=0)
    assert conn.error == 111


def test_a_connect_timeout_may_be_infinite(rig: Rig) -> None:
    conn = rig.stack.connect(rig.peer, PORT, connect_timeout_ns=2**64 - 1)
    assert len(rig.wait_tcp(40 * SECOND)) > 5
    assert conn.state == "SYN-SENT"


def test_segments_to_port_zero_are_dropped(rig: Rig) -> None:
    rig.listen()
    rig.send("S", ack=0, sport=0)
    assert rig.stat("tcp_conns") == 0
