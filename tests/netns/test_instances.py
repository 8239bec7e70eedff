# SPDX-License-Identifier: Apache-2.0
"""A process with eight instances: its comms spread over them, each on its own queue.

The laboratory's switch chooses the queues: by a Toeplitz hash that HARP knows, by one that it does
not know, or always queue 0.
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
    """One process on each host; comm i goes from host 0 to host 1."""

    sender: Actor
    receiver: Actor
    sends: list[int]
    receives: list[int]

    def connect(self) -> None:
        """One more comm, by a listener of its own."""
        handle, listen = self.receiver.call("listen")
        self.receiver.start("accept", listen=listen)
        self.sends.append(self.sender.call("connect", handle=handle))
        self.receives.append(self.receiver.result())

    def pump(self, seconds: float = 0.5) -> list[int]:
        """Messages on all comms, every byte checked; how many on each."""
        self.receiver.start("pump", sends=[], receives=self.receives, size=SIZE, seconds=0)
        sent = self.sender.call("pump", sends=self.sends, receives=[], size=SIZE, seconds=seconds)
        received = self.receiver.result()
        assert sent == received
        assert all(result == "ncclSuccess" for _, result in sent)
        return [count for count, _ in sent]

    def lanes(self) -> list[tuple[str, int | None]]:
        """Kind and queue of each comm's lane, as the sender's log has them."""
        found = [match for line in self.sender.call("log") if (match := _LANE.search(line))]
        return [(match[1], int(match[2]) if match[2] else None) for match in found]

    def silent(self) -> list[str]:
        """The sender's log lines about queues that never answered."""
        return [line for line in self.sender.call("log") if "not tried again for 10 s" in line]


@contextlib.contextmanager
def ranks(lab: Lab, count: int = QUEUES, **env: str) -> Iterator[Ranks]:
    """Two processes with so many comms, set up one after the other."""
    started = []
    for host in lab.hosts:
        job = {
            "NCCL_SOCKET_IFNAME": f"={host.ifname}",
            "HARP_INSTANCES": str(QUEUES),
            "HARP_DAEMON": "off",
            "HARP_XDP_BYTES_MAX": "3000",  # on veth auto attaches nothing otherwise
            "NCCL_DEBUG": "INFO",
            **env,
        }
        started.append(Actor(host.netns, job))
    with actors(*started) as (sender, receiver):
        for actor in started:
            actor.call("load", path=str(_paths.plugin()))
            actor.call("open_interfaces")
        made = Ranks(sender, receiver, [], [])
        for _ in range(count):
            made.connect()
        yield made


@pytest.fixture
def switched(tools: Tools) -> Iterator[Lab]:
    """Two hosts whose NICs have eight queues, on a switch that chooses them."""
    with Lab(LabOptions(queues=QUEUES, rss=TOEPLITZ)) as lab:
        yield lab


def spread(lab: Lab, rule: str) -> None:
    assert lab.spreader is not None
    for host in lab.hosts:
        lab.spreader.rule(host.index, rule)


def test_a_known_toeplitz_hash_selects_every_queue(switched: Lab) -> None:
    with ranks(switched, HARP_RSS=TOEPLITZ) as both:
        assert sorted(both.lanes()) == [("HARP", queue) for queue in range(QUEUES)]
        assert all(both.pump())
        assert both.sender.call("warnings") == []
    counts = switched.spreader.counts(1) if switched.spreader else []
    assert all(count > 20 for count in counts), "each queue has had its part"


def test_queue_placement_in_challenge_saves_attempts(switched: Lab) -> None:
    """One listener, connections to its port: many SYNs, then one, or on a busy machine many again
    where that gets no answer for 300 ms. Without kernel lanes: a comm's further lanes come when
    they come, and would be counted with the next connection."""
    assert switched.spreader is not None
    with ranks(switched, 0, HARP_RSS=TOEPLITZ, HARP_PATH="xdp") as both:
        seen = []
        handle, listen = both.receiver.call("listen")
        for _ in range(4):
            before = sum(switched.spreader.counts(1))
            both.receiver.start("accept", listen=listen)
            both.sends.append(both.sender.call("connect", handle=handle))
            both.receives.append(both.receiver.result())
            seen.append(sum(switched.spreader.counts(1)) - before)
        assert all(lane == "HARP" for lane, _ in both.lanes())
        # SYN, ACK, HELLO, PROOF, on a busy machine some of them twice: what any connection has. A
        # sender that knows one side only begins with 16 SYNs.
        assert min(seen[1:]) < 12, seen
        assert seen[0] > min(seen[1:]), seen
        assert all(both.pump())


# Tries take what time they take where no kernel lane is to be had: else HARP has three seconds, of
# which a busy machine may leave too few.
TRIES = {"HARP_PATH": "xdp"}


def test_queues_are_tried_where_the_hash_is_unknown(switched: Lab) -> None:
    """From each queue to its own: each SYN has one chance in 64, and 512 leave within a second.
    They may all be lost by bad luck, or where the other process stands still so long; not often."""
    spread(switched, "hash:77")
    with ranks(switched, **TRIES) as both:
        lanes, silent = both.lanes(), both.silent()
        assert all(kind == "HARP" for kind, _ in lanes)
        assert len(silent) <= 2, silent
        assert len({queue for _, queue in lanes}) >= QUEUES - len(silent), (lanes, silent)
        assert all(both.pump())


def test_all_comms_use_the_only_queue_that_receives(switched: Lab) -> None:
    """One pair of instances can talk: all comms go there, and the log says why."""
    spread(switched, "zero")
    with ranks(switched, 3, **TRIES) as both:
        log = both.sender.call("log")
        assert both.lanes() == [("HARP", 0)] * 3, "\n".join(log)
        assert sum("do not arrive; not tried again for 10 s" in line for line in log) == 3
        assert all(both.pump())


def threads(actor: Actor, name: str) -> list[list[int]]:
    """The processors that each thread of that name may use."""
    return sorted(cores for thread, cores in actor.call("threads") if thread == name)


def test_the_control_thread_polls_all_instances(switched: Lab) -> None:
    with ranks(switched, 0) as both:
        both.sender.call("listen")
        assert threads(both.sender, "harp-control") == [cpus()]
        both.sender.call("finalize")
        assert threads(both.sender, "harp-control") == []


SLEEPS_PER_S = 1.5  # of the control thread: one of 100 ms, then of a second each
ASKS_PER_S = (
    2  # of an instance: a look at what brings packets, and once more where a lock was taken
)
# Of a process: the control thread reads all receivers' kernel lanes at once.
PROCESS_WAKES_PER_S = 1
SETTLING_PER_S = 30  # what the barrier before it leaves to be done, over two seconds
LOOKS_PER_S = 1000  # of the control thread at the poller: HARP_BACKGROUND_IDLE_US


# Beside other tests a preempted rank of the barrier before it wakes its threads many times.
@pytest.mark.long
def test_waiting_costs_next_to_nothing(switched: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight instances, connections open: asleep, and while NCCL polls for a rank that is late.

    Wakes are counted; processor time only shows a thread that never sleeps. A rank that polls
    without getting a core looks as if it had stopped.
    """
    monkeypatch.setenv("HARP_INSTANCES", str(QUEUES))
    monkeypatch.setenv("HARP_RSS", TOEPLITZ)
    monkeypatch.setenv("HARP_DAEMON", "off")
    report = run_bench(switched, BenchOptions("idle", path="xdp", channels=4, seconds=2))
    assert report["ok"]
    assert "HARP TCP" in str(report["log"])
    late, polls = report["results"]
    asleep = SLEEPS_PER_S + ASKS_PER_S * QUEUES + PROCESS_WAKES_PER_S + SETTLING_PER_S
    for rank in (late, polls):
        assert rank["asleep_wakes_per_s"] < asleep, report["results"]
        assert max(rank["asleep_cpu_percent"], rank["waiting_cpu_percent"]) < 5, report["results"]
    assert late["waiting_wakes_per_s"] < asleep, report["results"]
    assert polls["waiting_wakes_per_s"] < asleep + LOOKS_PER_S, report["results"]


def test_missing_queues_are_reported(tools: Tools) -> None:
    with Lab() as lab, ranks(lab, 2) as both:
        assert all(kind == "HARP" for kind, _ in both.lanes())
        warnings = both.sender.call("warnings")
        assert len(warnings) == 1
        assert "1 of 8 instances (HARP_INSTANCES)" in warnings[0]
        assert "no such queue" in warnings[0]
        assert all(both.pump())
