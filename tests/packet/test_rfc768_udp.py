# SPDX-License-Identifier: Apache-2.0
"""RFC 768, 1122 section 4.1, 8200 section 8.1: UDP as a peer sees it."""

import itertools
from typing import Any

import pytest
from packet_rig import MODULUS, PEER_PORT, Counted, Rig, seal
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, IPv6
from scapy.packet import Packet, Raw

UDP_PORT = 61500


def datagram(rig: Rig, data: bytes, **fields: Any) -> list[Packet]:
    """A datagram of the peer's arrives."""
    fields = {"sport": PEER_PORT, "dport": UDP_PORT} | fields
    return rig.raw(rig.frame(UDP(**fields) / Raw(data) if data else UDP(**fields)))


def unreachable(rig: Rig, quoted: Packet) -> None:
    """The peer's host has no such port."""
    inner = quoted[IPv6] if rig.family == "ipv6" else quoted[IP]
    error = ICMPv6DestUnreach(code=4) if rig.family == "ipv6" else ICMP(type=3, code=3)
    rig.raw(rig.frame(error / inner))


@pytest.mark.parametrize("size", [0, 1, 2, 100, 1400])
def test_a_datagram_arrives_whole(rig: Rig, size: int) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        data = bytes(range(256)) * 6
        datagram(rig, data[:size])
        assert sock.recv() == (data[:size], size, (rig.peer, PEER_PORT))


def test_datagrams_stay_apart(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        for i in range(5):
            datagram(rig, bytes([i]) * (i + 1))
        assert [sock.recv()[0] for _ in range(5)] == [bytes([i]) * (i + 1) for i in range(5)]
        with pytest.raises(BlockingIOError):
            sock.recv()


def test_a_datagram_too_long_for_the_buffer_tells_its_length(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        datagram(rig, b"0123456789")
        data, length, _ = sock.recv(4)
        assert (data, length) == (b"0123", 10)


def test_what_is_sent_has_good_checksums(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        sock.send(b"hello", rig.peer, 9)
        (packet,) = rig.poll()
        assert (packet[UDP].sport, packet[UDP].dport, packet[UDP].len) == (UDP_PORT, 9, 13)
        assert bytes(packet[UDP].payload)[:5] == b"hello"
        again = packet.copy()
        del again[UDP].chksum
        assert type(packet)(bytes(again))[UDP].chksum == packet[UDP].chksum != 0


def test_a_damaged_datagram_is_dropped(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        with Counted(rig) as counted:
            datagram(rig, b"data", chksum=0x1234)
        assert list(counted.moved.values()) == [1]
        with pytest.raises(BlockingIOError):
            sock.recv()


def test_no_checksum_is_good_on_ipv4(rig4: Rig) -> None:
    """RFC 1122 section 4.1.3.4."""
    with rig4.stack.udp(UDP_PORT) as sock:
        datagram(rig4, b"data", chksum=0)
        assert sock.recv()[0] == b"data"


def test_no_checksum_is_refused_on_ipv6(rig6: Rig) -> None:
    """RFC 8200 section 8.1."""
    with rig6.stack.udp(UDP_PORT) as sock:
        datagram(rig6, b"data", chksum=0)
        with pytest.raises(BlockingIOError):
            sock.recv()


@pytest.mark.parametrize("length", [0, 7, 100, 65535])
def test_an_impossible_length_is_dropped(rig: Rig, length: int) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        built = bytearray(bytes(UDP(sport=PEER_PORT, dport=UDP_PORT) / Raw(b"data")))
        built[4:6] = length.to_bytes(2, "big")
        with Counted(rig) as counted:
            rig.raw(seal(rig, bytes(built), proto=17, at=6))
        assert sum(counted.moved.values()) == 1
        with pytest.raises(BlockingIOError):
            sock.recv()


def test_a_port_that_nobody_has_is_said_by_icmp(rig: Rig) -> None:
    made = Rig(rig.family, own_neighbors=True)
    try:
        answers = datagram(made, b"anybody?")
        layer = ICMPv6DestUnreach if rig.family == "ipv6" else ICMP
        assert [(p[layer].type, p[layer].code) for p in answers if layer in p] == [
            (1, 4) if rig.family == "ipv6" else (3, 3)
        ]
    finally:
        made.close()


def test_a_connected_socket_hears_its_peer_only(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        sock.connect(rig.peer, PEER_PORT)
        datagram(rig, b"stranger", sport=PEER_PORT + 1)
        datagram(rig, b"peer")
        assert sock.recv()[0] == b"peer"


def test_a_connected_socket_hears_of_a_closed_port(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        sock.connect(rig.peer, PEER_PORT)
        sock.send(b"anybody?")
        (sent,) = rig.poll()
        unreachable(rig, sent)
        assert sock.error() == (111, (rig.peer, PEER_PORT))
        assert sock.error() is None


def test_too_big_lowers_the_limit(rig: Rig) -> None:
    """RFC 1191 and 8201."""
    with rig.stack.udp(UDP_PORT) as sock:
        sock.connect(rig.peer, PEER_PORT)
        before = sock.payload_max()
        sock.send(bytes(1400))
        (sent,) = rig.poll()
        if rig.family == "ipv6":
            rig.raw(rig.frame(ICMPv6PacketTooBig(mtu=1280) / sent[IPv6]))
        else:
            rig.raw(rig.frame(ICMP(type=3, code=4, nexthopmtu=1280) / sent[IP]))
        assert before == 1500 - (rig.headers - 20) - 8
        assert sock.error() is not None
        assert sock.payload_max() == 1280 - (rig.headers - 20) - 8


def test_what_does_not_fit_is_refused(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT) as sock:
        most = sock.payload_max(rig.peer, 9)
        assert sock.send(bytes(most), rig.peer, 9) == most
        with pytest.raises(OSError, match="too long"):
            sock.send(bytes(most + 1), rig.peer, 9)


def test_a_flood_is_bounded_by_the_budget(rig: Rig) -> None:
    with rig.stack.udp(UDP_PORT, rx_frames=8) as sock:
        for i in range(50):
            datagram(rig, bytes([i]))
        assert [sock.recv()[0][0] for _ in range(8)] == list(range(8))
        with pytest.raises(BlockingIOError):
            sock.recv()
        datagram(rig, b"again")
        assert sock.recv()[0] == b"again"


def test_chosen_ports_are_not_in_sequence(rig: Rig) -> None:
    """RFC 6056."""
    socks = [rig.stack.udp() for _ in range(12)]
    ports = [sock.endpoints[0][1] for sock in socks]
    assert len(set(ports)) == 12
    assert len({(b - a) % MODULUS for a, b in itertools.pairwise(ports)}) > 6
    for sock in socks:
        sock.close()


def test_close_leaves_nothing(rig: Rig) -> None:
    before = rig.stat("frames_free")
    sock = rig.stack.udp(UDP_PORT)
    for _ in range(5):
        datagram(rig, b"unread")
    sock.close()
    rig.poll()
    assert rig.stat("frames_free") == before
