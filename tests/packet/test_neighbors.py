# SPDX-License-Identifier: Apache-2.0
"""RFC 826 and 4861: a stack that finds its neighbors itself, and is found."""

from collections.abc import Iterator
from typing import Any

import pytest
from packet_rig import OUR_MAC, PEER_MAC, SECOND, Rig
from scapy.layers.inet import TCP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

EVIL_MAC = "02:66:66:66:66:66"
GROUP, GROUP_MAC = "ff02::1:ff00:1", "33:33:ff:00:00:01"


@pytest.fixture
def host4() -> Iterator[Rig]:
    made = Rig("ipv4", own_neighbors=True)
    yield made
    made.close()


@pytest.fixture
def host6() -> Iterator[Rig]:
    made = Rig("ipv6", own_neighbors=True)
    yield made
    made.close()


# ---- ARP -----------------------------------------------------------------------------------------


def who_has(rig: Rig, address: str) -> bytes:
    ask = ARP(op=1, hwsrc=PEER_MAC, psrc=rig.peer, pdst=address)
    return bytes(Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff") / ask)


def test_a_connect_asks_for_its_next_hop(host4: Rig) -> None:
    host4.conns.append(host4.stack.connect("10.0.0.77", 9))
    (asked,) = host4.poll()
    assert (asked[Ether].dst, asked[ARP].op, asked[ARP].pdst) == (
        "ff:ff:ff:ff:ff:ff",
        1,
        "10.0.0.77",
    )
    told = ARP(op=2, hwsrc=PEER_MAC, psrc="10.0.0.77", hwdst=OUR_MAC, pdst=host4.ours)
    replies = host4.raw(bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / told))
    assert [str(packet[TCP].flags) for packet in replies] == ["S"]


def claim(rig: Rig, mac: str, *, asked: bool) -> bytes:
    """Somebody says that the peer's address is his; asked or not."""
    if rig.family == "ipv6":
        said = ICMPv6ND_NA(tgt=rig.peer, R=0, S=int(asked), O=1)
        return rig.frame(said / ICMPv6NDOptDstLLAddr(lladdr=mac), src=rig.peer, hlim=255)
    told = ARP(op=2 if asked else 1, hwsrc=mac, psrc=rig.peer, hwdst=OUR_MAC, pdst=rig.ours)
    return bytes(Ether(src=mac, dst=OUR_MAC) / told)


def answered(rig: Rig, packets: list[Packet]) -> set[str]:
    """The peer answers who asks for it; where the segments went."""
    if any(ARP in packet or ICMPv6ND_NS in packet for packet in packets):
        rig.raw(claim(rig, PEER_MAC, asked=True))
    return {packet.dst for packet in packets if TCP in packet}


@pytest.mark.parametrize("sends", [False, True], ids=["receiver", "sender"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_entry_of_an_active_peer_is_not_replaced(family: str, sends: bool) -> None:
    """RFC 4861 section 7.3.1: what is new in either direction confirms where the peer is."""
    rig = Rig(family, own_neighbors=True)
    rig.raw(who_has(rig, rig.ours) if family == "ipv4" else solicit(rig))
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
            went |= answered(rig, rig.raw(claim(rig, EVIL_MAC, asked=False)))
    assert went == {PEER_MAC}
    assert rig.stat("drop_arp_claim") == 3
    conn.abort()
    rig.close()


# ---- neighbor discovery -------------------------------------------------------------------------


def solicit(rig: Rig, **fields: Any) -> bytes:
    ip = IPv6(**({"src": rig.peer, "dst": GROUP, "hlim": 255} | fields))
    ask = ICMPv6ND_NS(tgt=rig.ours)
    if fields.get("src") != "::":
        ask /= ICMPv6NDOptSrcLLAddr(lladdr=PEER_MAC)
    return bytes(Ether(src=PEER_MAC, dst=GROUP_MAC) / ip / ask)


def test_a_probe_for_our_address_is_answered_to_all_nodes(host6: Rig) -> None:
    """RFC 4862 section 5.4.3."""
    (reply,) = host6.raw(solicit(host6, src="::"))
    assert (reply[Ether].dst, reply[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
    assert (reply[ICMPv6ND_NA].S, reply[ICMPv6ND_NA].O) == (0, 1)


def test_a_connect_asks_for_its_neighbor(host6: Rig) -> None:
    host6.conns.append(host6.stack.connect("fd00::abcd", 9))
    (asked,) = host6.poll()
    assert (asked[Ether].dst, asked[IPv6].dst) == ("33:33:ff:00:ab:cd", "ff02::1:ff00:abcd")
    assert asked[ICMPv6ND_NS].tgt == "fd00::abcd"
    answer = ICMPv6ND_NA(tgt="fd00::abcd", R=0, S=1, O=1) / ICMPv6NDOptDstLLAddr(lladdr=PEER_MAC)
    replies = host6.raw(host6.frame(answer, src="fd00::abcd", hlim=255))
    assert [str(packet[TCP].flags) for packet in replies] == ["S"]
