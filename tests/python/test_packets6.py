# SPDX-License-Identifier: Apache-2.0
"""The stack against IPv6 packets made by scapy, and against tagged frames of both families."""

from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    RouterAlert,
)
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

from harp._core import CallbackNic, Connection, Stack

OUR_MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
OURS, PEER = "fd00::1", "fd00::2"
OURS4, PEER4 = "10.0.0.1", "10.0.0.2"
GROUP, GROUP_MAC = "ff02::1:ff00:1", "33:33:ff:00:00:01"
PORT, PEER_PORT = 7000, 40000
MS = 1_000_000


class Rig:
    """A stack that listens on IPv6, and the hand that writes its packets."""

    def __init__(self, vlan: int = 0) -> None:
        self.now = 10**9
        self.nic = CallbackNic(mac=OUR_MAC)
        self.stack = Stack(self.nic, seed=7, now_ns=self.now, vlan_id=vlan)
        self.stack.address_add(OURS, 64)
        self.stack.address_add(OURS4, 24)
        self.stack.neighbour_set(PEER, PEER_MAC)
        self.stack.neighbour_set(PEER4, PEER_MAC)
        self.listener = self.stack.listen(PORT)
        self.stack.poll(self.now)
        self.nic.collect()
        self.seq, self.ack = 1000, 0

    def close(self) -> None:
        self.stack.close()
        self.nic.close()

    def raw(self, frame: bytes) -> list[Packet]:
        self.nic.inject(frame)
        self.now += MS
        self.stack.poll(self.now)
        return [Ether(out) for out in self.nic.collect()]

    def wait(self, duration_ns: int) -> list[Packet]:
        out, end = [], self.now + duration_ns
        while True:
            deadline = self.stack.next_deadline_ns
            self.now = min(end, max(self.now, deadline if deadline is not None else end))
            self.stack.poll(self.now)
            out += [Ether(frame) for frame in self.nic.collect()]
            if self.now >= end:
                return out
            self.now += 1

    def ip6(self, payload: Packet, **fields: Any) -> list[Packet]:
        fields = {"src": PEER, "dst": OURS} | fields
        return self.raw(bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / IPv6(**fields) / payload))

    def segment(self, flags: str, data: bytes = b"", **fields: Any) -> Packet:
        fields = {"seq": self.seq, "ack": self.ack, "window": 65535} | fields
        fields = {"sport": PEER_PORT, "dport": PORT} | fields
        segment = TCP(flags=flags, **fields)
        return segment / Raw(data) if data else segment

    def tcp(self, flags: str, data: bytes = b"", **fields: Any) -> list[Packet]:
        return self.ip6(self.segment(flags, data, **fields))

    def open(self) -> Connection:
        reply = self.tcp("S", ack=0, options=[("MSS", 1440)])[0][TCP]
        assert str(reply.flags) == "SA"
        self.seq, self.ack = self.seq + 1, reply.seq + 1
        self.tcp("A")
        conn = self.listener.accept()
        assert conn is not None
        return conn

    def dropped(self, frame: bytes) -> dict[str, int]:
        """The drop counters that one frame moves; it must be answered by nothing."""
        before = self.stack.stats()
        assert self.raw(frame) == []
        after = self.stack.stats()
        assert after["frames_free"] == before["frames_free"], "the frame went home"
        keys = [key for key in after if key.startswith(("drop_", "nd_ignored"))]
        return {key: after[key] - before[key] for key in keys if after[key] != before[key]}


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def again(packet: Packet) -> Packet:
    """The packet with its checksums computed by scapy."""
    copy = packet.copy()
    layer = copy[IPv6].payload
    if TCP in copy:
        del copy[TCP].chksum
    elif hasattr(layer, "cksum"):
        del layer.cksum
    return Ether(bytes(copy))


# ---- TCP -----------------------------------------------------------------------------------------


def test_syn_is_answered_over_ipv6(rig: Rig) -> None:
    reply = rig.tcp("S", ack=0, options=[("MSS", 1440)])[0]
    assert (reply[Ether].dst, reply[IPv6].src, reply[IPv6].dst) == (PEER_MAC, OURS, PEER)
    assert str(reply[TCP].flags) == "SA"
    assert dict(reply[TCP].options)["MSS"] == 1500 - 60, "RFC 8200 section 8.3"
    assert reply[IPv6].hlim == 64
    assert bytes(again(reply)) == bytes(reply)


def test_flow_label_is_constant_per_connection(rig: Rig) -> None:
    other = rig.tcp("S", ack=0, sport=PEER_PORT + 1)[0][IPv6].fl
    conn = rig.open()
    conn.send(b"hello")
    sent = [packet for packet in rig.wait(2000 * MS) if TCP in packet]
    labels = {packet[IPv6].fl for packet in sent if packet[TCP].dport == PEER_PORT}
    assert len(labels) == 1, "RFC 6437 section 3"
    assert 0 not in labels
    assert other not in labels
    conn.abort()


def test_data_arrives_and_is_acknowledged(rig: Rig) -> None:
    conn = rig.open()
    replies = rig.tcp("PA", b"hello") + rig.wait(300 * MS)
    assert conn.recv() == b"hello"
    assert replies[-1][TCP].ack == rig.seq + 5
    conn.abort()


def test_a_segment_for_nobody_is_answered_with_rst(rig: Rig) -> None:
    reply = rig.tcp("A", dport=7999, ack=77)[0]
    assert str(reply[TCP].flags) == "R"
    assert reply[TCP].seq == 77
    assert bytes(again(reply)) == bytes(reply)


def test_traffic_class_is_the_dscp(rig: Rig) -> None:
    conn = rig.stack.connect(PEER, 9, dscp=46)
    syn = next(packet for packet in rig.wait(10 * MS) if TCP in packet)
    assert syn[IPv6].tc == 46 << 2
    conn.abort()


def test_both_families_reach_one_listener(rig: Rig) -> None:
    frame = Ether(src=PEER_MAC, dst=OUR_MAC) / IP(src=PEER4, dst=OURS4) / rig.segment("S", ack=0)
    assert str(rig.raw(bytes(frame))[0][TCP].flags) == "SA"
    assert str(rig.tcp("S", ack=0)[0][TCP].flags) == "SA"


EXTENSIONS: dict[str, Packet] = {
    "hop-by-hop-router-alert": IPv6ExtHdrHopByHop(options=[RouterAlert()]),
    "destination-padding": IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 20)]),
    "hop-by-hop-and-destination": IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt(),
    "routing-done": IPv6ExtHdrRouting(type=2, segleft=0, addresses=[PEER]),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_extension_headers_are_stepped_over(rig: Rig, name: str) -> None:
    reply = rig.ip6(EXTENSIONS[name] / rig.segment("S", ack=0))[0]
    assert str(reply[TCP].flags) == "SA", "RFC 8200 section 4"


# ---- path MTU ------------------------------------------------------------------------------------


def too_big(packet: Packet, mtu: int) -> Packet:
    return ICMPv6PacketTooBig(mtu=mtu) / Raw(bytes(packet[IPv6])[:1232])


def test_too_big_makes_segments_smaller(rig: Rig) -> None:
    conn = rig.open()
    conn.send(b"x" * 1440)
    sent = next(packet for packet in rig.wait(MS) if len(packet) > 1000)
    replies = rig.ip6(too_big(sent, 1280), src="fd00::fe")
    assert max(len(packet[IPv6]) for packet in replies) == 1280
    conn.abort()


@pytest.mark.parametrize("mtu", [0, 68, 576, 1279])
def test_too_big_below_the_minimum_is_discarded(rig: Rig, mtu: int) -> None:
    conn = rig.open()
    conn.send(b"x" * 1440)
    sent = next(packet for packet in rig.wait(MS) if len(packet) > 1000)
    assert rig.ip6(too_big(sent, mtu), src="fd00::fe") == [], "RFC 8201 section 4"
    assert rig.stack.stat("drop_icmp_bad") == 1
    conn.abort()


def test_too_big_behind_extension_headers_is_understood(rig: Rig) -> None:
    conn = rig.open()
    conn.send(b"x" * 1440)
    sent = next(packet for packet in rig.wait(MS) if len(packet) > 1000)
    quoted = IPv6(src=OURS, dst=PEER) / IPv6ExtHdrDestOpt() / sent[TCP]
    replies = rig.ip6(ICMPv6PacketTooBig(mtu=1400) / Raw(bytes(quoted)[:200]))
    assert max(len(packet[IPv6]) for packet in replies) == 1400
    conn.abort()


@pytest.mark.parametrize(("code", "error"), [(4, 111), (1, 113)])
def test_unreachable_ends_a_connect(rig: Rig, code: int, error: int) -> None:
    conn = rig.stack.connect(PEER, 9)
    syn = next(packet for packet in rig.wait(10 * MS) if TCP in packet)
    rig.ip6(ICMPv6DestUnreach(code=code) / Raw(bytes(syn[IPv6])))
    assert conn.error == error
    conn.close()


def test_hop_limit_exceeded_is_soft(rig: Rig) -> None:
    conn = rig.stack.connect(PEER, 9)
    syn = next(packet for packet in rig.wait(10 * MS) if TCP in packet)
    rig.ip6(ICMPv6TimeExceeded() / Raw(bytes(syn[IPv6])))
    assert conn.state == "SYN-SENT"
    conn.abort()


# ---- echo and neighbour discovery ----------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 56, 1452])
def test_ping_is_answered_byte_for_byte(rig: Rig, size: int) -> None:
    data = (bytes(range(256)) * 6)[:size]
    reply = rig.ip6(ICMPv6EchoRequest(id=3, seq=4, data=data))[0]
    assert (reply[ICMPv6EchoReply].id, reply[ICMPv6EchoReply].seq) == (3, 4)
    assert bytes(reply[ICMPv6EchoReply].data) == data
    assert bytes(again(reply)) == bytes(reply)


def solicit(**fields: Any) -> bytes:
    ip = IPv6(**({"src": PEER, "dst": GROUP, "hlim": 255} | fields))
    ask = ICMPv6ND_NS(tgt=OURS)
    if fields.get("src") != "::":
        ask /= ICMPv6NDOptSrcLLAddr(lladdr=PEER_MAC)
    return bytes(Ether(src=PEER_MAC, dst=GROUP_MAC) / ip / ask)


def test_a_solicitation_is_answered(rig: Rig) -> None:
    reply = rig.raw(solicit())[0]
    answer = reply[ICMPv6ND_NA]
    assert (reply[Ether].dst, reply[IPv6].dst, reply[IPv6].hlim) == (PEER_MAC, PEER, 255)
    assert (answer.tgt, answer.R, answer.S, answer.O) == (OURS, 0, 1, 1)
    assert reply[ICMPv6NDOptDstLLAddr].lladdr == OUR_MAC
    assert bytes(again(reply)) == bytes(reply)


def test_a_probe_for_our_address_is_told_to_all(rig: Rig) -> None:
    reply = rig.raw(solicit(src="::"))[0]
    assert (reply[Ether].dst, reply[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
    assert (reply[ICMPv6ND_NA].S, reply[ICMPv6ND_NA].O) == (0, 1), "RFC 4862 section 5.4.3"


def test_a_connect_asks_for_its_neighbour(rig: Rig) -> None:
    conn = rig.stack.connect("fd00::abcd", 9)
    asked = rig.wait(10 * MS)[0]
    assert (asked[Ether].dst, asked[IPv6].dst) == ("33:33:ff:00:ab:cd", "ff02::1:ff00:abcd")
    assert asked[ICMPv6ND_NS].tgt == "fd00::abcd"
    answer = ICMPv6ND_NA(tgt="fd00::abcd", R=0, S=1, O=1) / ICMPv6NDOptDstLLAddr(lladdr=PEER_MAC)
    replies = rig.ip6(answer, src="fd00::abcd", hlim=255)
    assert [str(packet[TCP].flags) for packet in replies] == ["S"]
    conn.abort()


# ---- VLAN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [4, 6])
def test_a_tagged_stack_speaks_tagged(family: int) -> None:
    rig = Rig(vlan=7)
    ip = IP(src=PEER4, dst=OURS4) if family == 4 else IPv6(src=PEER, dst=OURS)
    frame = Ether(src=PEER_MAC, dst=OUR_MAC) / Dot1Q(vlan=7, prio=3) / ip / rig.segment("S", ack=0)
    reply = rig.raw(bytes(frame))[0]
    assert reply[Dot1Q].vlan == 7
    assert str(reply[TCP].flags) == "SA"
    rig.close()


def test_a_priority_tag_equals_none(rig: Rig) -> None:
    frame = Ether(src=PEER_MAC, dst=OUR_MAC) / Dot1Q(vlan=0, prio=5) / IPv6(src=PEER, dst=OURS)
    reply = rig.raw(bytes(frame / rig.segment("S", ack=0)))[0]
    assert Dot1Q not in reply
    assert str(reply[TCP].flags) == "SA"


# ---- malformed: dropped, counted under its reason, answered by nothing ---------------------------


def eth(payload: Packet, **fields: Any) -> bytes:
    return bytes(Ether(**({"src": PEER_MAC, "dst": OUR_MAC} | fields)) / payload)


def ip6(payload: Packet, **fields: Any) -> bytes:
    return eth(IPv6(**({"src": PEER, "dst": OURS} | fields)) / payload)


SYN = TCP(sport=PEER_PORT, dport=PORT, flags="S", seq=1)
MALFORMED = {
    "truncated-header": (eth(Raw(bytes(IPv6())[:30]), type=0x86DD), "drop_ip_short"),
    "payload-beyond": (ip6(SYN, plen=1000), "drop_ip_short"),
    "version-4": (ip6(SYN, version=4), "drop_ip_version"),
    "other-destination": (ip6(SYN, dst="fd00::77"), "drop_ip_not_ours"),
    "multicast-destination": (
        eth(IPv6(src=PEER, dst="ff02::1") / SYN, dst="33:33:00:00:00:01"),
        "drop_ip_not_ours",
    ),
    "mapped-destination": (ip6(SYN, dst="::ffff:10.0.0.1"), "drop_ip_not_ours"),
    "source-multicast": (ip6(SYN, src="ff02::2"), "drop_ip_source"),
    "source-unspecified": (ip6(SYN, src="::"), "drop_ip_source"),
    "source-loopback": (ip6(SYN, src="::1"), "drop_ip_source"),
    "source-mapped": (ip6(SYN, src="::ffff:10.0.0.2"), "drop_ip_source"),
    "source-ours": (ip6(SYN, src=OURS), "drop_ip_source"),
    "fragment-first": (ip6(IPv6ExtHdrFragment(m=1, id=1) / SYN), "drop_ip_fragment"),
    "fragment-later": (ip6(IPv6ExtHdrFragment(offset=8, id=1) / SYN), "drop_ip_fragment"),
    "fragment-atomic": (ip6(IPv6ExtHdrFragment(id=1) / SYN), "drop_ip_fragment"),
    "routing-type-0": (ip6(IPv6ExtHdrRouting(type=0, addresses=[PEER]) / SYN), "drop_ip6_ext"),
    "routing-to-go": (
        ip6(IPv6ExtHdrRouting(type=2, segleft=1, addresses=[PEER]) / SYN),
        "drop_ip6_ext",
    ),
    "hop-by-hop-second": (ip6(IPv6ExtHdrDestOpt() / IPv6ExtHdrHopByHop() / SYN), "drop_ip6_ext"),
    "header-beyond": (ip6(IPv6ExtHdrDestOpt(len=40) / SYN), "drop_ip6_ext"),
    "no-next-header": (ip6(Raw(b""), nh=59), "drop_ip_protocol"),
    "tcp-checksum": (ip6(TCP(sport=1, dport=PORT, flags="S", chksum=0x4321)), "drop_tcp_checksum"),
    "icmp-checksum": (ip6(ICMPv6EchoRequest(cksum=0x1111)), "drop_icmp_bad"),
    "icmp-unknown": (ip6(ICMPv6EchoReply()), "drop_icmp_bad"),
    "solicitation-hop-limit": (solicit(hlim=254), "drop_nd_bad"),
    "solicitation-option-0": (
        ip6(ICMPv6ND_NS(tgt=OURS) / Raw(b"\x01\x00" + b"\0" * 6), hlim=255),
        "drop_nd_bad",
    ),
    "router-advertisement": (ip6(ICMPv6ND_RA(), hlim=255), "nd_ignored"),
    "redirect": (ip6(ICMPv6ND_Redirect(tgt=PEER, dst=PEER), hlim=255), "nd_ignored"),
    "tagged-otherwise": (eth(Dot1Q(vlan=9) / IPv6(src=PEER, dst=OURS) / SYN), "drop_vlan"),
    "tagged-twice": (
        eth(Dot1AD(vlan=9) / Dot1Q(vlan=0) / IPv6(src=PEER, dst=OURS) / SYN),
        "drop_vlan",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_dropped_with_its_reason(rig: Rig, name: str) -> None:
    frame, counter = MALFORMED[name]
    assert rig.dropped(frame) == {counter: 1}
    assert rig.tcp("S", ack=0, sport=PEER_PORT + 1), "the stack lives on"
