# SPDX-License-Identifier: Apache-2.0
"""allow_sources: real packets to HARP's ports, from listed prefixes and from other sources."""

import errno
import threading
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from netns_tools import AUTO, GENERIC, NATIVE, Tools, adopt, attach, inside, own, serve_pin
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
# No AF_XDP socket is on the queue, so the kernel receives the packets that HARP would get.
TAKEN, DROPPED = "absent", "drop_source"


def prefixes(*texts: str) -> list[tuple[bytes, int]]:
    networks = map(ip_network, texts)
    return [(network.network_address.packed, network.prefixlen) for network in networks]


@pytest.fixture(params=[GENERIC, NATIVE], ids=["generic", "native"])
def steering(request: pytest.FixtureRequest, dual: Lab) -> Iterator[Steering]:
    """The program in each XDP mode."""
    steering = own(attach(dual.hosts[1], request.param))
    yield steering
    steering.close()


def syn(source: str, port: int = PORT) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / TCP(sport=7, dport=port)
    return IP(src=source, dst=V4.own) / TCP(sport=7, dport=port)


def udp(source: str) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / UDP(dport=PORT)
    return IP(src=source, dst=V4.own) / UDP(dport=PORT)


def error(source: str) -> Packet:
    """An ICMP error from the source about a connection of HARP to the peer."""
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / ICMPv6PacketTooBig(mtu=1280) / V6.from_us()
    return IP(src=source, dst=V4.own) / ICMP(type=3, code=4) / V4.from_us()


def fragment(source: str) -> Packet:
    if ":" in source:
        return IPv6(src=source, dst=V6.own) / IPv6ExtHdrFragment(m=1) / TCP(dport=PORT)
    return IP(src=source, dst=V4.own, flags="MF") / TCP(dport=PORT)


def verdict_of(lab: Lab, steering: Steering, packet: Packet) -> str:
    return next(iter(counted(lab, steering, [packet])))


def counted(lab: Lab, steering: Steering, packets: list[Packet]) -> Counter[str]:
    """Send packets. Return the verdicts on them, without those that other kernel packets get."""
    ethernet = ethernet_of(lab)
    before = steering.verdicts()
    send_frames(lab, [bytes(ethernet / packet) for packet in packets])
    after = steering.verdicts()
    noise = {"pass_protocol", "pass_type", "pass_header"}
    growth = {name: after[name] - before[name] for name in after if name not in noise}
    return +Counter(growth)


def resets(host: Host) -> int:
    """Return how many RSTs the host's kernel has sent, over IPv4 and IPv6."""
    lines = host.run("cat", "/proc/net/snmp").splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, numbers, strict=True))["OutRsts"])


ALLOWED = ("10.77.0.1", "10.77.0.127", "fd77::1", "fd77::ffff")
OTHERS = ("10.77.0.128", "10.78.0.1", "192.0.2.1", "fd77::1:0", "fd78::1", "2001:db8::1")
LIST = prefixes("10.77.0.0/25", "fd77::/112")


def test_only_listed_prefixes_reach_harp(dual: Lab, steering: Steering) -> None:
    """TCP, UDP and ICMP errors of both families. The kernel does not answer dropped packets."""
    kinds = (syn, udp, error)
    assert counted(dual, steering, [kind(source) for kind in kinds for source in OTHERS]) == {
        TAKEN: 3 * len(OTHERS)
    }, "without a list every source is allowed"
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


def test_the_list_applies_only_to_harps_packets(dual: Lab, steering: Steering) -> None:
    """Other ports, fragments and VLANs are passed to the kernel from every source."""
    steering.sources_set(LIST)
    packets = [
        packet
        for source in (*ALLOWED, *OTHERS)
        for packet in (syn(source, FREE), fragment(source), Dot1Q(vlan=5) / syn(source))
    ]
    count = len(ALLOWED) + len(OTHERS)
    assert counted(dual, steering, packets) == {
        "pass_port": count,
        "pass_fragment": count,
        "pass_vlan": count,
    }
    # A priority tag (VLAN 0) does not hide the packet from the list.
    assert verdict_of(dual, steering, Dot1Q(vlan=0, prio=5) / syn(OTHERS[0])) == DROPPED
    assert verdict_of(dual, steering, Dot1Q(vlan=0, prio=5) / syn(ALLOWED[0])) == TAKEN


@pytest.fixture
def auto(dual: Lab) -> Iterator[Steering]:
    """The program in one XDP mode, for tests to which the mode does not matter."""
    steering = own(attach(dual.hosts[1], AUTO))
    yield steering
    steering.close()


def allowed(lab: Lab, steering: Steering, *sources: str) -> list[bool]:
    return [verdict_of(lab, steering, syn(source)) == TAKEN for source in sources]


def test_a_family_without_a_prefix_is_closed(dual: Lab, auto: Steering) -> None:
    auto.sources_set(prefixes("0.0.0.0/0"))
    assert allowed(dual, auto, "192.0.2.1", "10.77.0.1", "fd77::1") == [True, True, False]
    # ::/0 contains the IPv4-mapped addresses, but does not allow IPv4 packets.
    auto.sources_set(prefixes("::/0"))
    assert allowed(dual, auto, "192.0.2.1", "10.77.0.1", "fd77::1") == [False, False, True]
    auto.sources_set([])
    assert allowed(dual, auto, "192.0.2.1", "fd77::1", "2001:db8::1") == [True, True, True]


def test_prefixes_of_every_length(dual: Lab, auto: Steering) -> None:
    """The first and last significant bit, and nested prefixes that are added and removed."""
    auto.sources_set(prefixes("10.77.0.1/32", "fd77::1/128"))
    assert allowed(dual, auto, "10.77.0.1", "10.77.0.3", "fd77::1", "fd77::3") == [True, False] * 2
    auto.sources_set(prefixes("0.0.0.0/1", "::/1"))
    sources = ("127.9.9.9", "10.0.0.1", "128.0.0.1", "7fff::1", "fd77::1")
    assert allowed(dual, auto, *sources) == [True, True, False, True, False]
    auto.sources_set(prefixes("10.0.0.0/8", "10.77.0.0/16", "10.77.0.0/24"))
    assert allowed(dual, auto, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, True, True]
    auto.sources_set(prefixes("10.77.0.0/16"))
    assert allowed(dual, auto, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, True, False]
    auto.sources_set(prefixes("10.77.0.0/24"))
    assert allowed(dual, auto, "10.77.0.1", "10.77.9.1", "10.9.0.1") == [True, False, False]


def test_a_full_list_is_replaced_or_stays_in_force(dual: Lab, auto: Steering) -> None:
    """The map cannot hold two full lists: on ENOSPC the old list stays in force."""
    full = [(bytes([9, 9, n, 0]), 24) for n in range(MAX)]
    auto.sources_set(full)
    assert allowed(dual, auto, "9.9.0.1", "9.9.255.1", "10.77.0.1") == [True, True, False]
    with pytest.raises(OSError, match="allow_sources") as error:
        auto.sources_set([(bytes([10, 77, n, 0]), 24) for n in range(MAX)])
    assert error.value.errno == errno.ENOSPC
    assert allowed(dual, auto, "9.9.0.1", "9.9.255.1", "10.77.0.1") == [True, True, False]
    auto.sources_set(full[:128])
    auto.sources_set([(bytes([10, 77, n, 0]), 24) for n in range(128)])
    assert allowed(dual, auto, "9.9.0.1", "10.77.0.1", "10.77.127.1") == [False, True, True]


def test_a_change_drops_no_packet_of_a_source_in_both_lists(dual: Lab, auto: Steering) -> None:
    """During a change the program accepts no packet of a source in neither list."""
    lists = (
        prefixes("10.77.0.0/16", "10.1.0.0/16", "fd77::/16"),
        prefixes("10.77.0.0/24", "10.2.0.0/16", "10.3.0.0/16", "fd77::/64"),
    )
    auto.sources_set(lists[0])
    done, changes = threading.Event(), 0

    def change() -> None:
        nonlocal changes
        while not done.is_set():
            changes += 1
            auto.sources_set(lists[changes % 2])

    thread = threading.Thread(target=lambda: inside(dual.hosts[1], change))
    thread.start()
    try:
        packets = [syn("10.77.0.1"), syn("fd77::1"), syn("10.9.0.1")] * 2000
        ethernet = ethernet_of(dual)
        frames = [bytes(ethernet / packet) for packet in packets]
        before = auto.verdicts()
        for _ in range(20):  # changes are slow on a busy machine
            sent = auto.verdicts()
            send_frames(dual, frames)
            after = auto.verdicts()
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
    """The list is in the maps that the next process adopts, and its new program uses it."""
    host, pins = dual.hosts[1], bpffs / "eth0"
    process = serve_pin(tools, host, pins)
    first = own(adopt(host, pins))
    first.sources_set(LIST)
    first.close()
    process.kill()
    process.communicate()
    second = adopt(host, pins)
    assert allowed(dual, second, "10.77.0.1", "10.78.0.1") == [True, False]
    inside(host, second.replace)
    assert allowed(dual, second, "10.77.0.1", "10.78.0.1", "fd77::1") == [True, False, True]
    second.sources_set(prefixes("10.78.0.0/24"))
    assert allowed(dual, second, "10.77.0.1", "10.78.0.1", "fd77::1") == [False, True, False]
    _host.unpin(str(pins))
    second.close()
