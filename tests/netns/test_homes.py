# SPDX-License-Identifier: Apache-2.0
"""Ports with a queue, as a lease has: which queue gets a packet, and the answers after its
end."""

import os
from collections.abc import Callable, Iterator

import pytest
from netns_queues import RULE, queue_of, source_port
from netns_tools import OWN, QUEUE_ANY, attach, make_queue
from scapy.layers.inet import IP, TCP, UDP
from test_steering import ethernet_of, send_frames

from harp import _host
from harp._host import Steering
from harp.lab import Lab, LabOptions

QUEUES, HOME = 4, 1
FIRST, LAST = 61000, 61255
REDIRECT_TCP, REDIRECT_UDP = "redirect_tcp", "redirect_udp"
ABSENT, PASS_PORT, RSS_MISMATCH = "absent", "pass_port", "rss_mismatch"
JUDGED = (REDIRECT_TCP, REDIRECT_UDP, ABSENT, PASS_PORT, RSS_MISMATCH)


@pytest.fixture
def lab4(need_root: None) -> Iterator[Lab]:
    """Two hosts whose NICs have four queues and spread by Toeplitz."""
    with Lab(LabOptions(queues=QUEUES, rss=RULE)) as lab:
        yield lab


@pytest.fixture
def steering(lab4: Lab) -> Iterator[Steering]:
    """A block of ports whose home is queue 1, as harpd has it for a lease."""
    steering = attach(lab4.hosts[1])
    steering.address_set(OWN[0], True)
    steering.ports_set(FIRST, LAST, HOME, True)
    yield steering
    steering.close()


def counted(steering: Steering, work: Callable[[], None]) -> dict[str, int]:
    """The verdicts that grew meanwhile, of TCP and UDP."""
    before = steering.verdicts()
    work()
    after = steering.verdicts()
    return {name: after[name] - before[name] for name in JUDGED if after[name] != before[name]}


def test_what_came_to_each_queue(lab4: Lab, steering: Steering) -> None:
    """Packets of ours by queue, answers to stacks of other queues that were dropped there, and of
    how many flows at least. What any host can send without an answer of ours, SYNs and UDP, says
    nothing of where the NIC puts flows."""
    there = lab4.hosts[1]
    held = make_queue(there, HOME)
    steering.xsk_set(HOME, held[0])
    send_frames(lab4, tcp_frames(lab4, FIRST - 1))  # not ours
    assert arrivals(steering) == [(0, 0, 0)] * QUEUES
    for flags in ("S", "R", "A", "SA", "PA"):
        send_frames(lab4, tcp_frames(lab4, FIRST, flags))
    send_frames(lab4, udp_frames(lab4, FIRST))
    lost = (6, 3, 1)
    assert arrivals(steering) == [lost, (6, 0, 0), lost, lost]
    # Neighboring ports are flows of their own.
    here = lab4.hosts[0]
    ethernet = ethernet_of(lab4)
    sources = [
        source
        for source in range(20000, 20064)
        if queue_of((here.address, source), (there.address, FIRST), QUEUES) == 0
    ]
    send_frames(
        lab4,
        [
            bytes(ethernet / IP(src=here.address, dst=there.address) / segment)
            for s in sources
            for segment in (
                TCP(sport=s, dport=FIRST, flags="S"),
                TCP(sport=s, dport=FIRST, flags="SA"),
                UDP(sport=s, dport=FIRST),
            )
        ],
    )
    packets, mismatches, flows = arrivals(steering)[0]
    assert packets == 6 + 3 * len(sources)
    assert mismatches == 3 + len(sources)
    assert len(sources) <= flows <= len(sources) + 1
    for fd in held:
        os.close(fd)


def arrivals(steering: Steering) -> list[tuple[int, int, int]]:
    """For each queue: HARP's packets, mismatches, and how many flows' bits the latter have."""
    return [(packets, lost, bits.bit_count()) for packets, lost, bits in steering.arrivals(QUEUES)]


def frames(lab: Lab, make: Callable[[int], object], port: int) -> list[bytes]:
    """One packet to a port for each queue, in their order."""
    here, there = lab.hosts
    ethernet = ethernet_of(lab)
    made = []
    for queue in range(QUEUES):
        source = source_port(here.address, (there.address, port), queue, QUEUES)
        made.append(bytes(ethernet / IP(src=here.address, dst=there.address) / make(source)))
    return made


def tcp_frames(lab: Lab, port: int, flags: str = "R") -> list[bytes]:
    return frames(lab, lambda source: TCP(sport=source, dport=port, flags=flags), port)


def udp_frames(lab: Lab, port: int) -> list[bytes]:
    return frames(lab, lambda source: UDP(sport=source, dport=port), port)


def test_a_block_ends_at_its_last_port(lab4: Lab, steering: Steering) -> None:
    for port, verdict in (
        (FIRST - 1, PASS_PORT),
        (FIRST, ABSENT),
        (LAST, ABSENT),
        (LAST + 1, PASS_PORT),
    ):
        sent = tcp_frames(lab4, port) + udp_frames(lab4, port)
        counts = counted(steering, lambda sent=sent: send_frames(lab4, sent))
        assert counts == {verdict: 2 * QUEUES}
    # Given up in one protocol, then in the other.
    sent = tcp_frames(lab4, FIRST) + udp_frames(lab4, FIRST)
    steering.ports_set(FIRST, LAST, 0, False, _host.TCP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: QUEUES, ABSENT: QUEUES}
    steering.ports_set(FIRST, LAST, 0, False, _host.UDP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: 2 * QUEUES}


def test_each_protocol_has_a_home_of_its_own(lab4: Lab, steering: Steering) -> None:
    """Two stand-alone instances may have one port number, one TCP's and one UDP's."""
    there = lab4.hosts[1]
    held: list[int] = []
    for queue in (1, 3):
        held += make_queue(there, queue)
        steering.xsk_set(queue, held[-2])
    steering.ports_set(FIRST, FIRST, 3, True, _host.UDP)
    sent = tcp_frames(lab4, FIRST)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_TCP: 1, RSS_MISMATCH: 3}
    sent = udp_frames(lab4, FIRST)
    counts = counted(steering, lambda: send_frames(lab4, sent[3:]))
    assert counts == {REDIRECT_UDP: 1}
    counts = counted(steering, lambda: send_frames(lab4, sent[:3]))
    assert counts == {RSS_MISMATCH: 3}
    # Without a home it is taken wherever a socket is.
    steering.ports_set(FIRST, FIRST, QUEUE_ANY, True, _host.UDP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_UDP: 2, ABSENT: 2}
    for fd in held:
        os.close(fd)
