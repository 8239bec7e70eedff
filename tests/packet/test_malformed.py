# SPDX-License-Identifier: Apache-2.0
"""Frames that are wrong: dropped, counted under one reason, answered by nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from packet_rig import OUR_ADDRESS, OUR_MAC, PEER_ADDRESS, PEER_MAC, PEER_PORT, PORT, Rig, seal
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrFragment,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

OURS4, PEER4 = OUR_ADDRESS["ipv4"], PEER_ADDRESS["ipv4"]
OURS6, PEER6 = OUR_ADDRESS["ipv6"], PEER_ADDRESS["ipv6"]


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A stack that finds its neighbors itself, in the family of the frame."""
    made = Rig(request.param, own_neighbors=True)
    made.listen()
    yield made
    made.close()


def eth(payload: Packet | bytes, **fields: Any) -> bytes:
    return bytes(Ether(**({"src": PEER_MAC, "dst": OUR_MAC} | fields)) / payload)


def ip4(payload: Packet | bytes, **fields: Any) -> bytes:
    return eth(IP(**({"src": PEER4, "dst": OURS4} | fields)) / payload)


def ip6(payload: Packet | bytes, **fields: Any) -> bytes:
    return eth(IPv6(**({"src": PEER6, "dst": OURS6} | fields)) / payload)


def syn(**fields: Any) -> Packet:
    return TCP(**({"sport": PEER_PORT, "dport": PORT, "flags": "S", "seq": 1} | fields))


def check_dropped(host: Rig, frame: bytes, counter: str) -> None:
    """One counter moves by one, the frame goes home, nothing is said, and the stack lives on."""
    before = host.stack.stats()
    assert host.raw(frame) == []
    after = host.stack.stats()
    names = [name for name in after if name.startswith(("drop_", "nd_ignored"))]
    moved = {name: after[name] - before[name] for name in names if after[name] != before[name]}
    assert moved == {counter: 1}
    assert after["frames_free"] == before["frames_free"]
    assert [str(reply.flags) for reply in host.says("S", ack=0, sport=PEER_PORT + 1)] == ["SA"]


IPV4 = {
    "ethernet-13-bytes": (b"\x02" * 13, "drop_eth_short"),
    "ethernet-other-mac": (eth(IP() / syn(), dst="02:00:00:00:00:99"), "drop_eth_not_ours"),
    "ethernet-unknown-type": (eth(b"x" * 60, type=0x88B5), "drop_eth_type"),
    "arp-wrong-hardware": (eth(ARP(hwtype=6, psrc=PEER4, pdst=OURS4)), "drop_arp_bad"),
    "ip-version-5": (ip4(syn(), version=5), "drop_ip_version"),
    "ip-total-length-beyond": (ip4(syn(), len=1000), "drop_ip_short"),
    "ip-checksum": (ip4(syn(), chksum=0x1234), "drop_ip_checksum"),
    "ip-other-destination": (ip4(syn(), dst="10.0.0.77"), "drop_ip_not_ours"),
    "ip-source-multicast": (ip4(syn(), src="224.0.0.1"), "drop_ip_source"),
    "ip-first-fragment": (ip4(syn(), flags="MF"), "drop_ip_fragment"),
    "ip-later-fragment": (ip4(syn(), frag=8), "drop_ip_fragment"),
    "ip-loose-route-to-go": (
        ip4(syn(), options=[Raw(b"\x83\x07\x04\x0a\0\0\x09\0")]),
        "drop_ip_not_ours",
    ),
    "ip-strict-route-to-go": (
        ip4(syn(), options=[Raw(b"\x01\x89\x0b\x08\x0a\0\0\x08\x0a\0\0\x09")]),
        "drop_ip_not_ours",
    ),
    "ip-protocol": (ip4(Raw(b"x" * 20), proto=132), "drop_ip_protocol"),
    "icmp-checksum": (ip4(ICMP(type=8, chksum=0x1111)), "drop_icmp_bad"),
}


SOURCE = ICMPv6NDOptSrcLLAddr(lladdr=PEER_MAC)
ALL_NODES = IPv6(src=PEER6, dst="ff02::1") / syn()
IPV6 = {
    "truncated-header": (eth(Raw(bytes(IPv6())[:30]), type=0x86DD), "drop_ip_short"),
    "payload-beyond": (ip6(syn(), plen=1000), "drop_ip_short"),
    "other-destination": (ip6(syn(), dst="fd00::77"), "drop_ip_not_ours"),
    "multicast-destination": (eth(ALL_NODES, dst="33:33:00:00:00:01"), "drop_ip_not_ours"),
    "source-multicast": (ip6(syn(), src="ff02::2"), "drop_ip_source"),
    "fragment-first": (ip6(IPv6ExtHdrFragment(m=1, id=1) / syn()), "drop_ip_fragment"),
    "fragment-atomic": (ip6(IPv6ExtHdrFragment(id=1) / syn()), "drop_ip_fragment"),
    "routing-type-0": (
        ip6(IPv6ExtHdrRouting(type=0, segleft=1, addresses=[PEER6]) / syn()),
        "drop_ip6_ext",
    ),
    "routing-to-go": (
        ip6(IPv6ExtHdrRouting(type=2, segleft=1, addresses=[PEER6]) / syn()),
        "drop_ip6_ext",
    ),
    "no-next-header": (ip6(Raw(b""), nh=59), "drop_ip_protocol"),
    "icmp-checksum": (ip6(ICMPv6EchoRequest(cksum=0x1111)), "drop_icmp_bad"),
    "icmp-source-ours": (ip6(ICMPv6EchoRequest(), src=OURS6), "drop_icmp_bad"),
    "icmp-error-source-ours": (
        ip6(ICMPv6DestUnreach() / IPv6(src=OURS6, dst=PEER6) / syn(), src=OURS6),
        "drop_icmp_bad",
    ),
    "solicitation-hop-limit": (ip6(ICMPv6ND_NS(tgt=OURS6) / SOURCE, hlim=254), "drop_nd_bad"),
    "router-advertisement": (ip6(ICMPv6ND_RA(), hlim=255), "nd_ignored"),
    "redirect": (ip6(ICMPv6ND_Redirect(tgt=PEER6, dst=PEER6), hlim=255), "nd_ignored"),
    "tagged-otherwise": (eth(Dot1Q(vlan=9) / IPv6(src=PEER6, dst=OURS6) / syn()), "drop_vlan"),
    "tagged-twice": (
        eth(Dot1AD(vlan=9) / Dot1Q(vlan=0) / IPv6(src=PEER6, dst=OURS6) / syn()),
        "drop_vlan",
    ),
}


@pytest.mark.parametrize("host", ["ipv4"], indirect=True)
@pytest.mark.parametrize("name", IPV4)
def test_an_ipv4_frame_is_dropped_with_its_reason(host: Rig, name: str) -> None:
    check_dropped(host, *IPV4[name])


@pytest.mark.parametrize("host", ["ipv6"], indirect=True)
@pytest.mark.parametrize("name", IPV6)
def test_an_ipv6_frame_is_dropped_with_its_reason(host: Rig, name: str) -> None:
    check_dropped(host, *IPV6[name])


def with_options(options: bytes) -> bytes:
    """A SYN whose option bytes are these (a multiple of 4)."""
    return bytes(syn(dataofs=5 + len(options) // 4))[:20] + options


SEGMENTS = {
    "truncated": (bytes(syn())[:18], "drop_tcp_short"),
    "offset-below-5": (bytes(syn(dataofs=4)), "drop_tcp_short"),
    "offset-beyond": (bytes(syn(dataofs=15)), "drop_tcp_short"),
    "syn-fin": (bytes(syn(flags="SF")), "drop_tcp_flags"),
    "syn-rst": (bytes(syn(flags="SR")), "drop_tcp_flags"),
    "no-flags": (bytes(syn(flags=0)), "drop_tcp_flags"),
    "option-length-0": (with_options(b"\x02\x00\x05\xb4"), "drop_tcp_options"),
    "option-length-1": (with_options(b"\x08\x01\x00\x00"), "drop_tcp_options"),
    "option-beyond-header": (with_options(b"\x01\x01\x02\x08"), "drop_tcp_options"),
    "option-mss-length-3": (with_options(b"\x02\x03\x05\x00"), "drop_tcp_options"),
}


@pytest.mark.parametrize("host", ["ipv4", "ipv6"], indirect=True)
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_is_dropped_with_its_reason(host: Rig, name: str) -> None:
    segment, counter = SEGMENTS[name]
    check_dropped(host, seal(host, segment), counter)


@pytest.mark.parametrize("host", ["ipv4", "ipv6"], indirect=True)
def test_a_wrong_tcp_checksum_is_dropped(host: Rig) -> None:
    check_dropped(host, host.frame(syn(chksum=0x4321)), "drop_tcp_checksum")
