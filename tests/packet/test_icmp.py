# SPDX-License-Identifier: Apache-2.0
"""RFC 792, 4443, 1191, 8201, 5927: ICMP requests, and the effect of ICMP errors on connections."""

from collections.abc import Iterator

import pytest
from packet_rig import SECOND, Rig, data_of, with_data
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
    IPv6ExtHdrDestOpt,
)
from scapy.packet import Packet, Raw

from harp._core import Connection

QUOTED_BYTES = 548  # of the packet that an error is about
over_ipv4 = pytest.mark.parametrize("rig", ["ipv4"], indirect=True)
over_ipv6 = pytest.mark.parametrize("rig", ["ipv6"], indirect=True)
ROUTER = {"ipv4": "10.0.0.254", "ipv6": "fd00::fe"}


def error(rig: Rig, message: Packet, about: bytes) -> list[Packet]:
    """A router's word on a packet of ours; what follows from it."""
    return rig.raw(rig.frame(message / Raw(about[:QUOTED_BYTES]), src=ROUTER[rig.family]))


def ip_bytes(packet: Packet) -> int:
    """Of the packet, without what Ethernet padded."""
    layer = packet.getlayer(1)
    return layer.plen + 40 if IPv6 in packet else layer.len


def too_big(rig: Rig, mtu: int) -> Packet:
    if rig.family == "ipv6":
        return ICMPv6PacketTooBig(mtu=mtu)
    return ICMP(type=3, code=4, nexthopmtu=mtu)


@pytest.fixture
def conn(rig: Rig) -> Iterator[Connection]:
    made = rig.open()
    yield made
    made.abort()


def full_segment(rig: Rig, conn: Connection) -> bytes:
    """The IP packet of a full segment that is on its way."""
    conn.send(bytes(rig.mss))
    (sent,) = (packet for packet in rig.poll() if with_data([packet[TCP]]))
    return bytes(sent.getlayer(1))


def test_too_big_makes_segments_smaller(rig: Rig, conn: Connection) -> None:
    sent = full_segment(rig, conn)
    replies = error(rig, too_big(rig, 1280), sent)
    assert [ip_bytes(packet) for packet in replies] == [1280, len(sent) - 1280 + rig.headers]
    assert replies[0][TCP].seq == rig.ack


@over_ipv4
def test_too_big_without_an_mtu_uses_the_next_plateau(rig: Rig, conn: Connection) -> None:
    """RFC 1191 section 7."""
    replies = error(rig, too_big(rig, 0), full_segment(rig, conn))
    assert max(ip_bytes(packet) for packet in replies) == 1492


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_route_that_becomes_narrower_cuts_what_is_to_be_sent(rig: Rig, in_flight: bool) -> None:
    conn = rig.open()
    if in_flight:
        rig.sends(conn, bytes(rig.mss))
    rig.stack.route_add(rig.peer, 128 if rig.family == "ipv6" else 32, mtu_bytes=1300)
    lengths = [len(data_of(segment)) for segment in rig.sends(conn, bytes(3000))]
    assert (max(lengths), sum(lengths)) == (1300 - rig.headers, 3000)


def test_a_route_that_becomes_narrower_stops_no_search(rig: Rig, conn: Connection) -> None:
    """The time for a probe of the old size comes when the route has become narrower."""
    error(rig, too_big(rig, 1280), full_segment(rig, conn))
    rig.ack += rig.mss
    rig.says("A")
    rig.waits(601 * SECOND)
    rig.stack.route_add(rig.peer, 128 if rig.family == "ipv6" else 32, mtu_bytes=1400)
    lengths = [len(data_of(segment)) for segment in rig.sends(conn, bytes(12000))]
    assert (max(lengths), sum(lengths)) == (1280 - rig.headers, 12000)


@over_ipv4
def test_a_tiny_mtu_is_raised_to_552(rig: Rig, conn: Connection) -> None:
    replies = error(rig, too_big(rig, 68), full_segment(rig, conn))
    assert max(ip_bytes(packet) for packet in replies) == 552


@over_ipv6
def test_too_big_behind_extension_headers_is_understood(rig: Rig, conn: Connection) -> None:
    sent = IPv6(full_segment(rig, conn))
    quoted = IPv6(src=rig.ours, dst=rig.peer) / IPv6ExtHdrDestOpt() / sent[TCP]
    replies = error(rig, too_big(rig, 1400), bytes(quoted))
    assert max(ip_bytes(packet) for packet in replies) == 1400


def test_too_big_about_an_unsent_segment_is_ignored(rig: Rig, conn: Connection) -> None:
    """RFC 5927 section 4.1: the quoted sequence number is in flight, or it is a guess."""
    sent = full_segment(rig, conn)
    layer = IPv6 if rig.family == "ipv6" else IP
    guess = layer(sent)
    guess[TCP].seq = (guess[TCP].seq + 10**6) % 2**32
    assert error(rig, too_big(rig, 1280), bytes(guess)) == []


HARD = {"port": ((3, 3), (1, 4), 111), "host-or-prohibited": ((3, 13), (1, 1), 113)}


@pytest.mark.parametrize("name", HARD)
def test_unreachable_ends_a_connect(rig: Rig, name: str) -> None:
    v4, v6, errno = HARD[name]
    conn = rig.stack.connect(rig.peer, 9)
    (syn,) = rig.poll()
    message = (
        ICMPv6DestUnreach(type=v6[0], code=v6[1])
        if rig.family == "ipv6"
        else ICMP(type=v4[0], code=v4[1])
    )
    error(rig, message, bytes(syn.getlayer(1)))
    assert conn.error == errno


def test_unreachable_does_not_end_a_connection(rig: Rig, conn: Connection) -> None:
    """RFC 5927 section 5.2: soft, once a connection is synchronised."""
    sent = full_segment(rig, conn)
    message = ICMPv6DestUnreach(code=4) if rig.family == "ipv6" else ICMP(type=3, code=3)
    error(rig, message, sent)
    assert rig.waits(SECOND), "it goes on sending"


def test_hop_limit_exceeded_is_soft(rig: Rig) -> None:
    conn = rig.stack.connect(rig.peer, 9)
    (syn,) = rig.poll()
    message = ICMPv6TimeExceeded() if rig.family == "ipv6" else ICMP(type=11, code=0)
    error(rig, message, bytes(syn.getlayer(1)))
    assert conn.state == "SYN-SENT"
