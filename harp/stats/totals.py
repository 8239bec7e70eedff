# SPDX-License-Identifier: Apache-2.0
"""Sums over all jobs of a host, as numbers that only grow.

Prometheus gets sums over jobs, because a job is no label. A job that ends would take its share with
it, which looks like a restart to rate(); so Totals remembers it. A job that began before the first
reading counts from when it is first seen, because earlier events do not count. A later job counts
from its beginning, whenever it is first seen. A job that was left out of readings (its user
exceeded a limit) counts from where it was. If so many are remembered that some must be forgotten,
every unknown job counts as at the first reading: nothing is counted twice.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from harp import _page
from harp.procfs import PROC
from harp.stats import schema
from harp.stats.job import KINDS, Job
from harp.stats.page import text

OTHER = "other"  # for NICs that a job names and this host does not have
GAUGES = ("lanes_open",)
# Growing numbers of lanes over a NIC; kind and down do not grow.
RAIL_COUNTERS = tuple(
    name for name, _ in _page.rail_values() if name not in ("kind", "down", *GAUGES)
)
ABSENT_MAX = 512  # living jobs that are not seen; earlier ones are forgotten
BUCKETS = len(_page.histogram_upper_ns()) + 1


@dataclass
class Rail:
    """Lanes of a kind over a NIC, of all jobs."""

    lanes_open: int = 0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RAIL_COUNTERS, 0))
    srtt_sum_ns: int = 0
    srtt_buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)


@dataclass
class Jobs:
    """The sums over jobs. rails: by NIC and kind; down: NICs, and the jobs for which they are
    down.
    """

    jobs: int = 0
    comms_open: int = 0
    counters: dict[str, int] = field(
        default_factory=lambda: {each.name: 0 for each in schema.job_counters()}
    )
    rails: dict[tuple[str, str], Rail] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


Key = tuple[object, ...]
_Seen = dict[tuple[int, int], dict[Key, int]]  # by Job.key


def _numbers(job: Job, nics: frozenset[str]) -> dict[Key, int]:
    """Return a job's growing numbers, under keys for the sums to which they belong."""
    snapshot = job.snapshot
    result: dict[Key, int] = {
        ("job", each.name): int(snapshot.counters[each.name]) for each in schema.job_counters()
    }
    for rail in snapshot.rails:
        place = _place(rail, nics)
        if place is None:
            continue
        for name in RAIL_COUNTERS:
            key: Key = ("rail", *place, name)
            result[key] = result.get(key, 0) + int(rail[name])
        for index, count in enumerate(rail["srtt_bucket"]):
            key = ("srtt", *place, index)
            result[key] = result.get(key, 0) + int(count)
        key = ("srtt_sum", *place)
        result[key] = result.get(key, 0) + int(rail["srtt_sum_ns"])
    return result


def _place(rail: np.void, nics: frozenset[str]) -> tuple[str, str] | None:
    """Return NIC and kind of a record; None for an unknown kind."""
    kind, name = KINDS.get(int(rail["kind"])), text(rail["ifname"])
    if kind is None:
        return None
    return (name if name in nics else OTHER), kind


def _lives(pid: int) -> bool:
    return (PROC / str(pid)).exists()


class Totals:
    """Remembers between scrapes; any thread may call it. lives: tells whether a process of that
    number exists. wall_ns: the clock of jobs' start times.
    """

    def __init__(
        self, lives: Callable[[int], bool] = _lives, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._lock = threading.Lock()
        self._lives, self._wall_ns = lives, wall_ns
        self._seen: _Seen = {}
        self._sums: dict[Key, int] = {}
        self._since_ns: int | None = None  # jobs that began later count from their beginning

    def take(self, jobs: Iterable[Job], nics: frozenset[str]) -> Jobs:
        """Return the sums, including these jobs' present numbers. nics: names that may become
        labels.
        """
        kept = list(jobs)
        with self._lock:
            now = {job.key: _numbers(job, nics) for job in kept}
            for key, numbers in now.items():
                unseen: Mapping[Key, int] = {} if self._is_new(key) else numbers
                before = self._seen.get(key, unseen)
                for name, value in numbers.items():
                    earlier = before.get(name, 0)
                    grown = value - earlier if value >= earlier else 0
                    self._sums[name] = self._sums.get(name, 0) + grown
            if self._since_ns is None:
                self._since_ns = self._wall_ns()
            self._seen = self._absent(now) | now
            result = self._jobs()
        _gauges(result, kept, nics)
        return result

    def _is_new(self, key: tuple[int, int]) -> bool:
        """Tell whether the job began after the first reading."""
        return self._since_ns is not None and key[1] >= self._since_ns

    def _absent(self, now: _Seen) -> _Seen:
        """Return jobs that were seen before and may return, the longest absent first."""
        keys = [key for key in self._seen if key not in now and self._lives(key[0])]
        if len(keys) > ABSENT_MAX:
            self._since_ns = self._wall_ns()
        return {key: self._seen[key] for key in keys[-ABSENT_MAX:]}

    def _jobs(self) -> Jobs:
        result = Jobs()
        for key, value in self._sums.items():
            if key[0] == "job":
                result.counters[str(key[1])] = value
                continue
            rail = result.rails.setdefault((str(key[1]), str(key[2])), Rail())
            if key[0] == "rail":
                rail.counters[str(key[3])] = value
            elif key[0] == "srtt" and isinstance(key[3], int):
                rail.srtt_buckets[key[3]] = value
            else:
                rail.srtt_sum_ns = value
        return result


def _gauges(result: Jobs, jobs: list[Job], nics: frozenset[str]) -> None:
    result.jobs = len(jobs)
    for job in jobs:
        result.comms_open += job.snapshot.status.comms_open
        down: dict[str, bool] = {}
        for record in job.snapshot.rails:
            place = _place(record, nics)
            if place is not None:
                result.rails[place].lanes_open += int(record["lanes_open"])
                down[place[0]] = down.get(place[0], False) or record["down"] != 0
        for nic, is_down in down.items():
            result.down[nic] = result.down.get(nic, 0) + is_down
