# SPDX-License-Identifier: Apache-2.0
"""RFC 826 and 4861: a stack resolves its neighbors and answers requests for its address."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from packet_rig import MS, OUR_MAC, PEER_MAC, SECOND, Rig
from scapy.layers.inet import TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

EVIL_MAC, BROADCAST = "02:66:66:66:66:66", "ff:ff:ff:ff:ff:ff"
OUR_GROUP, OUR_GROUP_MAC = "ff02::1:ff00:1", "33:33:ff:00:00:01"
UNKNOWN = {"ipv4": "10.0.0.119", "ipv6": "fd00::77"}
# The destination of the first request for UNKNOWN.
REQUEST_MAC = {"ipv4": BROADCAST, "ipv6": "33:33:ff:00:00:77"}


class Host(Rig):
    """A stack that resolves its neighbors itself, and a socket that sends to an unknown one."""

    def __init__(self, family: str) -> None:
        self.lines: list[str] = []
        super().__init__(
            family,
            own_neighbors=True,
            max_neighbors=16,
            log=lambda _level, line: self.lines.append(line),
        )
        self.other, self.request_mac = UNKNOWN[family], REQUEST_MAC[family]
        self.udp = self.stack.udp()

    def close(self) -> None:
        self.udp.close()
        super().close()

    def send_datagram(self, address: str | None = None) -> list[Packet]:
        """Send a datagram, which fails if the stack knows that the neighbor is unreachable."""
        with suppress(OSError):
            self.udp.send(b"x", address or self.other, 9)
        return self.poll()

    def make_reachable(self) -> None:
        """Bring the neighbor to REACHABLE."""
        self.send_datagram()
        self.inject(advertise(self, self.other, PEER_MAC, solicited=True))
        assert datagram_macs(self.poll() + self.send_datagram())[-1] == PEER_MAC


@pytest.fixture(params=["ipv4", "ipv6"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(request.param)
    yield host
    host.close()


# ---- packets -------------------------------------------------------------------------------------


def request_from(
    rig: Rig, source: str | None = None, target: str | None = None, mac: str = PEER_MAC
) -> bytes:
    """Return a request of the source (default: the peer) for an address (default: the stack's)."""
    source, target = source or rig.peer, target or rig.ours
    if rig.family == "ipv4":
        body = ARP(op=1, hwsrc=mac, psrc=source, pdst=target)
        return bytes(Ether(src=mac, dst=BROADCAST) / body)
    solicitation = ICMPv6ND_NS(tgt=target)
    if source != "::":
        solicitation /= ICMPv6NDOptSrcLLAddr(lladdr=mac)
    ip = IPv6(src=source, dst=OUR_GROUP, hlim=255)
    return bytes(Ether(src=mac, dst=OUR_GROUP_MAC) / ip / solicitation)


def advertise(rig: Rig, address: str, mac: str, *, solicited: bool, **fields: Any) -> bytes:
    """Return an advertisement or ARP reply that the address has the MAC."""
    if rig.family == "ipv6":
        body = ICMPv6ND_NA(**({"tgt": address, "R": 0, "S": int(solicited), "O": 1} | fields))
        ip = IPv6(src=address, dst=rig.ours, hlim=255)
        return bytes(Ether(src=mac, dst=OUR_MAC) / ip / body / ICMPv6NDOptDstLLAddr(lladdr=mac))
    if solicited:
        body = ARP(op=2, hwsrc=mac, psrc=address, hwdst=OUR_MAC, pdst=rig.ours)
        return bytes(Ether(src=mac, dst=OUR_MAC) / body)
    return bytes(Ether(src=mac, dst=BROADCAST) / ARP(op=2, hwsrc=mac, psrc=address, pdst=address))


def request_macs(packets: list[Packet]) -> list[str]:
    """Check the stack's requests. Return their destinations."""
    for packet in packets:
        if ICMPv6ND_NS in packet:
            assert packet[IPv6].hlim == 255
            assert packet[ICMPv6NDOptSrcLLAddr].lladdr == OUR_MAC
            copy = packet.copy()
            del copy[ICMPv6ND_NS].cksum
            assert bytes(copy) == bytes(packet)
        elif ARP in packet and packet[ARP].op == 1:
            assert packet[ARP].hwsrc == OUR_MAC
    return [
        packet.dst
        for packet in packets
        if ICMPv6ND_NS in packet or (ARP in packet and packet[ARP].op == 1)
    ]


def datagram_macs(packets: list[Packet]) -> list[str]:
    return [packet.dst for packet in packets if UDP in packet]


# ---- the stack's requests ------------------------------------------------------------------------


def test_one_request_resolves_a_neighbor(host: Host) -> None:
    for _ in range(10):
        host.udp.send(b"x", host.other, 9)
    packets = host.poll()
    assert (request_macs(packets), datagram_macs(packets)) == ([host.request_mac], [])
    if host.family == "ipv6":
        assert (packets[0][IPv6].dst, packets[0][ICMPv6ND_NS].tgt) == (
            "ff02::1:ff00:77",
            host.other,
        )
        without_mac = ICMPv6ND_NA(tgt=host.other, R=0, S=1, O=1)
        assert host.inject(host.frame(without_mac, src=host.other, hlim=255)) == []
    answer = advertise(host, host.other, PEER_MAC, solicited=True)
    assert datagram_macs(host.inject(answer) + host.poll()) == [PEER_MAC] * 10


def test_three_unanswered_requests_are_followed_by_a_pause(host: Host) -> None:
    packets = host.send_datagram() + host.wait(600 * MS)
    assert (request_macs(packets), datagram_macs(packets)) == ([host.request_mac] * 3, [])
    assert request_macs(host.send_datagram()) == []
    assert request_macs(host.wait(SECOND))[0] == host.request_mac
    host.inject(advertise(host, host.other, PEER_MAC, solicited=True))
    assert datagram_macs(host.poll() + host.send_datagram())[-1] == PEER_MAC


def test_a_neighbor_in_use_is_probed_and_lost(host: Host) -> None:
    """RFC 4861 section 7.3: stale after 30 s, probed by unicast if used, then resolved again."""
    host.make_reachable()
    for answers in (True, False):
        host.wait(31 * SECOND)
        packets = host.send_datagram()
        assert (request_macs(packets), datagram_macs(packets)) == ([], [PEER_MAC])
        packets = host.wait(5 * SECOND + 50 * MS)
        assert request_macs(packets) == [PEER_MAC]
        if answers:
            host.inject(advertise(host, host.other, PEER_MAC, solicited=True))
    assert request_macs(host.wait(SECOND)) == [PEER_MAC] * 2 + [host.request_mac] * 3


def test_a_claim_does_not_replace_a_reachable_neighbor(host: Host) -> None:
    host.inject(advertise(host, host.other, EVIL_MAC, solicited=False))  # adds no entry
    host.make_reachable()
    assert request_macs(host.inject(advertise(host, host.other, EVIL_MAC, solicited=False))) == [
        PEER_MAC
    ]
    assert host.stat("drop_arp_claim") == 1
    assert datagram_macs(host.send_datagram()) == [PEER_MAC]
    host.inject(advertise(host, host.other, EVIL_MAC, solicited=True))
    host.inject(advertise(host, host.other, PEER_MAC, solicited=True))
    assert datagram_macs(host.send_datagram()) == [PEER_MAC]


def test_a_neighbor_that_moved_is_found(host: Host) -> None:
    host.make_reachable()
    packets = host.inject(advertise(host, host.other, EVIL_MAC, solicited=False)) + host.wait(
        350 * MS
    )
    assert request_macs(packets) == [PEER_MAC] * 3 + [host.request_mac]
    host.inject(advertise(host, host.other, EVIL_MAC, solicited=True))
    assert datagram_macs(host.send_datagram()) == [EVIL_MAC]


def test_a_claim_replaces_a_stale_entry(host: Host) -> None:
    host.inject(request_from(host, host.other))
    packets = host.send_datagram()
    assert (request_macs(packets), datagram_macs(packets)) == (
        [],
        [PEER_MAC],
    )  # learned from the peer's request
    if host.family == "ipv6":  # a proxy may not override
        host.inject(advertise(host, host.other, EVIL_MAC, solicited=False, O=0))
        assert datagram_macs(host.send_datagram()) == [PEER_MAC]
    host.inject(advertise(host, host.other, EVIL_MAC, solicited=False))
    assert datagram_macs(host.send_datagram()) == [EVIL_MAC]
    assert host.stat("drop_arp_claim") == (host.family == "ipv6")


def test_a_flood_does_not_evict_neighbors_in_use(host: Host) -> None:
    """RFC 6583. The stack can resolve a neighbor during the flood."""
    many = "fd00::1:{:x}" if host.family == "ipv6" else "10.0.0.{}"
    for i in range(1000):
        if i == 500:
            host.send_datagram()
        if i == 505:
            host.inject(advertise(host, host.other, PEER_MAC, solicited=True))
        host.inject(request_from(host, many.format(130 + i % 120), mac=EVIL_MAC))
    assert host.stat("neighbor_full") == 0
    assert datagram_macs(host.send_datagram()) == [PEER_MAC]
    for i in range(20):  # at once: the table refuses some, until idle entries can be evicted
        host.conns.append(host.stack.connect(many.format(10 + i), 9))
    host.poll()
    assert host.stat("neighbor_full") > 0
    host.wait(62 * SECOND)
    full = host.stat("neighbor_full")
    assert request_macs(host.send_datagram(many.format(99))) != []
    assert host.stat("neighbor_full") == full


# ---- requests of other hosts ---------------------------------------------------------------------


def test_a_request_for_our_address_is_answered(host: Host) -> None:
    (reply,) = host.inject(request_from(host) + b"\xaa" * 18)  # Ethernet padding
    assert reply.dst == PEER_MAC
    if host.family == "ipv4":
        arp = reply[ARP]
        assert (arp.op, arp.hwsrc, arp.psrc) == (2, OUR_MAC, host.ours)
        assert (arp.hwdst, arp.pdst) == (PEER_MAC, host.peer)
        (probe,) = host.inject(request_from(host, "0.0.0.0"))  # RFC 5227
        assert (probe[ARP].op, probe[ARP].psrc) == (2, host.ours)
    else:
        body = reply[ICMPv6ND_NA]
        assert (body.tgt, body.S, body.O, body.R) == (host.ours, 1, 1, 0)
        assert (reply[IPv6].src, reply[IPv6].dst, reply[IPv6].hlim) == (host.ours, host.peer, 255)
        assert reply[ICMPv6NDOptDstLLAddr].lladdr == OUR_MAC
        (probe,) = host.inject(request_from(host, "::"))  # RFC 4862 section 5.4.3
        assert (probe.dst, probe[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
        assert (probe[ICMPv6ND_NA].S, probe[ICMPv6ND_NA].O) == (0, 1)
    assert host.inject(request_from(host, target=host.other)) == []


def test_an_address_conflict_is_counted_and_logged_once(host: Host) -> None:
    for _ in range(5):
        assert host.inject(advertise(host, host.ours, EVIL_MAC, solicited=False)) == []
    host.inject(
        advertise(host, host.ours, OUR_MAC, solicited=False)
    )  # our own packet, returned by a loop
    assert host.stat("arp_conflicts") == 5
    assert len([line for line in host.lines if "address" in line]) == 1
    if host.family == "ipv6":
        claim = ICMPv6ND_NA(tgt=host.ours, R=0, O=1) / ICMPv6NDOptDstLLAddr(lladdr=EVIL_MAC)
        host.inject(host.frame(claim, hlim=255), request_from(host, host.ours, mac=EVIL_MAC))
        assert host.stat("arp_conflicts") == 7


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_stack_without_own_neighbors_is_silent(family: str) -> None:
    """On a shared NIC the kernel answers."""
    rig = Rig(family)
    assert (
        rig.inject(request_from(rig), advertise(rig, UNKNOWN[family], PEER_MAC, solicited=True))
        == []
    )
    rig.close()


# ---- connections ---------------------------------------------------------------------------------


def answer_requests(rig: Rig, packets: list[Packet]) -> set[str]:
    """Answer requests for the peer's address. Return the destinations of the segments."""
    if any(ARP in packet or ICMPv6ND_NS in packet for packet in packets):
        rig.inject(advertise(rig, rig.peer, PEER_MAC, solicited=True))
    return {packet.dst for packet in packets if TCP in packet}


@pytest.mark.parametrize("sends", [False, True], ids=["receiver", "sender"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_entry_of_an_active_peer_is_not_replaced(family: str, sends: bool) -> None:
    """RFC 4861 section 7.3.1: new data and new ACKs of the peer confirm its entry."""
    rig = Rig(family, own_neighbors=True)
    rig.inject(request_from(rig))
    conn, macs = rig.open(), set()
    for second in range(100):
        if sends:
            rig.ack += conn.send(b"a message")
            macs |= answer_requests(rig, rig.poll() + rig.inject(rig.frame(rig.segment("A"))))
        else:
            macs |= answer_requests(rig, rig.inject(rig.frame(rig.segment("PA", b"news"))))
            rig.seq += len(b"news")
        macs |= answer_requests(rig, rig.wait(SECOND))
        if second % 33 == 32:
            macs |= answer_requests(
                rig, rig.inject(advertise(rig, rig.peer, EVIL_MAC, solicited=False))
            )
    assert macs == {PEER_MAC}
    assert rig.stat("drop_arp_claim") == 3
    conn.abort()
    rig.close()
