# SPDX-License-Identifier: Apache-2.0
"""The XDP program redirects only HARP's flows: each crafted frame gets one expected verdict."""

import contextlib
import json
import socket
from collections import Counter
from dataclasses import dataclass

import udp_peer
from netns_tools import Tools, finish, inside, xdp_attached
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    ICMPv6TimeExceeded,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet

from harp.lab import Host, Lab

PORT = 61000
FREE = 61001


@dataclass(frozen=True)
class Family:
    """Addresses of one family: the peer's, HARP's, and an unused one."""

    ip: type[Packet]
    peer: str
    own: str
    other: str

    def to_us(self, port: int = PORT) -> Packet:
        """A segment that a stack drops silently (it answers a lone ACK with RST)."""
        return self.ip(src=self.peer, dst=self.own) / TCP(sport=7, dport=port, flags="R")

    def udp_to_us(self) -> Packet:
        """A datagram with a wrong checksum, so that no stack answers it."""
        return self.ip(src=self.peer, dst=self.own) / UDP(dport=PORT, chksum=1)

    def from_us(self, port: int = PORT) -> Packet:
        """The packet that an ICMP error quotes."""
        return self.ip(src=self.own, dst=self.peer) / TCP(sport=port, dport=7)


V4 = Family(IP, "10.77.0.1", "10.77.0.2", "10.77.0.9")
V6 = Family(IPv6, "fd77::1", "fd77::2", "fd77::9")
EACH_FAMILY: list[tuple[str, Packet]] = [
    pair
    for v in (V4, V6)
    for pair in (
        ("redirect_tcp", v.to_us()),
        ("pass_port", v.to_us(FREE)),
        ("pass_port", v.ip(src=v.peer, dst=v.other) / TCP(dport=FREE, flags="R")),
        ("pass_address", v.ip(src=v.peer, dst=v.other) / TCP(dport=PORT, flags="R")),
        ("pass_port", v.ip(src=v.peer, dst=v.own) / UDP(dport=PORT)),  # TCP's port only
        ("pass_protocol", v.ip(src=v.peer, dst=v.own) / SCTP(dport=PORT)),
        # A tag with VLAN 0 is only a priority. Other VLANs do not belong to this interface.
        ("redirect_tcp", Dot1Q(vlan=0, prio=5) / v.to_us()),
        ("pass_port", Dot1Q(vlan=0, prio=5) / v.to_us(FREE)),
        ("pass_vlan", Dot1Q(vlan=5) / v.to_us()),
        ("pass_vlan", Dot1Q(vlan=4095) / v.to_us()),
        ("pass_vlan", Dot1Q(vlan=0) / Dot1Q(vlan=0) / v.to_us()),
        ("pass_vlan", Dot1AD(vlan=0) / v.to_us()),
    )
]


def icmp4(**fields: int) -> Packet:
    return IP(src=V4.peer, dst=V4.own) / ICMP(**fields)


ONLY_V4: list[tuple[str, Packet]] = [
    ("redirect_icmp", icmp4(type=3, code=4) / V4.from_us()),
    ("redirect_icmp", icmp4(type=11) / V4.from_us()),
    ("redirect_icmp", icmp4(type=12) / V4.from_us()),
    ("pass_port", icmp4(type=3, code=4) / V4.from_us(FREE)),
    ("pass_address", icmp4(type=3, code=4) / IP(src=V4.other) / TCP(sport=PORT)),
    ("pass_port", icmp4(type=3) / IP(src=V4.own, dst=V4.peer) / UDP(sport=PORT)),
    ("pass_protocol", icmp4(type=3) / IP(src=V4.own, dst=V4.peer) / SCTP(sport=PORT)),
    ("pass_protocol", icmp4(type=8)),
    ("pass_protocol", icmp4(type=5) / V4.from_us()),  # a redirect
    ("pass_fragment", IP(src=V4.peer, dst=V4.own, flags="MF") / TCP(dport=PORT, flags="R")),
    ("pass_fragment", IP(src=V4.peer, dst=V4.own, frag=100) / TCP(dport=PORT, flags="R")),
    ("pass_fragment", icmp4(type=3) / IP(src=V4.own, frag=1) / TCP(sport=PORT)),
]


def icmp6(message: Packet) -> Packet:
    return IPv6(src=V6.peer, dst=V6.own, hlim=255) / message


ONLY_V6: list[tuple[str, Packet]] = [
    *(
        ("redirect_icmp", icmp6(message) / V6.from_us())
        for message in (
            ICMPv6DestUnreach(code=1),
            ICMPv6PacketTooBig(mtu=1280),
            ICMPv6TimeExceeded(),
            ICMPv6ParamProblem(),
        )
    ),
    ("pass_port", icmp6(ICMPv6PacketTooBig()) / V6.from_us(FREE)),
    ("pass_address", icmp6(ICMPv6PacketTooBig()) / IPv6(src=V6.other) / TCP(sport=PORT)),
    ("pass_port", icmp6(ICMPv6DestUnreach()) / IPv6(src=V6.own) / UDP(sport=PORT)),
    ("pass_protocol", icmp6(ICMPv6DestUnreach()) / IPv6(src=V6.own) / SCTP(sport=PORT)),
    *(
        ("pass_protocol", icmp6(message))
        for message in (
            ICMPv6EchoRequest(),
            ICMPv6ND_NS(tgt=V6.own),
            ICMPv6ND_NA(tgt=V6.peer),
            ICMPv6ND_RA(routerlifetime=0),
            ICMPv6ND_Redirect(tgt=V6.other, dst=V6.peer),
        )
    ),
    *(
        ("pass_header", IPv6(src=V6.peer, dst=V6.own) / header / TCP(dport=PORT, flags="R"))
        for header in (IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt(), IPv6ExtHdrRouting())
    ),
    *(
        ("pass_fragment", IPv6(src=V6.peer, dst=V6.own) / header / TCP(dport=PORT, flags="R"))
        for header in (IPv6ExtHdrFragment(), IPv6ExtHdrFragment(offset=10, m=1))
    ),
]
# Frames that end after this many bytes; veth does not pad them to 60 bytes.
SHORT: list[tuple[str, Packet, int]] = [
    ("pass_short", Dot1Q(vlan=0) / V4.to_us(), 14 + 3),
    ("pass_short", V4.to_us(), 14 + 19),
    ("pass_short", V4.to_us(), 14 + 20 + 19),
    ("pass_short", icmp4(type=3, code=4) / V4.from_us(), 14 + 20 + 8 + 20 + 7),
    ("pass_short", V6.to_us(), 14 + 39),
    ("pass_short", V6.to_us(), 14 + 40 + 19),
    ("pass_short", icmp6(ICMPv6PacketTooBig()) / V6.from_us(), 14 + 40 + 8 + 40 + 7),
]
# While HARP holds the UDP port, but not the TCP port.
UDP_HELD: list[tuple[str, Packet]] = [
    *(
        pair
        for v in (V4, V6)
        for pair in (
            ("redirect_udp", v.udp_to_us()),
            ("redirect_udp", Dot1Q(vlan=0) / v.udp_to_us()),
            ("pass_port", v.ip(src=v.peer, dst=v.own) / UDP(dport=FREE)),
            ("pass_port", v.to_us()),
            ("pass_address", v.ip(src=v.peer, dst=v.other) / UDP(dport=PORT)),
        )
    ),
    ("redirect_icmp", icmp4(type=3, code=3) / IP(src=V4.own, dst=V4.peer) / UDP(sport=PORT)),
    ("pass_port", icmp4(type=3, code=3) / V4.from_us()),
    ("pass_fragment", IP(src=V4.peer, dst=V4.own, flags="MF") / UDP(dport=PORT)),
    ("redirect_icmp", icmp6(ICMPv6DestUnreach(code=4)) / IPv6(src=V6.own) / UDP(sport=PORT)),
    ("pass_port", icmp6(ICMPv6DestUnreach(code=4)) / V6.from_us()),
    ("pass_fragment", IPv6(src=V6.peer, dst=V6.own) / IPv6ExtHdrFragment() / UDP(dport=PORT)),
]
UDP_SHORT: list[tuple[str, Packet, int]] = [
    ("pass_short", V4.ip(src=V4.peer, dst=V4.own) / UDP(dport=PORT), 14 + 20 + 7),
    ("pass_short", V6.ip(src=V6.peer, dst=V6.own) / UDP(dport=PORT), 14 + 40 + 7),
]
# Verdicts that packets of the hosts' kernels get, too.
NOISE = {"pass_protocol", "pass_type", "pass_header"}


def send_frames(lab: Lab, frames: list[bytes]) -> None:
    here = lab.hosts[0]
    with inside(here, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as raw:
        raw.bind((here.ifname, 0))
        for frame in frames:
            raw.send(frame)


def ethernet_of(lab: Lab) -> Ether:
    """Return the Ethernet header of frames from the first host to the second."""
    macs = [
        json.loads(host.run("ip", "-j", "link", "show", host.ifname))[0]["address"]
        for host in lab.hosts
    ]
    return Ether(src=macs[0], dst=macs[1])


def test_udp_ports_are_independent_of_tcp_ports(tools: Tools, dual: Lab) -> None:
    there = dual.hosts[1]
    args = [*udp_peer.PROGRAM, "::", str(PORT)]
    server = tools.serve(there, [*args, *tools.options(there, "harp")])
    ethernet = ethernet_of(dual)
    whole = [(verdict, bytes(ethernet / p)) for verdict, p in UDP_HELD]
    short = [(verdict, bytes(ethernet / p)[:at]) for verdict, p, at in UDP_SHORT]
    send_frames(dual, [frame for _, frame in whole + short])
    server.terminate()
    counts = json.loads(finish(server)[0].splitlines()[-1])["steering"]
    expected = Counter(verdict for verdict, _ in whole + short)
    assert {name: n for name, n in counts.items() if n and name not in NOISE} == expected


def test_every_kind_of_packet_gets_the_expected_verdict(tools: Tools, dual: Lab) -> None:
    here, there = dual.hosts
    serve = [tools.tcp, "serve", "::", str(PORT), *tools.options(there, "harp"), "-o", "json"]
    server = tools.serve(there, serve)
    ethernet = ethernet_of(dual)
    whole = [(verdict, bytes(ethernet / p)) for verdict, p in EACH_FAMILY + ONLY_V4 + ONLY_V6]
    short = [(verdict, bytes(ethernet / p)[:at]) for verdict, p, at in SHORT]
    send_frames(dual, [frame for _, frame in whole + short])
    expected = Counter(verdict for verdict, _ in whole + short)
    # The server reports and exits after one connection.
    tools.call_tcp(here, "kernel", "send", there.address, PORT, "--bytes", "1000")
    report = json.loads(finish(server)[0].splitlines()[-1])
    counts = report["steering"]
    redirected = counts["redirect_tcp"] + counts["redirect_icmp"]
    assert redirected == report["stats"]["rx_packets"]
    assert counts.pop("redirect_tcp") > expected.pop("redirect_tcp")
    for verdict in NOISE & expected.keys():
        assert counts[verdict] >= expected.pop(verdict), verdict
    assert {name: n for name, n in counts.items() if n and name not in NOISE} == expected


def ping(host: Host, address: str) -> None:
    """Send echo requests from the host until one is answered."""
    if ":" in address:
        kind, proto, reply = socket.AF_INET6, socket.IPPROTO_ICMPV6, 129
        request = bytes(ICMPv6EchoRequest(id=7))  # the kernel fills in the checksum
    else:
        kind, proto, reply = socket.AF_INET, socket.IPPROTO_ICMP, 0
        request = bytes(ICMP(id=7))

    with inside(host, lambda: socket.socket(kind, socket.SOCK_RAW, proto)) as raw:
        raw.settimeout(1)
        for _ in range(10):
            raw.sendto(request, (address, 0))
            with contextlib.suppress(TimeoutError):
                while True:
                    packet = raw.recv(2048)
                    if packet[0 if kind == socket.AF_INET6 else 20] == reply:
                        return
    raise TimeoutError(f"{address} does not answer")


def test_the_kernel_answers_pings_and_solicitations(tools: Tools, dual: Lab) -> None:
    """HARP takes ports of the addresses, not the addresses themselves."""
    here, there = dual.hosts
    tools.serve(there, [tools.tcp, "serve", "::", str(PORT), *tools.options(there, "harp")])
    assert xdp_attached(there)
    for family in (V4, V6):
        ping(here, family.own)
        here.run("ip", "neigh", "flush", "dev", here.ifname)  # the next ping solicits again
        ping(here, family.own)
