# SPDX-License-Identifier: Apache-2.0
"""RFC 826 and 4861: a stack that finds its neighbours itself, and is found."""

from collections.abc import Iterator
from typing import Any

import pytest
from packet_rig import OUR_MAC, PEER_MAC, Rig
from scapy.layers.inet import TCP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether

GROUP, GROUP_MAC = "ff02::1:ff00:1", "33:33:ff:00:00:01"


@pytest.fixture
def host4() -> Iterator[Rig]:
    made = Rig("ipv4", own_neighbours=True)
    yield made
    made.close()


@pytest.fixture
def host6() -> Iterator[Rig]:
    made = Rig("ipv6", own_neighbours=True)
    yield made
    made.close()


# ---- ARP -----------------------------------------------------------------------------------------


def who_has(rig: Rig, address: str) -> bytes:
    ask = ARP(op=1, hwsrc=PEER_MAC, psrc=rig.peer, pdst=address)
    return bytes(Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff") / ask)


def test_arp_is_answered(host4: Rig) -> None:
    (reply,) = host4.raw(who_has(host4, host4.ours))
    assert (reply[ARP].op, reply[ARP].hwsrc, reply[ARP].psrc) == (2, OUR_MAC, host4.ours)
    assert (reply[Ether].dst, reply[ARP].hwdst) == (PEER_MAC, PEER_MAC)


def test_arp_for_others_is_not_answered(host4: Rig) -> None:
    assert host4.raw(who_has(host4, "10.0.0.9")) == []


def test_a_connect_asks_for_its_next_hop(host4: Rig) -> None:
    conn = host4.stack.connect("10.0.0.77", 9)
    (asked,) = host4.poll()
    assert (asked[Ether].dst, asked[ARP].op, asked[ARP].pdst) == (
        "ff:ff:ff:ff:ff:ff",
        1,
        "10.0.0.77",
    )
    told = ARP(op=2, hwsrc=PEER_MAC, psrc="10.0.0.77", hwdst=OUR_MAC, pdst=host4.ours)
    replies = host4.raw(bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / told))
    assert [str(packet[TCP].flags) for packet in replies] == ["S"]
    conn.abort()


# ---- neighbour discovery -------------------------------------------------------------------------


def solicit(rig: Rig, **fields: Any) -> bytes:
    ip = IPv6(**({"src": rig.peer, "dst": GROUP, "hlim": 255} | fields))
    ask = ICMPv6ND_NS(tgt=rig.ours)
    if fields.get("src") != "::":
        ask /= ICMPv6NDOptSrcLLAddr(lladdr=PEER_MAC)
    return bytes(Ether(src=PEER_MAC, dst=GROUP_MAC) / ip / ask)


def test_a_solicitation_is_answered(host6: Rig) -> None:
    (reply,) = host6.raw(solicit(host6))
    answer = reply[ICMPv6ND_NA]
    assert (reply[Ether].dst, reply[IPv6].dst, reply[IPv6].hlim) == (PEER_MAC, host6.peer, 255)
    assert (answer.tgt, answer.R, answer.S, answer.O) == (host6.ours, 0, 1, 1)
    assert reply[ICMPv6NDOptDstLLAddr].lladdr == OUR_MAC
    again = reply.copy()
    del again[ICMPv6ND_NA].cksum
    assert bytes(again) == bytes(reply), "checksum"


def test_a_probe_for_our_address_is_told_to_all(host6: Rig) -> None:
    """RFC 4862 section 5.4.3."""
    (reply,) = host6.raw(solicit(host6, src="::"))
    assert (reply[Ether].dst, reply[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
    assert (reply[ICMPv6ND_NA].S, reply[ICMPv6ND_NA].O) == (0, 1)


def test_a_connect_asks_for_its_neighbour(host6: Rig) -> None:
    conn = host6.stack.connect("fd00::abcd", 9)
    (asked,) = host6.poll()
    assert (asked[Ether].dst, asked[IPv6].dst) == ("33:33:ff:00:ab:cd", "ff02::1:ff00:abcd")
    assert asked[ICMPv6ND_NS].tgt == "fd00::abcd"
    answer = ICMPv6ND_NA(tgt="fd00::abcd", R=0, S=1, O=1) / ICMPv6NDOptDstLLAddr(lladdr=PEER_MAC)
    replies = host6.raw(host6.frame(answer, src="fd00::abcd", hlim=255))
    assert [str(packet[TCP].flags) for packet in replies] == ["S"]
    conn.abort()
