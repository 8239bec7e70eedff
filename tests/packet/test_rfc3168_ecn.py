# SPDX-License-Identifier: Apache-2.0
"""RFC 3168 and 8257: explicit congestion notification."""

from typing import Any

import pytest
from packet_rig import MS, SECOND, Rig, flags_of, with_data
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

NOT_ECT, ECT_1, ECT_0, CE = range(4)


def codepoint(packet: Packet) -> int:
    return int(packet[IPv6].tc if IPv6 in packet else packet[IP].tos) & 3


def ip_fields(rig: Rig, mark: int) -> dict[str, Any]:
    return {"tc": mark} if rig.family == "ipv6" else {"tos": mark}


def open_with_ecn(rig: Rig) -> Any:
    """Accept a connection whose peer requests ECN."""
    rig.listen()
    reply = rig.send("SEC", ack=0, options=rig.syn_options())[0]
    assert str(reply.flags) == "SAE", "section 6.1.1: ECE without CWR"
    return rig.complete_handshake(reply)


def receive(rig: Rig, mark: int, flags: str = "PA", size: int = 100) -> list[Any]:
    """Send data in a packet with the mark from the peer. Return the stack's answers."""
    frame = rig.frame(rig.segment(flags, b"x" * size), **ip_fields(rig, mark))
    rig.seq += size
    return rig.tcp(rig.inject(frame)) + rig.wait_tcp(60 * MS)


@pytest.mark.parametrize("flags", ["SE", "SC"])
def test_a_syn_with_only_ece_or_cwr_does_not_request_ecn(rig: Rig, flags: str) -> None:
    rig.listen()
    assert flags_of(rig.send(flags, ack=0)) == ["SA"]


def test_ecn_that_is_off_is_not_accepted(rig: Rig) -> None:
    rig.listen(ecn="off")
    assert flags_of(rig.send("SEC", ack=0)) == ["SA"]


def test_ecn_is_requested_when_it_is_enabled(rig: Rig) -> None:
    rig.conns.append(rig.stack.connect(rig.peer, 80, ecn="request"))
    (packet,) = rig.poll()
    assert set(str(packet["TCP"].flags)) == set("SEC")
    assert codepoint(packet) == NOT_ECT, "section 6.1.1: not on a SYN"


def test_new_data_is_sent_as_ect_0(rig: Rig) -> None:
    conn = open_with_ecn(rig)
    conn.send(bytes(3000))
    packets = [packet for packet in rig.poll() if len(packet["TCP"].payload) > 0]
    assert {codepoint(packet) for packet in packets} == {ECT_0}


def test_acks_are_not_ect(rig: Rig) -> None:
    """Section 6.1.4."""
    open_with_ecn(rig)
    frame = rig.frame(rig.segment("PA", b"x"), **ip_fields(rig, ECT_0))
    packets = rig.inject(frame) + rig.wait(100 * MS)
    assert packets
    assert {codepoint(packet) for packet in packets} == {NOT_ECT}


def test_retransmissions_are_not_ect(rig: Rig) -> None:
    """Section 6.1.5."""
    conn = open_with_ecn(rig)
    conn.send(b"lost")
    rig.poll()
    packets = [p for p in rig.wait(2 * SECOND) if "TCP" in p and len(p["TCP"].payload) >= 4]
    resent = [p for p in packets if bytes(p["TCP"].payload).startswith(b"lost")]
    assert resent
    assert {codepoint(packet) for packet in resent} == {NOT_ECT}


def test_without_agreement_nothing_is_ect(rig: Rig) -> None:
    conn = rig.open()
    conn.send(bytes(3000))
    assert {codepoint(packet) for packet in rig.poll()} == {NOT_ECT}


def test_ce_is_echoed_until_cwr(rig: Rig) -> None:
    """Section 6.1.3."""
    open_with_ecn(rig)
    assert all("E" in flags for flags in flags_of(receive(rig, CE)))
    assert all("E" in flags for flags in flags_of(receive(rig, ECT_0)))
    after = flags_of(receive(rig, ECT_0, flags="PAC"))
    assert after
    assert "E" not in after[-1]


def test_ect_is_not_echoed(rig: Rig) -> None:
    open_with_ecn(rig)
    for mark in (ECT_0, ECT_1, NOT_ECT):
        assert not any("E" in flags for flags in flags_of(receive(rig, mark)))


def test_cwr_on_new_data_reports_the_reduction(rig: Rig) -> None:
    conn = open_with_ecn(rig)
    conn.send(bytes(40 * rig.mss))
    first = with_data(rig.tcp(rig.poll()))
    rig.ack = first[-1].seq + len(first[-1].payload)
    later = with_data(rig.send("AE") + rig.wait_tcp(5 * MS))
    flags = flags_of(later)
    assert sum("C" in item for item in flags) == 1
    assert "C" in flags[0]


def test_ece_without_agreement_is_ignored(rig: Rig) -> None:
    conn = rig.open()
    rig.write(conn, bytes(8 * rig.mss))
    before = conn.info()["snd_ssthresh_bytes"]
    rig.ack += rig.mss
    rig.send("AE")
    assert conn.info()["snd_ssthresh_bytes"] == before
