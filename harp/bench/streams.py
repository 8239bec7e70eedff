# SPDX-License-Identifier: Apache-2.0
"""A verified stream from one test host to another, observed while it runs.

Two harp-bench processes produce NCCL's traffic over the plugin. The receiver compares every byte in
order. Both report their progress every few milliseconds.
"""

import functools
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from harp import _paths
from harp.closing import Closing
from harp.errors import HarpError
from harp.lab import Lab
from harp.lab.harpd import in_network
from harp.lab.team import Team, job_environment

ROOT_PORT = 7000
SINK, SOURCE = 0, 1


@dataclass(frozen=True)
class StreamOptions:
    """Options of the stream. env and prefix: the job's environment and a prefix of the command
    (setpriv ...) for each rank, receiver first.
    """

    message_bytes: int = 65536
    channels: int = 1
    tick_ms: int = 10
    timeout_s: float = 30  # seconds without progress that count as a hang
    rest_us: int = 0  # sleep of idle ranks; 0: they spin, as NCCL does
    env: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    prefix: tuple[Sequence[str], Sequence[str]] = ((), ())


@dataclass(frozen=True)
class Sample:
    """Bytes that a rank has received (the source: sent) at a time of CLOCK_MONOTONIC."""

    at_ns: int
    count: int


@dataclass
class Rank:
    """One of the processes, and its output so far."""

    process: subprocess.Popen[str]
    stderr: Callable[[], list[str]]
    samples: list[Sample] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)  # all lines except progress
    over: bool = False

    def log(self) -> str:
        return "\n".join([*self.stderr(), ""])


class Stream(Closing):
    """A stream from host SOURCE to host SINK that runs inside the `with` block."""

    def __init__(self, lab: Lab, options: StreamOptions) -> None:
        self.lab, self.options = lab, options
        self._changed = threading.Condition()
        self._team = Team("harp-stream")
        self.ranks: list[Rank] = []

    def __enter__(self) -> Self:
        try:
            for number, mode in enumerate(("sink", "source")):
                self.ranks.append(self._start(number, mode))
            for number in range(2):
                events = self.ranks[number].events
                self.wait(functools.partial(bool, events), "both ranks are connected")
                self._require(number, "ready")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._team.close()

    # ---- progress --------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        samples = self.ranks[SINK].samples
        return samples[-1].count if samples else 0

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until the condition holds. HarpError after a timeout, or when a rank ends first."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not condition():
                if any(rank.over for rank in self.ranks):
                    raise HarpError(f"{what}: a rank ended first: {self.words()}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise HarpError(f"{what}: not after {seconds:.0f} s: {self.words()}")
                self._changed.wait(left)

    def flow(self, more_bytes: int, seconds: float = 60) -> None:
        """Wait until that many more bytes have been received."""
        goal = self.received + more_bytes
        self.wait(lambda: self.received >= goal, f"{more_bytes} more bytes", seconds)

    def finish(self, seconds: float = 60) -> int:
        """End the stream at its source; return the bytes received. HarpError for any error."""
        self.ranks[SOURCE].process.send_signal(signal.SIGUSR1)
        with self._changed:
            if not self._changed.wait_for(lambda: all(rank.over for rank in self.ranks), seconds):
                raise HarpError(f"the stream does not end: {self.words()}")
        for number in range(2):
            self._require(number, "done")
        sink, source = (rank.events[-1] for rank in self.ranks)
        if sink["received_messages"] != source["sent_messages"] or sink["wrong"]:
            raise HarpError(f"lost, repeated or wrong: {sink}, {source}")
        return int(sink["received_bytes"])

    def words(self) -> str:
        """Return the last output of both, for an error message."""
        lines = []
        for name, rank in zip(("sink", "source"), self.ranks, strict=False):
            lines.append(f"{name}: {rank.events[-1:]} {self.received} bytes")
            lines += rank.log().splitlines()[-8:]
        return "\n".join(lines)

    # ---- implementation --------------------------------------------------------------------------

    def _require(self, number: int, event: str) -> None:
        rank = self.ranks[number]
        if not rank.events or rank.events[-1]["event"] != event:
            raise HarpError(f"no {event!r} from rank {number}: {self.words()}")

    def _start(self, number: int, mode: str) -> Rank:
        host, options = self.lab.hosts[number], self.options
        command: list[str | Path] = [*options.prefix[number], _paths.find("harp-bench"), mode]
        command += ["--plugin", _paths.plugin(), "--rank", str(number), "--ranks", "2"]
        command += ["--root", self.lab.hosts[SINK].endpoint(ROOT_PORT)]
        command += ["--ifname", "=" + ",".join(nic.ifname for nic in host.nics)]
        command += ["--channels", str(options.channels), "--sizes", str(options.message_bytes)]
        command += ["--tick", str(options.tick_ms), "--timeout", str(options.timeout_s)]
        command += ["--rest", str(options.rest_us)]
        env = job_environment({"NCCL_DEBUG": "INFO", **options.env[number]})
        process = self._team.start(None, in_network(host, command), env=env)
        host.processes.append(process)  # the test hosts end it at the latest
        rank = Rank(process, functools.partial(self._team.log, number))
        key = "received_bytes" if mode == "sink" else "sent_bytes"
        self._team.follow(functools.partial(self._take, rank, key))
        return rank

    def _take(self, rank: Rank, key: str, line: str | None) -> None:
        """Store a line of a rank; key: its count of bytes; line None: the rank ended."""
        with self._changed:
            if line is None:
                rank.over = True
            else:
                event = json.loads(line)
                rank.samples.append(Sample(event["at_ns"], event[key]))
                if event["event"] != "tick":
                    rank.events.append(event)
            self._changed.notify_all()


def pause_ns(samples: list[Sample], begin_ns: int, end_ns: int) -> int:
    """Return the longest time without a received byte between two times."""
    longest, last_ns, count = 0, begin_ns, None
    for sample in samples:
        if count is None or sample.count != count:
            if begin_ns < sample.at_ns <= end_ns:
                longest = max(longest, sample.at_ns - last_ns)
            if sample.at_ns > end_ns:
                break
            last_ns = max(begin_ns, sample.at_ns)
            count = sample.count
    return max(longest, end_ns - last_ns)


def rate_bytes_per_s(samples: list[Sample], begin_ns: int, end_ns: int) -> float:
    """Return the rate between the first and the last sample of an interval."""
    inside = [sample for sample in samples if begin_ns <= sample.at_ns <= end_ns]
    if len(inside) < 2 or inside[0].at_ns == inside[-1].at_ns:
        return 0.0
    return (inside[-1].count - inside[0].count) * 1e9 / (inside[-1].at_ns - inside[0].at_ns)
