# SPDX-License-Identifier: Apache-2.0
"""What all jobs of a host did together, as numbers that only grow.

Prometheus is told sums over jobs, for a job is no label. A job that ends would take its share of a
sum with it, and rate() would see a restart; so Totals remembers. A job that had begun by the first
look counts from when it is first seen, as what was before harpd's start counts for nothing; a later
one from its beginning, whenever it is seen; one that was not looked at for a while, from where it
was (its user had had his share of the look). When one of those is forgotten, as they are too many,
all that is not remembered counts as if that look were the first: nothing is counted twice.
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

OTHER = "other"  # for NICs that a job names and this host doesn't have
GAUGES = ("lanes_open",)
# Numbers of lanes over a NIC that grow; kind and down are none.
RAIL_COUNTERS = tuple(
    name for name, _ in _page.rail_values() if name not in ("kind", "down", *GAUGES)
)
ABSENT_MAX = 512  # jobs that live and are not seen; those of before them are forgotten
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
    """What jobs do and did. rails: by NIC and kind; down: NICs, and jobs for which they are."""

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
    """Everything of a job that grows, under a key that says where it belongs."""
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
    """NIC and kind of a record; None of one that names no kind."""
    kind, name = KINDS.get(int(rail["kind"])), text(rail["ifname"])
    if kind is None:
        return None
    return (name if name in nics else OTHER), kind


def _lives(pid: int) -> bool:
    return (PROC / str(pid)).exists()


class Totals:
    """Remembers between scrapes; by any thread. lives: is there a process of that number? wall_ns:
    the clock of jobs' beginnings."""

    def __init__(
        self, lives: Callable[[int], bool] = _lives, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._lock = threading.Lock()
        self._lives, self._wall_ns = lives, wall_ns
        self._seen: _Seen = {}
        self._sums: dict[Key, int] = {}
        self._since_ns: int | None = None  # who began later is known from his beginning

    def take(self, jobs: Iterable[Job], nics: frozenset[str]) -> Jobs:
        """The sums, with what these jobs say now. nics: names that may become labels."""
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
        """Did it begin under our eyes?"""
        return self._since_ns is not None and key[1] >= self._since_ns

    def _absent(self, now: _Seen) -> _Seen:
        """Who was seen before and may come again, the longest absent first."""
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
