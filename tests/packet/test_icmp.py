# SPDX-License-Identifier: Apache-2.0
"""RFC 792, 4443, 1191, 8201, 5927: echo requests, and the effect of ICMP errors on connections."""

from collections.abc import Iterator
from typing import Any

import pytest
from packet_rig import MS, SECOND, Rig, data_of, with_data
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    ICMPv6Unknown,
    IPv6,
    IPv6ExtHdrDestOpt,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from harp._core import Connection

QUOTED_BYTES = 548  # of the packet that caused the error
over_ipv4 = pytest.mark.parametrize("rig", ["ipv4"], indirect=True)
over_ipv6 = pytest.mark.parametrize("rig", ["ipv6"], indirect=True)
ROUTER = {"ipv4": "10.0.0.254", "ipv6": "fd00::fe"}


def send_error(rig: Rig, message: Packet, packet: bytes) -> list[Packet]:
    """Send an error about a packet of the stack from a router. Return the stack's packets."""
    return rig.inject(rig.frame(message / Raw(packet[:QUOTED_BYTES]), src=ROUTER[rig.family]))


def ip_bytes(packet: Packet) -> int:
    """Return the length of the IP packet without Ethernet padding."""
    layer = packet.getlayer(1)
    return layer.plen + 40 if IPv6 in packet else layer.len


def too_big(rig: Rig, mtu: int) -> Packet:
    if rig.family == "ipv6":
        return ICMPv6PacketTooBig(mtu=mtu)
    return ICMP(type=3, code=4, nexthopmtu=mtu)


@pytest.fixture
def conn(rig: Rig) -> Iterator[Connection]:
    conn = rig.open()
    yield conn
    conn.abort()


def full_segment(rig: Rig, conn: Connection) -> bytes:
    """Send a full-sized segment. Return its IP packet."""
    conn.send(bytes(rig.mss))
    (sent,) = (packet for packet in rig.poll() if with_data([packet[TCP]]))
    return bytes(sent.getlayer(1))


def test_too_big_makes_segments_smaller(rig: Rig, conn: Connection) -> None:
    sent = full_segment(rig, conn)
    replies = send_error(rig, too_big(rig, 1280), sent)
    assert [ip_bytes(packet) for packet in replies] == [1280, len(sent) - 1280 + rig.headers]
    assert replies[0][TCP].seq == rig.ack


@over_ipv4
@pytest.mark.parametrize(
    ("reported", "quoted", "used"),
    [
        (1400, 1500, 1400),
        (552, 1500, 552),
        (551, 1500, 552),
        (68, 1500, 552),
        (1, 1500, 552),
        (0, 1500, 1492),
        (0, 1492, 1006),
        (0, 1006, 552),
        (0, 0, 552),
    ],
)
def test_the_mtu_of_too_big_is_validated(
    rig: Rig, conn: Connection, reported: int, quoted: int, used: int
) -> None:
    """RFC 1191 sections 5 and 7: an MTU of 0 means the next plateau below the packet's length."""
    sent = IP(full_segment(rig, conn))
    sent.len = quoted
    replies = send_error(rig, too_big(rig, reported), bytes(sent))
    assert max(ip_bytes(packet) for packet in replies) == used


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_smaller_route_mtu_resegments_queued_data(rig: Rig, in_flight: bool) -> None:
    conn = rig.open()
    if in_flight:
        rig.write(conn, bytes(rig.mss))
    rig.stack.route_add(rig.peer, 128 if rig.family == "ipv6" else 32, mtu_bytes=1300)
    lengths = [len(data_of(segment)) for segment in rig.write(conn, bytes(3000))]
    assert (max(lengths), sum(lengths)) == (1300 - rig.headers, 3000)


def test_a_smaller_route_mtu_does_not_stop_the_mtu_search(rig: Rig, conn: Connection) -> None:
    """A probe of the old size becomes due after the route's MTU has decreased."""
    send_error(rig, too_big(rig, 1280), full_segment(rig, conn))
    rig.ack += rig.mss
    rig.send("A")
    rig.wait_tcp(601 * SECOND)
    rig.stack.route_add(rig.peer, 128 if rig.family == "ipv6" else 32, mtu_bytes=1400)
    lengths = [len(data_of(segment)) for segment in rig.write(conn, bytes(12000))]
    assert (max(lengths), sum(lengths)) == (1280 - rig.headers, 12000)


@over_ipv6
def test_too_big_behind_extension_headers_is_processed(rig: Rig, conn: Connection) -> None:
    sent = IPv6(full_segment(rig, conn))
    quoted = IPv6(src=rig.ours, dst=rig.peer) / IPv6ExtHdrDestOpt() / sent[TCP]
    replies = send_error(rig, too_big(rig, 1400), bytes(quoted))
    assert max(ip_bytes(packet) for packet in replies) == 1400


def test_too_big_about_an_unsent_segment_is_ignored(rig: Rig, conn: Connection) -> None:
    """RFC 5927 section 4.1: an error must quote a sequence number that is in flight."""
    sent = full_segment(rig, conn)
    layer = IPv6 if rig.family == "ipv6" else IP
    guess = layer(sent)
    guess[TCP].seq = (guess[TCP].seq + 10**6) % 2**32
    assert send_error(rig, too_big(rig, 1280), bytes(guess)) == []


def echo_request(rig: Rig, data: bytes, **fields: Any) -> bytes:
    request = ICMPv6EchoRequest(id=0x1234, seq=0x5678) if rig.family == "ipv6" else None
    request = request or ICMP(type=8, id=0x1234, seq=0x5678)
    return rig.frame(request / Raw(data), **fields)


def with_checksums(packet: Packet) -> bytes:
    copy = packet.copy()
    if IPv6 in copy:
        del copy[ICMPv6EchoReply].cksum
    else:
        del copy[IP].chksum, copy[ICMP].chksum
    return bytes(copy)


@pytest.mark.parametrize("size", [0, 1, 56, 1452, 1893, 1942, 3993, 8952])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_an_echo_request_is_answered_with_its_data(family: str, size: int) -> None:
    rig = Rig(family, mtu_bytes=9000)
    data = bytes(i * 7 % 256 for i in range(size))
    padding = b"\xee" * 18 if size < 18 else b""
    (reply,) = rig.inject(echo_request(rig, data) + padding)
    layer = reply.getlayer(1)
    assert (layer.src, layer.dst) == (rig.ours, rig.peer)
    body = reply[ICMPv6EchoReply] if family == "ipv6" else reply[ICMP]
    assert (body.type, body.id, body.seq) == (129 if family == "ipv6" else 0, 0x1234, 0x5678)
    assert bytes(layer)[: ip_bytes(reply)].endswith(data)
    assert ip_bytes(reply) == size + (48 if family == "ipv6" else 28)
    assert with_checksums(reply) == bytes(reply)
    rig.close()


def test_an_echo_request_to_all_nodes_is_answered_from_a_unicast_address(rig6: Rig) -> None:
    """RFC 4443 section 4.2."""
    to_all = Ether(echo_request(rig6, b"", dst="ff02::1"))
    to_all.dst = "33:33:00:00:00:01"
    (reply,) = rig6.inject(bytes(to_all))
    assert (reply[IPv6].src, reply[IPv6].dst) == (rig6.ours, rig6.peer)


def test_echo_replies_are_rate_limited(rig: Rig) -> None:
    request = echo_request(rig, b"x" * 8)
    rig.poll()
    assert sum(len(rig.inject(request, after_ns=0)) for _ in range(1000)) == 256
    assert rig.stat("drop_icmp_rate") == 1000 - 256
    rig.poll(MS)
    assert sum(len(rig.inject(request, after_ns=0)) for _ in range(20)) == 10


# The errno of a connect (0: it continues), and of a connected datagram socket.
NET, HOST, PORT = (0, 101), (0, 113), (111, 111)
PROHIBITED, TTL, PARAMETER = (113, 113), (0, 113), (0, 71)
ERRORS = {  # by family, type and code
    "ipv4": {
        (3, 0): NET,
        (3, 1): HOST,
        (3, 2): PORT,
        (3, 3): PORT,
        (3, 13): PROHIBITED,
        (11, 0): TTL,
        (12, 0): PARAMETER,
    },
    "ipv6": {
        (1, 0): NET,
        (1, 1): PROHIBITED,
        (1, 2): NET,
        (1, 3): HOST,
        (1, 4): PORT,
        (1, 5): PROHIBITED,
        (1, 6): PROHIBITED,
        (3, 0): TTL,
        (4, 0): PARAMETER,
        (4, 1): PORT,
    },
}


@pytest.mark.parametrize(
    ("rig", "kind", "code", "errnos"),
    [(family, *key, errnos) for family, table in ERRORS.items() for key, errnos in table.items()],
    indirect=["rig"],
)
def test_errors_reach_connects_and_datagrams(
    rig: Rig, kind: int, code: int, errnos: tuple[int, int]
) -> None:
    """RFC 1122 section 4.2.3.9: a closed port and a prohibition end a connect, other errors not."""
    conn, udp = rig.stack.connect(rig.peer, 9), rig.stack.udp()
    udp.connect(rig.peer, 9)
    udp.send(b"x")
    for sent in rig.poll():
        quote = bytes(sent.getlayer(1))[: rig.headers - 12]  # the IP header and 8 bytes
        message = ICMPv6Unknown(type=kind, code=code, msgbody=bytes(4) + quote)
        if rig.family == "ipv4":
            message = ICMP(type=kind, code=code) / Raw(quote)
        send_error(rig, message, b"")
    assert rig.stat("icmp_error_in") == 2
    reported = udp.error()
    assert (conn.error, reported and reported[0]) == errnos
    udp.close()
    conn.abort()


def test_unreachable_does_not_end_a_connection(rig: Rig, conn: Connection) -> None:
    """RFC 5927 section 5.2: the error is soft if the connection is synchronized."""
    sent = full_segment(rig, conn)
    message = ICMPv6DestUnreach(code=4) if rig.family == "ipv6" else ICMP(type=3, code=3)
    send_error(rig, message, sent)
    assert rig.wait_tcp(SECOND), "the stack retransmits"
