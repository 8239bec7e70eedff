# SPDX-License-Identifier: Apache-2.0
"""RFC 791, 8200, 2474, 6437, IEEE 802.1Q: headers of sent and received segments."""

import pytest
from packet_rig import MS, Rig
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import (
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    RouterAlert,
)
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw


def with_checksums(packet: Packet) -> bytes:
    copy = packet.copy()
    del copy[TCP].chksum
    if IP in copy:
        del copy[IP].chksum
    return bytes(copy)


def test_a_rst_without_a_connection_has_good_checksums(rig: Rig) -> None:
    (reply,) = rig.inject(rig.frame(rig.segment("A", dport=7999, ack=77)))
    assert (str(reply[TCP].flags), reply[TCP].seq) == ("R", 77)
    assert with_checksums(reply) == bytes(reply)


def test_the_traffic_class_is_the_dscp(rig: Rig) -> None:
    rig.conns.append(rig.stack.connect(rig.peer, 9, dscp=46))
    layer = rig.poll()[0].getlayer(1)
    assert (layer.tc if rig.family == "ipv6" else layer.tos) == 46 << 2


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
def test_extension_headers_are_skipped(rig6: Rig, name: str) -> None:
    """RFC 8200 section 4."""
    rig6.listen()
    (reply,) = rig6.inject(rig6.frame(EXTENSIONS[name] / rig6.segment("S", ack=0)))
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
    (reply,) = rig4.inject(rig4.frame(rig4.segment("S", ack=0), options=[Raw(OPTIONS[name])]))
    assert str(reply[TCP].flags) == "SA"


# ---- VLAN tags -----------------------------------------------------------------------------------


def tagged_syn(rig: Rig, vlan: int, prio: int) -> bytes:
    untagged = Ether(rig.frame(rig.segment("S", ack=0)))
    tag = Dot1Q(vlan=vlan, prio=prio)
    return bytes(Ether(src=untagged.src, dst=untagged.dst) / tag / untagged.payload)


def test_a_priority_tag_is_ignored(rig: Rig) -> None:
    rig.listen()
    (reply,) = rig.inject(tagged_syn(rig, 0, 5), after_ns=MS)
    assert Dot1Q not in reply
    assert str(reply[TCP].flags) == "SA"
