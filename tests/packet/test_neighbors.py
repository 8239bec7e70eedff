# SPDX-License-Identifier: Apache-2.0
"""RFC 826 and 4861: a stack that finds its neighbors itself, and is found."""

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
FIRST_ASKED = {"ipv4": BROADCAST, "ipv6": "33:33:ff:00:00:77"}  # who has UNKNOWN?


class Host(Rig):
    """A stack that finds its neighbors itself, and a socket that sends to an unknown one."""

    def __init__(self, family: str) -> None:
        self.lines: list[str] = []
        super().__init__(
            family,
            own_neighbors=True,
            max_neighbors=16,
            log=lambda _level, line: self.lines.append(line),
        )
        self.other, self.all = UNKNOWN[family], FIRST_ASKED[family]
        self.udp = self.stack.udp()

    def close(self) -> None:
        self.udp.close()
        super().close()

    def datagram(self, address: str | None = None) -> list[Packet]:
        """What leaves when the application sends; the stack may know that the neighbor is gone."""
        with suppress(OSError):
            self.udp.send(b"x", address or self.other, 9)
        return self.poll()

    def known(self) -> None:
        """The neighbor is reachable."""
        self.datagram()
        self.raw(tell(self, self.other, PEER_MAC, asked=True))
        assert went(self.poll() + self.datagram())[-1] == PEER_MAC


@pytest.fixture(params=["ipv4", "ipv6"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(request.param)
    yield made
    made.close()


# ---- packets -------------------------------------------------------------------------------------


def ask(
    rig: Rig, source: str | None = None, target: str | None = None, mac: str = PEER_MAC
) -> bytes:
    """The source requests an address, by default the stack's."""
    source, target = source or rig.peer, target or rig.ours
    if rig.family == "ipv4":
        body = ARP(op=1, hwsrc=mac, psrc=source, pdst=target)
        return bytes(Ether(src=mac, dst=BROADCAST) / body)
    question = ICMPv6ND_NS(tgt=target)
    if source != "::":
        question /= ICMPv6NDOptSrcLLAddr(lladdr=mac)
    ip = IPv6(src=source, dst=OUR_GROUP, hlim=255)
    return bytes(Ether(src=mac, dst=OUR_GROUP_MAC) / ip / question)


def tell(rig: Rig, address: str, mac: str, *, asked: bool, **fields: Any) -> bytes:
    """A host says that it has the address; asked or not."""
    if rig.family == "ipv6":
        said = ICMPv6ND_NA(**({"tgt": address, "R": 0, "S": int(asked), "O": 1} | fields))
        ip = IPv6(src=address, dst=rig.ours, hlim=255)
        return bytes(Ether(src=mac, dst=OUR_MAC) / ip / said / ICMPv6NDOptDstLLAddr(lladdr=mac))
    if asked:
        body = ARP(op=2, hwsrc=mac, psrc=address, hwdst=OUR_MAC, pdst=rig.ours)
        return bytes(Ether(src=mac, dst=OUR_MAC) / body)
    return bytes(Ether(src=mac, dst=BROADCAST) / ARP(op=2, hwsrc=mac, psrc=address, pdst=address))


def asks(packets: list[Packet]) -> list[str]:
    """Where the stack's questions go."""
    for packet in packets:
        if ICMPv6ND_NS in packet:
            assert packet[IPv6].hlim == 255
            assert packet[ICMPv6NDOptSrcLLAddr].lladdr == OUR_MAC
            again = packet.copy()
            del again[ICMPv6ND_NS].cksum
            assert bytes(again) == bytes(packet)
        elif ARP in packet and packet[ARP].op == 1:
            assert packet[ARP].hwsrc == OUR_MAC
    return [
        packet.dst
        for packet in packets
        if ICMPv6ND_NS in packet or (ARP in packet and packet[ARP].op == 1)
    ]


def went(packets: list[Packet]) -> list[str]:
    """Where datagrams go."""
    return [packet.dst for packet in packets if UDP in packet]


# ---- the stack's requests ------------------------------------------------------------------------


def test_one_question_resolves_a_neighbor(host: Host) -> None:
    for _ in range(10):
        host.udp.send(b"x", host.other, 9)
    packets = host.poll()
    assert (asks(packets), went(packets)) == ([host.all], [])
    if host.family == "ipv6":
        assert (packets[0][IPv6].dst, packets[0][ICMPv6ND_NS].tgt) == (
            "ff02::1:ff00:77",
            host.other,
        )
        silent = ICMPv6ND_NA(tgt=host.other, R=0, S=1, O=1)  # without its address
        assert host.raw(host.frame(silent, src=host.other, hlim=255)) == []
    answer = tell(host, host.other, PEER_MAC, asked=True)
    assert went(host.raw(answer) + host.poll()) == [PEER_MAC] * 10


def test_three_unanswered_questions_are_followed_by_a_pause(host: Host) -> None:
    packets = host.datagram() + host.wait(600 * MS)
    assert (asks(packets), went(packets)) == ([host.all] * 3, [])
    assert asks(host.datagram()) == []
    assert asks(host.wait(SECOND))[0] == host.all
    host.raw(tell(host, host.other, PEER_MAC, asked=True))
    assert went(host.poll() + host.datagram())[-1] == PEER_MAC


def test_a_neighbor_in_use_is_probed_and_lost(host: Host) -> None:
    """RFC 4861 section 7.3: stale after 30 s, probed when used, then looked for."""
    host.known()
    for answers in (True, False):
        host.wait(31 * SECOND)
        packets = host.datagram()
        assert (asks(packets), went(packets)) == ([], [PEER_MAC])
        packets = host.wait(5 * SECOND + 50 * MS)
        assert asks(packets) == [PEER_MAC]
        if answers:
            host.raw(tell(host, host.other, PEER_MAC, asked=True))
    assert asks(host.wait(SECOND)) == [PEER_MAC] * 2 + [host.all] * 3


def test_a_claim_does_not_replace_a_reachable_neighbor(host: Host) -> None:
    host.raw(tell(host, host.other, EVIL_MAC, asked=False))  # and nothing is learned from one
    host.known()
    assert asks(host.raw(tell(host, host.other, EVIL_MAC, asked=False))) == [PEER_MAC]
    assert host.stat("drop_arp_claim") == 1
    assert went(host.datagram()) == [PEER_MAC]
    host.raw(tell(host, host.other, EVIL_MAC, asked=True))
    host.raw(tell(host, host.other, PEER_MAC, asked=True))
    assert went(host.datagram()) == [PEER_MAC]


def test_a_neighbor_that_moved_is_found(host: Host) -> None:
    host.known()
    packets = host.raw(tell(host, host.other, EVIL_MAC, asked=False)) + host.wait(350 * MS)
    assert asks(packets) == [PEER_MAC] * 3 + [host.all]
    host.raw(tell(host, host.other, EVIL_MAC, asked=True))
    assert went(host.datagram()) == [EVIL_MAC]


def test_a_claim_replaces_a_stale_entry(host: Host) -> None:
    host.raw(ask(host, host.other))
    packets = host.datagram()
    assert (asks(packets), went(packets)) == ([], [PEER_MAC])  # learned from the peer's own request
    if host.family == "ipv6":  # a proxy may not override
        host.raw(tell(host, host.other, EVIL_MAC, asked=False, O=0))
        assert went(host.datagram()) == [PEER_MAC]
    host.raw(tell(host, host.other, EVIL_MAC, asked=False))
    assert went(host.datagram()) == [EVIL_MAC]
    assert host.stat("drop_arp_claim") == (host.family == "ipv6")


def test_a_flood_does_not_evict_neighbors_in_use(host: Host) -> None:
    """RFC 6583. A neighbor is found in the middle of it."""
    many = "fd00::1:{:x}" if host.family == "ipv6" else "10.0.0.{}"
    for i in range(1000):
        if i == 500:
            host.datagram()
        if i == 505:
            host.raw(tell(host, host.other, PEER_MAC, asked=True))
        host.raw(ask(host, many.format(130 + i % 120), mac=EVIL_MAC))
    assert host.stat("neighbor_full") == 0
    assert went(host.datagram()) == [PEER_MAC]
    for i in range(20):  # at once: some are refused; idle ones make room later
        host.conns.append(host.stack.connect(many.format(10 + i), 9))
    host.poll()
    assert host.stat("neighbor_full") > 0
    host.wait(62 * SECOND)
    full = host.stat("neighbor_full")
    assert asks(host.datagram(many.format(99))) != []
    assert host.stat("neighbor_full") == full


# ---- questions of others -------------------------------------------------------------------------


def test_a_question_for_us_is_answered(host: Host) -> None:
    (reply,) = host.raw(ask(host) + b"\xaa" * 18)  # padded by the link
    assert reply.dst == PEER_MAC
    if host.family == "ipv4":
        arp = reply[ARP]
        assert (arp.op, arp.hwsrc, arp.psrc) == (2, OUR_MAC, host.ours)
        assert (arp.hwdst, arp.pdst) == (PEER_MAC, host.peer)
        (probe,) = host.raw(ask(host, "0.0.0.0"))  # RFC 5227
        assert (probe[ARP].op, probe[ARP].psrc) == (2, host.ours)
    else:
        said = reply[ICMPv6ND_NA]
        assert (said.tgt, said.S, said.O, said.R) == (host.ours, 1, 1, 0)
        assert (reply[IPv6].src, reply[IPv6].dst, reply[IPv6].hlim) == (host.ours, host.peer, 255)
        assert reply[ICMPv6NDOptDstLLAddr].lladdr == OUR_MAC
        (probe,) = host.raw(ask(host, "::"))  # RFC 4862 section 5.4.3
        assert (probe.dst, probe[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
        assert (probe[ICMPv6ND_NA].S, probe[ICMPv6ND_NA].O) == (0, 1)
    assert host.raw(ask(host, target=host.other)) == []


def test_an_address_conflict_is_counted_and_logged_once(host: Host) -> None:
    for _ in range(5):
        assert host.raw(tell(host, host.ours, EVIL_MAC, asked=False)) == []
    host.raw(tell(host, host.ours, OUR_MAC, asked=False))  # our own, back by a loop
    assert host.stat("arp_conflicts") == 5
    assert len([line for line in host.lines if "address" in line]) == 1
    if host.family == "ipv6":
        claim = ICMPv6ND_NA(tgt=host.ours, R=0, O=1) / ICMPv6NDOptDstLLAddr(lladdr=EVIL_MAC)
        host.raw(host.frame(claim, hlim=255), ask(host, host.ours, mac=EVIL_MAC))
        assert host.stat("arp_conflicts") == 7


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_without_neighbors_of_its_own_a_stack_is_silent(family: str) -> None:
    """The kernel answers."""
    rig = Rig(family)
    assert rig.raw(ask(rig), tell(rig, UNKNOWN[family], PEER_MAC, asked=True)) == []
    rig.close()


# ---- connections ---------------------------------------------------------------------------------


def answered(rig: Rig, packets: list[Packet]) -> set[str]:
    """The peer answers requests for it; the destinations of the segments."""
    if any(ARP in packet or ICMPv6ND_NS in packet for packet in packets):
        rig.raw(tell(rig, rig.peer, PEER_MAC, asked=True))
    return {packet.dst for packet in packets if TCP in packet}


@pytest.mark.parametrize("sends", [False, True], ids=["receiver", "sender"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_entry_of_an_active_peer_is_not_replaced(family: str, sends: bool) -> None:
    """RFC 4861 section 7.3.1: what is new in either direction confirms where the peer is."""
    rig = Rig(family, own_neighbors=True)
    rig.raw(ask(rig))
    conn, went = rig.open(), set()
    for second in range(100):
        if sends:
            rig.ack += conn.send(b"a message")
            went |= answered(rig, rig.poll() + rig.raw(rig.frame(rig.segment("A"))))
        else:
            went |= answered(rig, rig.raw(rig.frame(rig.segment("PA", b"news"))))
            rig.seq += len(b"news")
        went |= answered(rig, rig.wait(SECOND))
        if second % 33 == 32:
            went |= answered(rig, rig.raw(tell(rig, rig.peer, EVIL_MAC, asked=False)))
    assert went == {PEER_MAC}
    assert rig.stat("drop_arp_claim") == 3
    conn.abort()
    rig.close()
