# SPDX-License-Identifier: Apache-2.0
"""The sources that may send to HARP's ports: real packets, from listed prefixes and from others."""

import errno
import threading
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from netns_tools import (
    AUTO,
    GENERIC,
    NATIVE,
    Tools,
    adopt,
    attach,
    inside,
    own,
    serve_pin,
)
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet
from test_steering import V4, V6, ethernet_of, send_frames

from harp import _host
from harp._host import Steering
from harp.lab import Host, Lab

PORT, FREE = 61000, 61001
MAX = 256  # STEER_SOURCES_MAX
# Nobody's socket is on the queue, so the kernel gets what the program takes for HARP's.
TAKEN, DROPPED = "absent", "drop_source"


def prefixes(*texts: str) -> list[tuple[bytes, int]]:
    networks = map(ip_network, texts)
    return [(each.network_address.packed, each.prefixlen) for each in networks]


@pytest.fixture(params=[GENERIC, NATIVE], ids=["generic", "native"])
def steering(request: pytest.FixtureRequest, dual: Lab) -> Iterator[Steering]:
    """In each place that the program can be."""
    made = own(attach(dual.hosts[1], request.param))
    yield made
    made.close()


def syn(source: str, port: int = PORT) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / TCP(sport=7, dport=port)
    return IP(src=source, dst=V4.own) / TCP(sport=7, dport=port)


def udp(source: str) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / UDP(dport=PORT)
    return IP(src=source, dst=V4.own) / UDP(dport=PORT)


def error(source: str) -> Packet:
    """An ICMP error of that router, about a connection of HARP's to the peer."""
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / ICMPv6PacketTooBig(mtu=1280) / V6.from_us()
    return IP(src=source, dst=V4.own) / ICMP(type=3, code=4) / V4.from_us()


def fragment(source: str) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / IPv6ExtHdrFragment(m=1) / TCP(dport=PORT)
    return IP(src=source, dst=V4.own, flags="MF") / TCP(dport=PORT)


def verdict_of(lab: Lab, steering: Steering, packet: Packet) -> str:
    """What became of one packet."""
    return next(iter(counted(lab, steering, [packet])))


def counted(lab: Lab, steering: Steering, packets: list[Packet]) -> Counter[str]:
    """The verdicts that grew meanwhile, but those of what kernels send by themselves."""
    ethernet = ethernet_of(lab)
    before = steering.verdicts()
    send_frames(lab, [bytes(ethernet / packet) for packet in packets])
    after = steering.verdicts()
    noise = {"pass_protocol", "pass_type", "pass_header"}
    grown = {name: after[name] - before[name] for name in after if name not in noise}
    return +Counter(grown)


def resets(host: Host) -> int:
    """RSTs that the host's kernel has sent, over IPv4 and IPv6."""
    lines = host.run("cat", "/proc/net/snmp").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, numbers, strict=True))["OutRsts"])


ALLOWED = ("10.77.0.1", "10.77.0.127", "fd77::1", "fd77::ffff")
OTHERS = ("10.77.0.128", "10.78.0.1", "192.0.2.1", "fd77::1:0", "fd78::1", "2001:db8::1")
LIST = prefixes("10.77.0.0/25", "fd77::/112")


def test_only_listed_prefixes_reach_harp(dual: Lab, steering: Steering) -> None:
    """TCP, UDP and ICMP errors of both families; what is dropped the kernel does not answer."""
    kinds = (syn, udp, error)
    assert counted(dual, steering, [kind(source) for kind in kinds for source in OTHERS]) == {
        TAKEN: 3 * len(OTHERS)
    }, "without a list every source is taken"
    steering.sources_set(LIST)
    before = resets(dual.hosts[1])
    assert counted(dual, steering, [kind(source) for kind in kinds for source in OTHERS]) == {
        DROPPED: 3 * len(OTHERS)
    }
    assert resets(dual.hosts[1]) == before
    assert counted(dual, steering, [kind(source) for kind in kinds for source in ALLOWED]) == {
        TAKEN: 3 * len(ALLOWED)
    }
    assert resets(dual.hosts[1]) == before + len(ALLOWED)


def test_the_list_concerns_nothing_but_harps_packets(dual: Lab, steering: Steering) -> None:
    """Other ports, fragments and VLANs are the kernel's, from wherever they come."""
    steering.sources_set(LIST)
    packets = [
        each
        for source in (*ALLOWED, *OTHERS)
        for each in (syn(source, FREE), fragment(source), Dot1Q(vlan=5) / syn(source))
    ]
    count = len(ALLOWED) + len(OTHERS)
    assert counted(dual, steering, packets) == {
        "pass_port": count,
        "pass_fragment": count,
        "pass_vlan": count,
    }
    # A priority tag is none: what it hides is judged like anything else.
    assert verdict_of(dual, steering, Dot1Q(vlan=0, prio=5) / syn(OTHERS[0])) == DROPPED
    assert verdict_of(dual, steering, Dot1Q(vlan=0, prio=5) / syn(ALLOWED[0])) == TAKEN


@pytest.fixture
def one(dual: Lab) -> Iterator[Steering]:
    """Where the place does not matter."""
    made = own(attach(dual.hosts[1], AUTO))
    yield made
    made.close()


def taken(lab: Lab, steering: Steering, *sources: str) -> list[bool]:
    return [verdict_of(lab, steering, syn(source)) == TAKEN for source in sources]


def test_a_family_without_a_prefix_is_closed(dual: Lab, one: Steering) -> None:
    one.sources_set(prefixes("0.0.0.0/0"))
    assert taken(dual, one, "192.0.2.1", "10.77.0.1", "fd77::1") == [True, True, False]
    # IPv6's everything has all mapped addresses in it, and no packet of IPv4.
    one.sources_set(prefixes("::/0"))
    assert taken(dual, one, "192.0.2.1", "10.77.0.1", "fd77::1") == [False, False, True]
    one.sources_set([])
    assert taken(dual, one, "192.0.2.1", "fd77::1", "2001:db8::1") == [True, True, True]


def test_prefixes_of_every_length(dual: Lab, one: Steering) -> None:
    """The first and last bit that count, and prefixes in prefixes that come and go."""
    one.sources_set(prefixes("10.77.0.1/32", "fd77::1/128"))
    assert taken(dual, one, "10.77.0.1", "10.77.0.3", "fd77::1", "fd77::3") == [True, False] * 2
    one.sources_set(prefixes("0.0.0.0/1", "::/1"))
    sources = ("127.9.9.9", "10.0.0.1", "128.0.0.1", "7fff::1", "fd77::1")
    assert taken(dual, one, *sources) == [True, True, False, True, False]
    one.sources_set(prefixes("10.0.0.0/8", "10.77.0.0/16", "10.77.0.0/24"))
    assert taken(dual, one, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, True, True]
    one.sources_set(prefixes("10.77.0.0/16"))
    assert taken(dual, one, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, True, False]
    one.sources_set(prefixes("10.77.0.0/24"))
    assert taken(dual, one, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, False, False]


def test_a_full_list_is_replaced_or_left_as_it_was(dual: Lab, one: Steering) -> None:
    """The map has no room for two full lists at once: the one before stays in force."""
    full = [(bytes([9, 9, n, 0]), 24) for n in range(MAX)]
    one.sources_set(full)
    assert taken(dual, one, "9.9.0.1", "9.9.255.1", "10.77.0.1") == [True, True, False]
    with pytest.raises(OSError, match="allow_sources") as found:
        one.sources_set([(bytes([10, 77, n, 0]), 24) for n in range(MAX)])
    assert found.value.errno == errno.ENOSPC
    assert taken(dual, one, "9.9.0.1", "9.9.255.1", "10.77.0.1") == [True, True, False]
    one.sources_set(full[:128])
    one.sources_set([(bytes([10, 77, n, 0]), 24) for n in range(128)])
    assert taken(dual, one, "9.9.0.1", "10.77.0.1", "10.77.127.1") == [False, True, True]


def test_no_packet_of_a_source_that_stays_is_dropped_by_a_change(dual: Lab, one: Steering) -> None:
    """And none of a source that neither list has is taken."""
    lists = (
        prefixes("10.77.0.0/16", "10.1.0.0/16", "fd77::/16"),
        prefixes("10.77.0.0/24", "10.2.0.0/16", "10.3.0.0/16", "fd77::/64"),
    )
    one.sources_set(lists[0])
    done, changes = threading.Event(), 0

    def change() -> None:
        nonlocal changes
        while not done.is_set():
            changes += 1
            one.sources_set(lists[changes % 2])

    thread = threading.Thread(target=lambda: inside(dual.hosts[1], change))
    thread.start()
    try:
        packets = [syn("10.77.0.1"), syn("fd77::1"), syn("10.9.0.1")] * 2000
        ethernet = ethernet_of(dual)
        frames = [bytes(ethernet / packet) for packet in packets]
        before = one.verdicts()
        for _ in range(20):  # changes are as slow as the kernel is busy
            sent = one.verdicts()
            send_frames(dual, frames)
            after = one.verdicts()
            assert after[TAKEN] - sent[TAKEN] == 4000
            assert after[DROPPED] - sent[DROPPED] == 2000
            if changes > 20:
                break
        assert changes > 20
        assert after[TAKEN] > before[TAKEN]
    finally:
        done.set()
        thread.join()


def test_the_source_list_outlives_its_process(tools: Tools, dual: Lab, bpffs: Path) -> None:
    """In the maps that the next one adopts, and under the program that replaces it."""
    host, at = dual.hosts[1], bpffs / "eth0"
    maker = serve_pin(tools, host, at)
    first = own(adopt(host, at))
    first.sources_set(LIST)
    first.close()
    maker.kill()
    maker.communicate()
    again = adopt(host, at)
    assert taken(dual, again, "10.77.0.1", "10.78.0.1") == [True, False]
    inside(host, again.replace)
    assert taken(dual, again, "10.77.0.1", "10.78.0.1", "fd77::1") == [True, False, True]
    again.sources_set(prefixes("10.78.0.0/24"))
    assert taken(dual, again, "10.77.0.1", "10.78.0.1", "fd77::1") == [False, True, False]
    _host.unpin(str(at))
    again.close()
