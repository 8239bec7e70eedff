# SPDX-License-Identifier: Apache-2.0
"""A port's queue, as a lease has it: the XDP program's verdict for packets on each queue."""

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

QUEUES, PORT_QUEUE = 4, 1
FIRST, LAST = 61000, 61255
REDIRECT_TCP, REDIRECT_UDP = "redirect_tcp", "redirect_udp"
ABSENT, PASS_PORT, RSS_MISMATCH = "absent", "pass_port", "rss_mismatch"
VERDICTS = (REDIRECT_TCP, REDIRECT_UDP, ABSENT, PASS_PORT, RSS_MISMATCH)


@pytest.fixture
def lab4(need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(queues=QUEUES, rss=RULE)) as lab:
        yield lab


@pytest.fixture
def steering(lab4: Lab) -> Iterator[Steering]:
    """A block of ports on queue 1, as in a lease of harpd."""
    steering = attach(lab4.hosts[1])
    steering.address_set(OWN[0], True)
    steering.ports_set(FIRST, LAST, PORT_QUEUE, True)
    yield steering
    steering.close()


def counted(steering: Steering, work: Callable[[], None]) -> dict[str, int]:
    """Return the TCP and UDP verdicts that work() caused."""
    before = steering.verdicts()
    work()
    after = steering.verdicts()
    return {name: after[name] - before[name] for name in VERDICTS if after[name] != before[name]}


def test_arrivals_and_mismatches_are_counted_by_queue(lab4: Lab, steering: Steering) -> None:
    """Each queue counts HARP's packets, those with ACK that another queue owns, and their flows.

    Any host can send SYNs and UDP without an answer of ours: they are not counted as mismatches.
    """
    there = lab4.hosts[1]
    fds = make_queue(there, PORT_QUEUE)
    steering.xsk_set(PORT_QUEUE, fds[0])
    send_frames(lab4, tcp_frames(lab4, FIRST - 1))  # not a port of HARP
    assert arrivals(steering) == [(0, 0, 0)] * QUEUES
    for flags in ("S", "R", "A", "SA", "PA"):
        send_frames(lab4, tcp_frames(lab4, FIRST, flags))
    send_frames(lab4, udp_frames(lab4, FIRST))
    mismatched = (6, 3, 1)
    assert arrivals(steering) == [mismatched, (6, 0, 0), mismatched, mismatched]
    # Neighboring ports are separate flows.
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
    for fd in fds:
        os.close(fd)


def arrivals(steering: Steering) -> list[tuple[int, int, int]]:
    """Return HARP's packets, mismatches and the bits set for the latter's flows, by queue."""
    return [
        (packets, mismatches, flows.bit_count())
        for packets, mismatches, flows in steering.arrivals(QUEUES)
    ]


def frames(lab: Lab, make: Callable[[int], object], port: int) -> list[bytes]:
    """Return one packet to the port for each queue, in order of queues."""
    here, there = lab.hosts
    ethernet = ethernet_of(lab)
    result = []
    for queue in range(QUEUES):
        source = source_port(here.address, (there.address, port), queue, QUEUES)
        result.append(bytes(ethernet / IP(src=here.address, dst=there.address) / make(source)))
    return result


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
    # The block is released for TCP, then for UDP.
    sent = tcp_frames(lab4, FIRST) + udp_frames(lab4, FIRST)
    steering.ports_set(FIRST, LAST, 0, False, _host.TCP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: QUEUES, ABSENT: QUEUES}
    steering.ports_set(FIRST, LAST, 0, False, _host.UDP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: 2 * QUEUES}


def test_tcp_and_udp_ports_have_separate_queues(lab4: Lab, steering: Steering) -> None:
    """Two instances without harpd may hold the same port number, one for TCP and one for UDP."""
    there = lab4.hosts[1]
    fds: list[int] = []
    for queue in (1, 3):
        fds += make_queue(there, queue)
        steering.xsk_set(queue, fds[-2])
    steering.ports_set(FIRST, FIRST, 3, True, _host.UDP)
    sent = tcp_frames(lab4, FIRST)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_TCP: 1, RSS_MISMATCH: 3}
    sent = udp_frames(lab4, FIRST)
    counts = counted(steering, lambda: send_frames(lab4, sent[3:]))
    assert counts == {REDIRECT_UDP: 1}
    counts = counted(steering, lambda: send_frames(lab4, sent[:3]))
    assert counts == {RSS_MISMATCH: 3}
    # With QUEUE_ANY, every queue with a socket receives the packets.
    steering.ports_set(FIRST, FIRST, QUEUE_ANY, True, _host.UDP)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_UDP: 2, ABSENT: 2}
    for fd in fds:
        os.close(fd)
