# SPDX-License-Identifier: Apache-2.0
"""Malformed frames are dropped, counted under one reason, and not answered."""

from collections.abc import Iterator
from typing import Any

import pytest
from packet_rig import OUR_ADDRESS, OUR_MAC, PEER_ADDRESS, PEER_MAC, PEER_PORT, PORT, Rig, seal
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    ICMPv6Unknown,
    IPv6,
    IPv6ExtHdrFragment,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

OURS4, PEER4 = OUR_ADDRESS["ipv4"], PEER_ADDRESS["ipv4"]
OURS6, PEER6 = OUR_ADDRESS["ipv6"], PEER_ADDRESS["ipv6"]
BROADCAST = "ff:ff:ff:ff:ff:ff"


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A stack that resolves its neighbors itself, in the family of the frame."""
    rig = Rig(request.param, own_neighbors=True)
    if request.param == "ipv6":
        rig.stack.address_add(OURS4, 24)  # on the wire, ::ffff:10.0.0.1 is still not ours
    rig.listen()
    yield rig
    rig.close()


def eth(payload: Packet | bytes, **fields: Any) -> bytes:
    return bytes(Ether(**({"src": PEER_MAC, "dst": OUR_MAC} | fields)) / payload)


def ip4(payload: Packet | bytes, **fields: Any) -> bytes:
    return eth(IP(**({"src": PEER4, "dst": OURS4} | fields)) / payload)


def ip6(payload: Packet | bytes, **fields: Any) -> bytes:
    return eth(IPv6(**({"src": PEER6, "dst": OURS6} | fields)) / payload)


def syn(**fields: Any) -> Packet:
    return TCP(**({"sport": PEER_PORT, "dport": PORT, "flags": "S", "seq": 1} | fields))


def with_byte(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes([value]) + frame[at + 1 :]


def check_dropped(host: Rig, frame: bytes, counter: str) -> None:
    """Only this counter increases, by one. The stack frees the frame and sends no answer."""
    before = host.stack.stats()
    assert host.inject(frame) == []
    after = host.stack.stats()
    names = [name for name in after if name.startswith(("drop_", "nd_ignored"))]
    changes = {name: after[name] - before[name] for name in names if after[name] != before[name]}
    assert changes == {counter: 1}
    assert after["frames_free"] == before["frames_free"]
    assert [str(reply.flags) for reply in host.send("S", ack=0, sport=PEER_PORT + 1)] == ["SA"]


def rows(frames: dict[str, dict[str, bytes]]) -> list[Any]:
    return [
        pytest.param(frame, counter, id=name)
        for counter, by_name in frames.items()
        for name, frame in by_name.items()
    ]


def quote(header: Packet) -> bytes:
    """Return what an ICMP error quotes of a segment of the stack: the IP header and 8 bytes."""
    return bytes(header / TCP(sport=61000, dport=5001))[: len(header) + 8]


def unreachable4(**fields: Any) -> bytes:
    quoted = quote(IP(**({"src": OURS4, "dst": PEER4} | fields)))
    return ip4(ICMP(type=3, code=3) / Raw(quoted))


def unreachable6(**fields: Any) -> bytes:
    quoted = quote(IPv6(**({"src": OURS6, "dst": PEER6} | fields)))
    return ip6(ICMPv6DestUnreach(code=4) / Raw(quoted))


ARP_REQUEST = eth(ARP(hwsrc=PEER_MAC, psrc=PEER4, pdst=OURS4), dst=BROADCAST)
IPV4 = {
    "drop_eth_short": {"ethernet-13-bytes": b"\x02" * 13},
    "drop_eth_not_ours": {
        "ethernet-other-mac": eth(IP() / syn(), dst="02:00:00:00:00:99"),
        "ethernet-multicast": eth(IP() / syn(), dst="01:00:5e:00:00:01"),
        "ethernet-broadcast": eth(IP() / syn(), dst=BROADCAST),
        "ethernet-group-of-ipv6": eth(IP() / syn(), dst="33:33:00:00:00:01"),
        "arp-in-a-group-of-ipv6": eth(ARP(psrc=PEER4, pdst=OURS4), dst="33:33:00:00:00:01"),
    },
    "drop_eth_type": {
        "ethernet-unknown-type": eth(b"x" * 60, type=0x88B5),
        "ethernet-802.3-length": eth(b"x" * 60, type=60),
        "ethernet-tagged-unknown-type": eth(Dot1Q(vlan=0, type=0x88B5) / Raw(b"x" * 60)),
    },
    "drop_arp_bad": {
        "arp-41-bytes": ARP_REQUEST[:41],
        "arp-hardware-type": with_byte(ARP_REQUEST, 15, 6),
        "arp-protocol-type": with_byte(ARP_REQUEST, 16, 0x86),
        "arp-hardware-length": with_byte(ARP_REQUEST, 18, 8),
        "arp-protocol-length": with_byte(ARP_REQUEST, 19, 16),
        "arp-operation-0": with_byte(ARP_REQUEST, 21, 0),
        "arp-operation-3": with_byte(ARP_REQUEST, 21, 3),
        "arp-sender-group-mac": with_byte(ARP_REQUEST, 22, 3),
        "arp-sender-no-mac": ARP_REQUEST[:22] + bytes(6) + ARP_REQUEST[28:],
        "arp-sender-multicast": with_byte(ARP_REQUEST, 28, 224),
        "arp-sender-loopback": with_byte(ARP_REQUEST, 28, 127),
        "arp-sender-broadcast": with_byte(ARP_REQUEST, 28, 255),
    },
    "drop_ip_short": {
        "ip-no-header": eth(b"", type=0x0800),
        "ip-19-bytes": ip4(b"")[: 14 + 19],
        "ip-header-beyond": ip4(syn(), ihl=15),
        "ip-total-length-beyond": ip4(syn(), len=1000),
        "ip-total-length-below-header": ip4(syn(), len=19),
    },
    "drop_ip_version": {
        "ip-version-0": ip4(syn(), version=0),
        "ip-version-5": ip4(syn(), version=5),
        "ip-header-of-16-bytes": ip4(syn(), ihl=4),
    },
    "drop_ip_checksum": {"ip-checksum": ip4(syn(), chksum=0x1234)},
    "drop_ip_not_ours": {
        "ip-other-destination": ip4(syn(), dst="10.0.0.77"),
        "ip-broadcast-destination": ip4(syn(), dst="10.0.0.255"),
        "ip-multicast-destination": ip4(syn(), dst="224.0.0.1"),
        "ip-loose-route-to-go": ip4(syn(), options=[Raw(b"\x83\x07\x04\x0a\0\0\x09\0")]),
        "ip-strict-route-to-go": ip4(
            syn(), options=[Raw(b"\x01\x89\x0b\x08\x0a\0\0\x08\x0a\0\0\x09")]
        ),
    },
    "drop_ip_source": {
        "ip-source-unspecified": ip4(syn(), src="0.0.0.2"),
        "ip-source-loopback": ip4(syn(), src="127.0.0.2"),
        "ip-source-multicast": ip4(syn(), src="224.0.0.1"),
        "ip-source-broadcast": ip4(syn(), src="255.0.0.2"),
        "ip-source-subnet-broadcast": ip4(syn(), src="10.0.0.255"),
        "ip-source-ours": ip4(syn(), src=OURS4),
    },
    "drop_ip_fragment": {
        "ip-first-fragment": ip4(syn(), flags="MF"),
        "ip-later-fragment": ip4(syn(), frag=8),
        "ip-last-fragment": ip4(syn(), frag=4096),
    },
    "drop_ip_protocol": {"ip-protocol": ip4(Raw(b"x" * 20), proto=132)},
    "drop_icmp_bad": {
        "icmp-7-bytes": ip4(Raw(b"\x08" + bytes(6)), proto=1),
        "icmp-checksum": ip4(ICMP(type=8, chksum=0x1111)),
        "icmp-echo-code-1": ip4(ICMP(type=8, code=1)),
        "icmp-echo-reply": ip4(ICMP(type=0)),
        "icmp-source-quench": ip4(ICMP(type=4) / IP(src=OURS4) / syn()),
        "icmp-redirect": ip4(ICMP(type=5, gw=PEER4) / IP(src=OURS4) / syn()),
        "icmp-timestamp": ip4(ICMP(type=13)),
        "icmp-information": ip4(ICMP(type=15)),
        "icmp-address-mask": ip4(ICMP(type=17)),
        "quote-short": ip4(ICMP(type=3, code=3) / Raw(quote(IP(src=OURS4, dst=PEER4))[:27])),
        "quote-of-another-host": unreachable4(src="11.0.0.1"),
        "quote-version-6": unreachable4(version=6),
        "quote-header-of-16-bytes": unreachable4(ihl=4),
        "quote-header-beyond": unreachable4(ihl=15),
        "quote-later-fragment": unreachable4(frag=9),
        "quote-protocol-1": unreachable4(proto=1),
    },
}


def ext(first: int, header: bytes) -> bytes:
    """Return a SYN after an extension header that is padded to 16 bytes."""
    return ip6(Raw(header.ljust(16, b"\0")) / syn(), nh=first)


def routed(**fields: Any) -> bytes:
    return ip6(IPv6ExtHdrRouting(segleft=1, addresses=[PEER6], **fields) / syn())


def fragment(**fields: Any) -> bytes:
    return ip6(IPv6ExtHdrFragment(id=1, **fields) / syn())


def icmp6(kind: int, body: bytes, **fields: Any) -> bytes:
    return ip6(ICMPv6Unknown(type=kind, code=0, msgbody=body), **fields)


def nd(message: Packet, dst: str = OURS6, mac: str = OUR_MAC, **fields: Any) -> bytes:
    return eth(IPv6(**({"src": PEER6, "dst": dst, "hlim": 255} | fields)) / message, dst=mac)


def lladdr(kind: int, mac: str = PEER_MAC) -> Packet:
    """Return a source (1) or target (2) link-layer address option."""
    return (ICMPv6NDOptSrcLLAddr if kind == 1 else ICMPv6NDOptDstLLAddr)(lladdr=mac)


def solicitation(option: Packet, **fields: Any) -> bytes:
    return nd(ICMPv6ND_NS(**({"tgt": OURS6} | fields)) / option)


def advertisement(option: Packet, **fields: Any) -> bytes:
    return nd(ICMPv6ND_NA(**({"tgt": OURS6, "R": 0, "S": 1} | fields)) / option)


ALL_NODES = {"dst": "ff02::1", "mac": "33:33:00:00:00:01"}
OUR_GROUP = {"dst": "ff02::1:ff00:1", "mac": "33:33:ff:00:00:01"}
PROBE, ANSWER = ICMPv6ND_NS(tgt=OURS6), ICMPv6ND_NA(tgt=OURS6, R=0, S=1) / lladdr(2)
IPV6 = {
    "drop_eth_not_ours": {
        "ethernet-broadcast": nd(syn(), mac=BROADCAST),
        "ethernet-all-routers": nd(syn(), dst="ff02::2", mac="33:33:00:00:00:02"),
        "ethernet-other-group": nd(syn(), dst="ff02::fb", mac="33:33:00:00:00:fb"),
        "ethernet-no-group": nd(syn(), dst="ff02::1:ff00:1", mac="33:32:ff:00:00:01"),
    },
    "drop_ip_short": {
        "no-header": eth(b"", type=0x86DD),
        "truncated-header": eth(Raw(bytes(IPv6())[:39]), type=0x86DD),
        "payload-beyond": ip6(syn(), plen=1000),
    },
    "drop_ip_version": {"version-4": ip6(syn(), version=4)},
    "drop_ip_not_ours": {
        "other-destination": ip6(syn(), dst="fd00::77"),
        "link-local-destination": ip6(syn(), dst="fe80::1"),
        "loopback-destination": ip6(syn(), dst="::1"),
        "mapped-destination": ip6(syn(), dst=f"::ffff:{OURS4}"),
        "multicast-destination": nd(syn(), **ALL_NODES),
        "own-group-destination": nd(syn(), **OUR_GROUP),
        "other-group-destination": ip6(syn(), dst="ff02::1:ff00:2"),
        "all-routers-destination": ip6(syn(), dst="ff02::2"),
        "site-group-destination": ip6(syn(), dst="ff05::1"),
        "unicast-in-a-group-frame": nd(syn(), mac=ALL_NODES["mac"]),
    },
    "drop_ip_source": {
        "source-unspecified": ip6(syn(), src="::"),
        "source-loopback": ip6(syn(), src="::1"),
        "source-mapped": ip6(syn(), src=f"::ffff:{PEER4}"),
        "source-multicast": ip6(syn(), src="ff02::2"),
        "source-ours": ip6(syn(), src=OURS6),
    },
    "drop_ip_fragment": {
        "fragment-first": fragment(m=1),
        "fragment-later": fragment(offset=1),
        "fragment-atomic": fragment(),
    },
    "drop_ip6_ext": {
        "routing-type-0": routed(type=0),
        "routing-to-go": routed(type=2),
        "routing-type-4": routed(type=4),
        "hop-by-hop-beyond": ext(0, b"\x06\x05"),
        "hop-by-hop-second": ext(60, b"\0\0\x01\x04"),
        "destination-options-beyond": ext(60, b"\x06\xff"),
        "option-beyond-header": ext(60, b"\x06\0\x01\x05"),
        "option-without-length": ext(60, b"\x06\0\x01\x03\0\0\0\x01"),
        "option-discard": ext(60, b"\x06\0\x40\x04"),
        "option-discard-and-report": ext(0, b"\x06\0\x80\x04"),
        "jumbogram": ext(0, b"\x06\0\xc2\x04"),
        "five-headers": ext(60, b"\x3c\0\x01\x04\0\0\0\0" * 4 + b"\x06\0\x01\x04\0\0\0\0"),
        "264-bytes-of-options": ext(60, b"\x06\x20\x01\xff" + bytes(255) + b"\x01\x03" + bytes(3)),
    },
    "drop_ip_protocol": {
        "encryption": ext(50, b"\x06"),
        "authentication": ext(51, b"\x06"),
        "mobility": ext(135, b"\x06"),
        "protocol": ip6(Raw(b"x" * 20), nh=47),
        "no-next-header": ip6(Raw(b""), nh=59),
        "icmp-of-ipv4": ip6(ICMP(), nh=1),
    },
    "drop_icmp_bad": {
        "icmp-7-bytes": icmp6(128, bytes(3)),
        "icmp-type": icmp6(200, bytes(4)),
        "icmp-checksum": ip6(ICMPv6EchoRequest(cksum=0x1111)),
        "icmp-echo-code-1": ip6(ICMPv6EchoRequest(code=1)),
        "icmp-source-unspecified": ip6(ICMPv6EchoRequest(), src="::"),
        "icmp-source-ours": ip6(ICMPv6EchoRequest(), src=OURS6),
        "icmp-error-source-ours": ip6(
            ICMPv6DestUnreach() / IPv6(src=OURS6, dst=PEER6) / syn(), src=OURS6
        ),
        "too-big-below-1280": ip6(
            ICMPv6PacketTooBig(mtu=1279) / Raw(quote(IPv6(src=OURS6, dst=PEER6)))
        ),
        "quote-short": ip6(ICMPv6DestUnreach() / Raw(quote(IPv6(src=OURS6, dst=PEER6))[:47])),
        "quote-of-another-host": unreachable6(src="fd00::b"),
        "quote-version-4": unreachable6(version=4),
        "quote-protocol-58": unreachable6(nh=58),
        "quote-fragment": unreachable6(nh=44),
        "quote-encrypted": unreachable6(nh=50),
        "quote-extension-header-beyond": unreachable6(nh=60),
        "quote-mapped": unreachable6(src=f"::ffff:{OURS4}", dst=f"::ffff:{PEER4}"),
    },
    "drop_nd_bad": {
        "solicitation-hop-limit": nd(PROBE / lladdr(1), hlim=254),
        "advertisement-hop-limit": nd(ANSWER, hlim=0),
        "solicitation-23-bytes": icmp6(135, bytes(19), hlim=255),
        "advertisement-23-bytes": icmp6(136, bytes(19), hlim=255),
        # RFC 4861 section 7.1 on source and destination
        "probe-unspecified-to-one-host": nd(PROBE, src="::"),
        "probe-unspecified-to-all-nodes": nd(PROBE, src="::", **ALL_NODES),
        "probe-unspecified-with-mac": nd(PROBE / lladdr(1), src="::", **OUR_GROUP),
        "advertisement-unspecified": nd(ANSWER, src="::", **ALL_NODES),
        "advertisement-solicited-to-group": nd(ANSWER, **ALL_NODES),
    },
    "nd_ignored": {
        "router-advertisement": ip6(ICMPv6ND_RA(), hlim=255),
        "redirect": ip6(ICMPv6ND_Redirect(tgt=PEER6, dst=PEER6), hlim=255),
    },
    "drop_vlan": {
        "tagged-otherwise": eth(Dot1Q(vlan=9) / IPv6(src=PEER6, dst=OURS6) / syn()),
        "tagged-twice": eth(Dot1AD(vlan=9) / Dot1Q(vlan=0) / IPv6(src=PEER6, dst=OURS6) / syn()),
    },
}
for make, kind in ((solicitation, 1), (advertisement, 2)):
    IPV6["drop_nd_bad"] |= {
        f"{make.__name__}-{what}": frame
        for what, frame in {
            "code": make(lladdr(kind), code=1),
            "multicast-target": make(lladdr(kind), tgt="ff00::1"),
            "mapped-target": make(lladdr(kind), tgt=f"::ffff:{OURS4}"),
            "group-mac": make(lladdr(kind, "33:00:00:00:00:01")),
            "no-mac": make(lladdr(kind, "00:00:00:00:00:00")),
            "option-length-0": make(Raw(bytes([kind]) + bytes(7))),
            "option-beyond": make(Raw(bytes([kind, 2]) + bytes(6))),
            "option-cut": make(Raw(bytes([kind, 1]) + bytes(5))),
            "unknown-option-length-0": make(Raw(b"\x63" + bytes(7))),
            "unknown-option-beyond": make(Raw(b"\x63\x02" + bytes(6))),
        }.items()
    }


@pytest.mark.parametrize("host", ["ipv4"], indirect=True)
@pytest.mark.parametrize(("frame", "counter"), rows(IPV4))
def test_an_ipv4_frame_is_dropped_with_its_reason(host: Rig, frame: bytes, counter: str) -> None:
    check_dropped(host, frame, counter)


@pytest.mark.parametrize("host", ["ipv6"], indirect=True)
@pytest.mark.parametrize(("frame", "counter"), rows(IPV6))
def test_an_ipv6_frame_is_dropped_with_its_reason(host: Rig, frame: bytes, counter: str) -> None:
    check_dropped(host, frame, counter)


def with_options(options: bytes) -> bytes:
    """Return a SYN with these option bytes (a multiple of 4)."""
    return bytes(syn(dataofs=5 + len(options) // 4))[:20] + options


SEGMENTS = {
    "drop_tcp_short": {
        "truncated": bytes(syn())[:18],
        "offset-below-5": bytes(syn(dataofs=4)),
        "offset-beyond": bytes(syn(dataofs=15)),
    },
    "drop_tcp_flags": {
        "syn-fin": bytes(syn(flags="SF")),
        "syn-rst": bytes(syn(flags="SR")),
        "no-flags": bytes(syn(flags=0)),
    },
    "drop_tcp_options": {
        "option-length-0": with_options(b"\x02\x00\x05\xb4"),
        "option-length-1": with_options(b"\x08\x01\x00\x00"),
        "option-beyond-header": with_options(b"\x01\x01\x02\x08"),
        "option-mss-length-3": with_options(b"\x02\x03\x05\x00"),
    },
}


@pytest.mark.parametrize("host", ["ipv4", "ipv6"], indirect=True)
@pytest.mark.parametrize(("segment", "counter"), rows(SEGMENTS))
def test_a_segment_is_dropped_with_its_reason(host: Rig, segment: bytes, counter: str) -> None:
    check_dropped(host, seal(host, segment), counter)


@pytest.mark.parametrize("host", ["ipv4", "ipv6"], indirect=True)
def test_a_wrong_tcp_checksum_is_dropped(host: Rig) -> None:
    check_dropped(host, host.frame(syn(chksum=0x4321)), "drop_tcp_checksum")
