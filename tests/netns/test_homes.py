# SPDX-License-Identifier: Apache-2.0
"""Ports with a home queue, as a lease has: which queue gets a packet, and the answers after its
end."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from netns_queues import RULE, Prediction, connection, syns_until_refused
from netns_tools import attach, inside, wait_until
from scapy.layers.inet import IP, TCP, UDP
from steering_api import HOME_NONE, QUEUES_MAX, Library, RefusedError, Steering
from steering_api import TCP as TCP_BIT
from steering_api import UDP as UDP_BIT
from test_steering import ethernet_of, send_frames

from harp.lab import Lab, LabOptions

QUEUES, HOME = 4, 1
FIRST, LAST = 61000, 61255
OWN = bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2])  # ::ffff:10.77.0.2
REDIRECT_TCP, REDIRECT_UDP = "redirect_tcp", "redirect_udp"
ABSENT, PASS_PORT, RSS_MISMATCH = "absent", "pass_port", "rss_mismatch"
JUDGED = (REDIRECT_TCP, REDIRECT_UDP, ABSENT, PASS_PORT, RSS_MISMATCH)


@pytest.fixture
def lab4(need_root: None) -> Iterator[Lab]:
    """Two hosts whose NICs have four queues and spread by Toeplitz."""
    with Lab(LabOptions(queues=QUEUES, rss=RULE)) as lab:
        yield lab


@pytest.fixture
def steering(lab4: Lab, library: Library) -> Iterator[Steering]:
    """A block of ports whose home is queue 1, as harpd has it for a lease."""
    steering = attach(library, lab4.hosts[1])
    steering.address_set(OWN)
    steering.ports_set(TCP_BIT | UDP_BIT, FIRST, LAST, HOME)
    yield steering
    steering.detach()


@pytest.fixture
def predict(build_dir: Path) -> Prediction:
    return Prediction(build_dir, RULE, QUEUES)


def counted(steering: Steering, work: Callable[[], None]) -> dict[str, int]:
    """The verdicts that grew meanwhile, of TCP and UDP."""
    before = steering.verdicts()
    work()
    after = steering.verdicts()
    return {name: after[name] - before[name] for name in JUDGED if after[name] != before[name]}


def refused_at_once(lab: Lab, source: int, port: int) -> None:
    """The kernel says RST to the first SYN."""
    here, there = lab.hosts
    assert syns_until_refused(here, source, (there.address, port)) == 1


def call(lab: Lab, source: int, port: int, timeout_s: float) -> None:
    here, there = lab.hosts
    with connection(here, source, (there.address, port), timeout_s):
        pass


def test_without_its_socket_a_port_is_the_kernels(
    lab4: Lab, steering: Steering, predict: Prediction
) -> None:
    here, there = lab4.hosts
    for queue in range(QUEUES):
        source = predict.port(here.address, (there.address, LAST), queue)
        counts = counted(steering, lambda source=source: refused_at_once(lab4, source, LAST))
        assert counts == {ABSENT: 1}


def test_the_death_of_a_socket_gives_its_ports_to_the_kernel(
    lab4: Lab, steering: Steering, predict: Prediction, library: Library
) -> None:
    """As when a leased job is killed: the socket goes, the map is not touched."""
    here, there = lab4.hosts
    xsk, frames = inside(there, lambda: library.make_queue(there.ifname, HOME))
    steering.xsk_set(HOME, xsk)
    at = {
        queue: predict.port(here.address, (there.address, FIRST), queue) for queue in range(QUEUES)
    }

    def unanswered(queue: int) -> None:
        with pytest.raises(TimeoutError):
            call(lab4, at[queue], FIRST, 0.2)

    for queue in range(QUEUES):
        counts = counted(steering, lambda queue=queue: unanswered(queue))
        assert counts.keys() == {REDIRECT_TCP if queue == HOME else RSS_MISMATCH}
    os.close(xsk)
    os.close(frames)

    def gone() -> bool:
        try:
            call(lab4, at[HOME] + 4096, FIRST, 0.05)
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
        return False

    wait_until(gone, "the map's entry")
    for queue in range(QUEUES):
        refused_at_once(lab4, at[queue], FIRST)


def test_what_came_to_each_queue(
    lab4: Lab, steering: Steering, predict: Prediction, library: Library
) -> None:
    """Packets of ours by queue, answers to stacks of other queues that were dropped there, and of
    how many flows at least. What any host can send without an answer of ours, SYNs and UDP, says
    nothing of where the NIC puts flows."""
    there = lab4.hosts[1]
    held = inside(there, lambda: library.make_queue(there.ifname, HOME))
    steering.xsk_set(HOME, held[0])
    send_frames(lab4, tcp_frames(lab4, FIRST - 1, predict))  # not ours
    assert steering.arrivals(QUEUES) == [(0, 0, 0)] * QUEUES
    for flags in ("S", "R", "A", "SA", "PA"):
        send_frames(lab4, tcp_frames(lab4, FIRST, predict, flags))
    send_frames(lab4, udp_frames(lab4, FIRST, predict))
    lost = (6, 3, 1)
    assert steering.arrivals(QUEUES) == [lost, (6, 0, 0), lost, lost]
    # Neighboring ports are flows of their own.
    here = lab4.hosts[0]
    ethernet = ethernet_of(lab4)
    sources = [
        source
        for source in range(20000, 20064)
        if predict.queue((here.address, source), (there.address, FIRST)) == 0
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
    packets, mismatches, flows = steering.arrivals(QUEUES)[0]
    assert packets == 6 + 3 * len(sources)
    assert mismatches == 3 + len(sources)
    assert len(sources) <= flows <= len(sources) + 1
    assert len(steering.arrivals(300)) == 300
    for fd in held:
        os.close(fd)


def frames(lab: Lab, make: Callable[[int], object], port: int, predict: Prediction) -> list[bytes]:
    """One packet to a port for each queue, in their order."""
    here, there = lab.hosts
    ethernet = ethernet_of(lab)
    made = []
    for queue in range(QUEUES):
        source = predict.port(here.address, (there.address, port), queue)
        made.append(bytes(ethernet / IP(src=here.address, dst=there.address) / make(source)))
    return made


def tcp_frames(lab: Lab, port: int, predict: Prediction, flags: str = "R") -> list[bytes]:
    return frames(lab, lambda source: TCP(sport=source, dport=port, flags=flags), port, predict)


def udp_frames(lab: Lab, port: int, predict: Prediction) -> list[bytes]:
    return frames(lab, lambda source: UDP(sport=source, dport=port), port, predict)


def test_a_block_ends_where_it_ends(lab4: Lab, steering: Steering, predict: Prediction) -> None:
    for port, verdict in (
        (FIRST - 1, PASS_PORT),
        (FIRST, ABSENT),
        (LAST, ABSENT),
        (LAST + 1, PASS_PORT),
    ):
        sent = tcp_frames(lab4, port, predict) + udp_frames(lab4, port, predict)
        counts = counted(steering, lambda sent=sent: send_frames(lab4, sent))
        assert counts == {verdict: 2 * QUEUES}
    # Given up in one protocol, then in the other.
    sent = tcp_frames(lab4, FIRST, predict) + udp_frames(lab4, FIRST, predict)
    steering.ports_set(TCP_BIT, FIRST, LAST, ours=False)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: QUEUES, ABSENT: QUEUES}
    steering.ports_set(UDP_BIT, FIRST, LAST, ours=False)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {PASS_PORT: 2 * QUEUES}


def test_each_protocol_has_a_home_of_its_own(
    lab4: Lab, steering: Steering, predict: Prediction, library: Library
) -> None:
    """Two stand-alone instances may have one port number, one TCP's and one UDP's."""
    there = lab4.hosts[1]
    held: list[int] = []
    for queue in (1, 3):
        held += inside(there, lambda queue=queue: library.make_queue(there.ifname, queue))
        steering.xsk_set(queue, held[-2])
    steering.ports_set(UDP_BIT, FIRST, FIRST, 3)
    sent = tcp_frames(lab4, FIRST, predict)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_TCP: 1, RSS_MISMATCH: 3}
    sent = udp_frames(lab4, FIRST, predict)
    counts = counted(steering, lambda: send_frames(lab4, sent[3:]))
    assert counts == {REDIRECT_UDP: 1}
    counts = counted(steering, lambda: send_frames(lab4, sent[:3]))
    assert counts == {RSS_MISMATCH: 3}
    # Without a home it is taken wherever a socket is.
    steering.ports_set(UDP_BIT, FIRST, FIRST)
    counts = counted(steering, lambda: send_frames(lab4, sent))
    assert counts == {REDIRECT_UDP: 2, ABSENT: 2}
    for fd in held:
        os.close(fd)


def test_invalid_port_ranges_are_refused(steering: Steering) -> None:
    for arguments in (
        (0, FIRST, LAST, HOME),
        (4, FIRST, LAST, HOME),
        (TCP_BIT, LAST, FIRST, HOME),
        (TCP_BIT, FIRST, LAST, QUEUES_MAX),
        (TCP_BIT, FIRST, LAST, HOME_NONE - 1),
    ):
        with pytest.raises(RefusedError) as refused:
            steering.ports_set(*arguments)
        assert refused.value.errno == errno.EINVAL, arguments


def test_the_whole_range_can_be_set(lab4: Lab, steering: Steering) -> None:
    steering.ports_set(TCP_BIT | UDP_BIT, 0, 65535, QUEUES_MAX - 1)
    steering.ports_set(TCP_BIT | UDP_BIT, 0, 65535, ours=False)
