# SPDX-License-Identifier: Apache-2.0
"""RFC 791, 8200, 2474, 6437 and IEEE 802.1Q: the headers around a segment, both ways."""

import pytest
from packet_rig import MS, OUR_MAC, PEER_MAC, PEER_PORT, SECOND, Rig
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    RouterAlert,
)
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw


def built_again(packet: Packet) -> bytes:
    """The packet with its checksums computed by scapy."""
    copy = packet.copy()
    del copy[TCP].chksum
    if IP in copy:
        del copy[IP].chksum
    return bytes(copy)


def test_a_segment_has_the_headers_of_its_connection(rig: Rig) -> None:
    rig.listen()
    (reply,) = rig.raw(rig.frame(rig.segment("S", ack=0)))
    layer = reply.getlayer(1)
    assert (reply[Ether].dst, layer.src, layer.dst) == (PEER_MAC, rig.ours, rig.peer)
    assert (layer.hlim if rig.family == "ipv6" else layer.ttl) == 64
    assert built_again(reply) == bytes(reply), "checksums"


def test_a_rst_without_a_connection_has_good_checksums(rig: Rig) -> None:
    (reply,) = rig.raw(rig.frame(rig.segment("A", dport=7999, ack=77)))
    assert (str(reply[TCP].flags), reply[TCP].seq) == ("R", 77)
    assert built_again(reply) == bytes(reply)


def test_the_traffic_class_is_the_dscp(rig: Rig) -> None:
    rig.conns.append(rig.stack.connect(rig.peer, 9, dscp=46))
    layer = rig.poll()[0].getlayer(1)
    assert (layer.tc if rig.family == "ipv6" else layer.tos) == 46 << 2


def test_both_families_reach_one_listener(rig6: Rig) -> None:
    rig6.stack.address_add("10.0.0.1", 24)
    rig6.stack.neighbor_set("10.0.0.2", PEER_MAC)
    rig6.listen()
    ip = IP(src="10.0.0.2", dst="10.0.0.1")
    (reply,) = rig6.raw(
        bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / ip / rig6.segment("S", ack=0)),
    )
    assert str(reply[TCP].flags) == "SA"
    assert str(rig6.says("S", ack=0)[0].flags) == "SA"


def test_a_flow_label_is_constant_per_connection(rig6: Rig) -> None:
    """RFC 6437 section 3."""
    rig6.listen()
    (other,) = rig6.raw(rig6.frame(rig6.segment("S", ack=0, sport=PEER_PORT + 1)))
    conn = rig6.open()
    conn.send(b"hello")
    sent = [packet for packet in rig6.wait(2 * SECOND) if TCP in packet]
    labels = {packet[IPv6].fl for packet in sent if packet[TCP].dport == PEER_PORT}
    assert len(labels) == 1
    assert 0 not in labels
    assert other[IPv6].fl not in labels


EXTENSIONS: dict[str, Packet] = {
    "hop-by-hop-router-alert": IPv6ExtHdrHopByHop(options=[RouterAlert()]),
    "destination-padding": IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 20)]),
    "destination-256-bytes": IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 252)]),
    "destination-four-times": (
        IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt()
    ),
    "hop-by-hop-and-destination": IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt(),
    "routing-between-others": (
        IPv6ExtHdrHopByHop() / IPv6ExtHdrRouting(type=2, segleft=0) / IPv6ExtHdrDestOpt()
    ),
    "routing-around-destination": (
        IPv6ExtHdrRouting(segleft=0) / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting(segleft=0)
    ),
    "routing-done": IPv6ExtHdrRouting(type=2, segleft=0, addresses=["fd00::2"]),
    "routing-done-type-0": IPv6ExtHdrRouting(type=0, segleft=0, addresses=["fd00::2"]),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_extension_headers_are_stepped_over(rig6: Rig, name: str) -> None:
    """RFC 8200 section 4."""
    rig6.listen()
    (reply,) = rig6.raw(rig6.frame(EXTENSIONS[name] / rig6.segment("S", ack=0)))
    assert str(reply[TCP].flags) == "SA"


OPTIONS = {
    "route-done": b"\x83\x07\x08\x0a\x00\x00\x02\x00",
    "strict-route-that-is-empty": b"\x89\x03\x04\x00",
    "record-route": b"\x07\x07\x04\x00\x00\x00\x00\x00",
    "router-alert": b"\x01\x94\x04\x00\x00\x01\x01\x01",
    "beyond-the-header": b"\x44\x20\x05\x00",
    "without-a-length": b"\x01\x01\x01\x83",
    "of-length-0": b"\x83\x00\x04\x00",
    "of-length-2": b"\x83\x02\x00\x00",
    "behind-the-end": b"\x00\x83\x03\x01",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_ipv4_options_are_skipped(rig4: Rig, name: str) -> None:
    """RFC 1122 section 3.2.1.8."""
    rig4.listen()
    (reply,) = rig4.raw(rig4.frame(rig4.segment("S", ack=0), options=[Raw(OPTIONS[name])]))
    assert str(reply[TCP].flags) == "SA"


# ---- tags ----------------------------------------------------------------------------------------


def tagged(rig: Rig, vlan: int, prio: int) -> bytes:
    plain = Ether(rig.frame(rig.segment("S", ack=0)))
    tag = Dot1Q(vlan=vlan, prio=prio)
    return bytes(Ether(src=plain.src, dst=plain.dst) / tag / plain.payload)


def test_a_priority_tag_equals_none(rig: Rig) -> None:
    rig.listen()
    (reply,) = rig.raw(tagged(rig, 0, 5), after_ns=MS)
    assert Dot1Q not in reply
    assert str(reply[TCP].flags) == "SA"
