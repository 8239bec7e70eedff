# SPDX-License-Identifier: Apache-2.0
"""Rails that are cut and restored, processes that are stopped, and resets, in random order, during
all-reduces. Each sum is right or an error gives the reason; no rank hangs. The seed is printed, and
HARP_CHAOS_SEED repeats it."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lanes_reset import Resetter
from lanes_rig import CUTS, cuts, railed, shaped

from harp import _paths
from harp.lab import Lab
from harp.lab.harpd import in_network
from harp.lab.rails import Rails

RANK = Path(__file__).with_name("chaos_rank.py")
STEPS = 25  # of the chaos
HANG_S = 90  # the ranks say themselves when nothing moved for 60 s
HANG = "timed out"


class Ranks:
    """Two ranks, one on each host, and how far they are."""

    def __init__(self, lab: Lab, env: dict[str, str]) -> None:
        self._changed = threading.Condition()
        self.steps = [0, 0]
        self.wrong = 0
        self.events: list[list[dict[str, Any]]] = [[], []]
        self.processes = []
        for number, host in enumerate(lab.hosts):
            names = ",".join(nic.ifname for nic in host.nics)
            words = [sys.executable, RANK, str(_paths.plugin()), str(number), "2"]
            process = subprocess.Popen(
                in_network(host, [*words, lab.hosts[0].endpoint(7000)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"NCCL_SOCKET_IFNAME": f"={names}"} | env,
                text=True,
            )
            host.processes.append(process)
            self.processes.append(process)
            threading.Thread(target=self._listen, args=(number,), daemon=True).start()

    def _listen(self, number: int) -> None:
        stdout = self.processes[number].stdout
        assert stdout is not None
        for line in stdout:
            event = json.loads(line)
            with self._changed:
                if event["event"] == "step":
                    self.steps[number] = event["step"] + 1
                    self.wrong += event["wrong"]
                else:
                    self.events[number].append(event)
                self._changed.notify_all()
        with self._changed:
            self.events[number].append({"event": "over"})
            self._changed.notify_all()

    def over(self) -> bool:
        return any({"event": "over"} in events for events in self.events)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Until it holds or a rank has ended; False when neither came in time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not condition() and not self.over():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def advance(self, more: int, seconds: float) -> bool:
        """So many more steps of both."""
        goal = max(self.steps) + more
        return self.wait(lambda: min(self.steps) >= goal, seconds)

    def finish(self) -> list[dict[str, Any]]:
        """Ends the ranks; each rank's last message."""
        stdin = self.processes[0].stdin
        assert stdin is not None
        try:
            stdin.write("end\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended with an error, which its last word is
        for process in self.processes:
            process.wait(HANG_S)
        assert self.wait(lambda: False, HANG_S)
        return [[each for each in events if each["event"] != "over"][-1] for events in self.events]


class Chaos:
    """One disturbance after the other; each is undone some steps later."""

    def __init__(self, lab: Lab, rails: Rails, ranks: Ranks, rng: random.Random) -> None:
        self.lab, self.rails, self.ranks, self.rng = lab, rails, ranks, rng
        self.heal: dict[str, Callable[[], None]] = {}
        self.log: list[str] = []

    def step(self) -> None:
        choices = [self.cut, self.stop, self.reset, self.heal_one, self.heal_one]
        self.rng.choice(choices)()

    def cut(self) -> None:
        rail, cut = self.rng.randrange(2), self.rng.choice(CUTS)
        if f"rail {rail}" in self.heal:
            return
        off, on = cuts(self.rails, rail)[cut]
        self.log.append(f"rail {rail}: {cut}")
        off()
        self.heal[f"rail {rail}"] = on

    def stop(self) -> None:
        number = self.rng.randrange(2)
        process = self.ranks.processes[number]
        if f"rank {number}" in self.heal or process.poll() is not None:
            return
        self.log.append(f"rank {number}: stopped")
        process.send_signal(signal.SIGSTOP)
        self.heal[f"rank {number}"] = lambda: process.send_signal(signal.SIGCONT)

    def reset(self) -> None:
        rail = self.rng.randrange(2)
        with Resetter(self.lab, rail) as resetter:
            self.ranks.advance(1, 0.3)
            count = resetter.reset_all()
        self.log.append(f"rail {rail}: {count} resets")

    def heal_one(self) -> None:
        if self.heal:
            name = self.rng.choice(sorted(self.heal))
            self.log.append(f"{name}: back")
            self.heal.pop(name)()

    def heal_all(self) -> None:
        while self.heal:
            self.heal_one()


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with railed(2, ipv6=request.param) as made:
        yield made


SEEDS = [1, pytest.param(None, marks=pytest.mark.long)]


@pytest.mark.sample("IPv4-1-xdp", "IPv6-1-kernel", "IPv6-1-auto")
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_reduces_are_right_under_random_failures(lab: Lab, path: str, seed: int | None) -> None:
    given = os.environ.get("HARP_CHAOS_SEED") or seed
    chosen = random.SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"HARP_CHAOS_SEED={chosen}")
    env = {"HARP_PATH": path, "HARP_RAILS": "all", "HARP_LANE_TIMEOUT_MS": "500"}
    rng = random.Random(chosen)
    rails = shaped(lab, 200)
    with ExitStack() as stack:
        ranks = Ranks(lab, env)
        assert ranks.wait(lambda: all(ranks.events), HANG_S), "not connected"
        chaos = Chaos(lab, rails, ranks, rng)
        stack.callback(chaos.heal_all)
        for _ in range(STEPS):
            chaos.step()
            ranks.advance(rng.randrange(1, 30), rng.choice((0.05, 0.2, 0.5, 1.0)))
            if ranks.over():
                break
        chaos.heal_all()
        ranks.advance(20, HANG_S)
        last = ranks.finish()
    assert ranks.wrong == 0, chaos.log
    for word in last:
        if word["event"] == "error":  # every lane reset at once, a byte of the attacker's: named
            assert HANG not in word["text"], (last, chaos.log)
            assert any("resets" in line for line in chaos.log), (last, chaos.log)
