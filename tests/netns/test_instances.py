# SPDX-License-Identifier: Apache-2.0
"""A process with eight instances, each on its own queue, over which its comms are spread.

The lab's switch chooses the queues by a Toeplitz hash that HARP knows, by a hash that HARP does not
know, or always chooses queue 0.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from actor import Actor, actors
from netns_tools import Tools

from harp import _paths
from harp.bench.runner import BenchOptions, run_bench
from harp.lab import Lab, LabOptions, cpus

QUEUES = 8
KEY = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
TOEPLITZ = f"toeplitz:{KEY}"
SIZE = 60_000
_LANE = re.compile(r"connected by (HARP|kernel) TCP .*?(?: on \w+ queue (\d+)|$)")


@dataclass
class Ranks:
    """One process on each host; all comms go from host 0 to host 1."""

    sender: Actor
    receiver: Actor
    sends: list[int]
    receives: list[int]

    def connect(self) -> None:
        handle, listen = self.receiver.call("listen")
        self.receiver.start("accept", listen=listen)
        self.sends.append(self.sender.call("connect", handle=handle))
        self.receives.append(self.receiver.result())

    def pump(self, seconds: float = 0.5) -> list[int]:
        """Send and verify messages on all comms. Return the number of messages by comm."""
        self.receiver.start("pump", sends=[], receives=self.receives, size=SIZE, seconds=0)
        sent = self.sender.call("pump", sends=self.sends, receives=[], size=SIZE, seconds=seconds)
        received = self.receiver.result()
        assert sent == received
        assert all(result == "ncclSuccess" for _, result in sent)
        return [count for count, _ in sent]

    def lanes(self) -> list[tuple[str, int | None]]:
        """Return kind and queue of each comm's lane, from the sender's log."""
        matches = [match for line in self.sender.call("log") if (match := _LANE.search(line))]
        return [(match[1], int(match[2]) if match[2] else None) for match in matches]

    def silent_queues(self) -> list[str]:
        """Return the sender's log lines about queues that never answered."""
        return [line for line in self.sender.call("log") if "not tried again for 10 s" in line]


@contextlib.contextmanager
def ranks(lab: Lab, count: int = QUEUES, **env: str) -> Iterator[Ranks]:
    """Two processes with `count` comms, connected one after the other."""
    processes = []
    for host in lab.hosts:
        job = {
            "NCCL_SOCKET_IFNAME": f"={host.ifname}",
            "HARP_INSTANCES": str(QUEUES),
            "HARP_DAEMON": "off",
            "HARP_XDP_BYTES_MAX": "3000",  # without it, auto does not use AF_XDP on veth
            "NCCL_DEBUG": "INFO",
            **env,
        }
        processes.append(Actor(host.netns, job))
    with actors(*processes) as (sender, receiver):
        for actor in processes:
            actor.call("load", path=str(_paths.plugin()))
            actor.call("open_interfaces")
        both = Ranks(sender, receiver, [], [])
        for _ in range(count):
            both.connect()
        yield both


@pytest.fixture
def switched(tools: Tools) -> Iterator[Lab]:
    with Lab(LabOptions(queues=QUEUES, rss=TOEPLITZ)) as lab:
        yield lab


def set_rss(lab: Lab, rule: str) -> None:
    assert lab.spreader is not None
    for host in lab.hosts:
        lab.spreader.rule(host.index, rule)


def test_a_known_toeplitz_hash_selects_every_queue(switched: Lab) -> None:
    with ranks(switched, HARP_RSS=TOEPLITZ) as both:
        assert sorted(both.lanes()) == [("HARP", queue) for queue in range(QUEUES)]
        assert all(both.pump())
        assert both.sender.call("warnings") == []
    counts = switched.spreader.counts(1) if switched.spreader else []
    assert all(count > 20 for count in counts), "each queue received packets"


def test_queue_placement_in_challenge_saves_attempts(switched: Lab) -> None:
    """The first connection to a listener needs many SYNs, later ones a single SYN.

    On a busy machine, a SYN without an answer for 300 ms is followed by many again. There are no
    kernel lanes: a comm's further lanes open later and would count for the next connection.
    """
    assert switched.spreader is not None
    with ranks(switched, 0, HARP_RSS=TOEPLITZ, HARP_PATH="xdp") as both:
        packets = []
        handle, listen = both.receiver.call("listen")
        for _ in range(4):
            before = sum(switched.spreader.counts(1))
            both.receiver.start("accept", listen=listen)
            both.sends.append(both.sender.call("connect", handle=handle))
            both.receives.append(both.receiver.result())
            packets.append(sum(switched.spreader.counts(1)) - before)
        assert all(lane == "HARP" for lane, _ in both.lanes())
        # Each connection has SYN, ACK, HELLO and PROOF, some of them twice on a busy machine. A
        # sender that knows only its own hash starts with 16 SYNs.
        assert min(packets[1:]) < 12, packets
        assert packets[0] > min(packets[1:]), packets
        assert all(both.pump())


# Without kernel lanes HARP may try queues without a limit. With them it has three seconds, which
# may be too short on a busy machine.
XDP_ONLY = {"HARP_PATH": "xdp"}


def test_queues_are_tried_where_the_hash_is_unknown(switched: Lab) -> None:
    """Each SYN matches both queues with probability 1/64, and HARP sends 512 within a second.

    All may fail by chance, or while the other process is not scheduled, but rarely.
    """
    set_rss(switched, "hash:77")
    with ranks(switched, **XDP_ONLY) as both:
        lanes, silent = both.lanes(), both.silent_queues()
        assert all(kind == "HARP" for kind, _ in lanes)
        assert len(silent) <= 2, silent
        assert len({queue for _, queue in lanes}) >= QUEUES - len(silent), (lanes, silent)
        assert all(both.pump())


def test_all_comms_use_the_only_queue_that_receives(switched: Lab) -> None:
    """Only one pair of instances can connect: all comms use it, and the log gives the reason."""
    set_rss(switched, "zero")
    with ranks(switched, 3, **XDP_ONLY) as both:
        log = both.sender.call("log")
        assert both.lanes() == [("HARP", 0)] * 3, "\n".join(log)
        assert sum("do not arrive; not tried again for 10 s" in line for line in log) == 3
        assert all(both.pump())


def threads(actor: Actor, name: str) -> list[list[int]]:
    return sorted(cores for thread, cores in actor.call("threads") if thread == name)


def test_the_control_thread_polls_all_instances(switched: Lab) -> None:
    with ranks(switched, 0) as both:
        both.sender.call("listen")
        assert threads(both.sender, "harp-control") == [cpus()]
        both.sender.call("finalize")
        assert threads(both.sender, "harp-control") == []


SLEEPS_PER_S = 1.5  # of the control thread: one of 100 ms, then one second each
# Of an instance: one check of its packet source, and one more if a lock was held.
CHECKS_PER_S = 2
# Of a process: the control thread reads all receivers' kernel lanes at once.
PROCESS_WAKES_PER_S = 1
SETTLING_PER_S = 30  # wakes that follow the barrier before the measurement, over two seconds
POLLER_CHECKS_PER_S = 1000  # by the control thread: HARP_BACKGROUND_IDLE_US


# Next to other tests, a rank that is preempted in the barrier wakes its threads many times.
@pytest.mark.long
def test_waiting_is_nearly_free(switched: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight instances with open connections, asleep and while NCCL polls for a late rank.

    The test counts wakes; CPU time only reveals a thread that never sleeps. A rank that polls
    without getting a core looks like a stopped one.
    """
    monkeypatch.setenv("HARP_INSTANCES", str(QUEUES))
    monkeypatch.setenv("HARP_RSS", TOEPLITZ)
    monkeypatch.setenv("HARP_DAEMON", "off")
    report = run_bench(switched, BenchOptions("idle", path="xdp", channels=4, seconds=2))
    assert report["ok"]
    assert "HARP TCP" in str(report["log"])
    late, polls = report["results"]
    asleep = SLEEPS_PER_S + CHECKS_PER_S * QUEUES + PROCESS_WAKES_PER_S + SETTLING_PER_S
    for rank in (late, polls):
        assert rank["asleep_wakes_per_s"] < asleep, report["results"]
        assert max(rank["asleep_cpu_percent"], rank["waiting_cpu_percent"]) < 5, report["results"]
    assert late["waiting_wakes_per_s"] < asleep, report["results"]
    assert polls["waiting_wakes_per_s"] < asleep + POLLER_CHECKS_PER_S, report["results"]


def test_missing_queues_are_reported(tools: Tools) -> None:
    with Lab() as lab, ranks(lab, 2) as both:
        assert all(kind == "HARP" for kind, _ in both.lanes())
        warnings = both.sender.call("warnings")
        assert len(warnings) == 1
        assert "1 of 8 instances (HARP_INSTANCES)" in warnings[0]
        assert "no such queue" in warnings[0]
        assert all(both.pump())
