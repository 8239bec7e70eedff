# SPDX-License-Identifier: Apache-2.0
"""Sums over all jobs of a host, and over all instances of a NIC, as numbers that only grow.

Prometheus gets sums, because jobs and instances come and go. One that ends would take its share
with it, which looks like a restart to rate(); so the sums keep it. One that began before the first
reading counts from when it is first seen, because earlier events do not count. A later one counts
from its beginning, whenever it is first seen. One that was left out of readings (its user exceeded
a limit) counts from where it was. If so many are remembered that some must be forgotten, every
unknown one counts as at the first reading: nothing is counted twice.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from harp import _page
from harp.procfs import PROC
from harp.stats import schema
from harp.stats.instance import Instance
from harp.stats.job import COMM_STATES, FALLBACKS, KINDS, LANE_STATES, Job
from harp.stats.page import text

OTHER = "other"  # for NICs that a job names and this host does not have
GAUGES = ("lanes_open",)
# Growing numbers of lanes over a NIC; kind and down do not grow.
RAIL_COUNTERS = tuple(
    name for name, _ in _page.rail_values() if name not in ("kind", "down", *GAUGES)
)
# Transports of a comm, by the kinds of its open lanes. unknown: the page has no record of it.
TRANSPORTS = ("harp", "dpdk", "kernel", "mixed", "none", "unknown")
# Why a comm has kernel lanes only: the plugin's reasons; it lost its HARP lanes; its job's plugin
# names no reason.
REASONS = (*FALLBACKS.values(), "lane_lost", "unknown")
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
    """The sums over jobs. comms: open ones by transport and reason of fallback; rails: by NIC and
    kind; down: NICs, and the jobs for which they are down.
    """

    jobs: int = 0
    comms_open: int = 0
    comms: dict[tuple[str, str], int] = field(
        default_factory=lambda: {
            (transport, reason): 0
            for transport in TRANSPORTS
            for reason in (REASONS if transport == "kernel" else ("",))
        }
    )
    counters: dict[str, int] = field(
        default_factory=lambda: {each.name: 0 for each in schema.job_counters()}
    )
    rails: dict[tuple[str, str], Rail] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


Key = tuple[object, ...]
_Vector = npt.NDArray[np.uint64]
_WORKING = {number for number, name in LANE_STATES.items() if name != "dead"}


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


_Numbers = TypeVar("_Numbers")


class _Memory(Generic[_Numbers]):
    """Numbers of the last reading, by owner: its process, its start time, and more."""

    def __init__(self, lives: Callable[[int], bool], wall_ns: Callable[[], int]) -> None:
        self._lives, self._wall_ns = lives, wall_ns
        self._seen: dict[tuple[int, ...], _Numbers] = {}
        self._since_ns: int | None = None  # owners that began later count from their beginning

    def before(self, key: tuple[int, ...]) -> tuple[bool, _Numbers | None]:
        """Return whether the owner counts from its beginning, and its last numbers."""
        is_new = self._since_ns is not None and key[1] >= self._since_ns
        return is_new, self._seen.get(key)

    def remember(self, now: Mapping[tuple[int, ...], _Numbers]) -> None:
        """Replace the numbers; keep those of absent owners whose process exists."""
        if self._since_ns is None:
            self._since_ns = self._wall_ns()
        keys = [key for key in self._seen if key not in now and self._lives(key[0])]
        if len(keys) > ABSENT_MAX:
            self._since_ns = self._wall_ns()
        self._seen = {key: self._seen[key] for key in keys[-ABSENT_MAX:]} | dict(now)


class Totals:
    """Remembers jobs between scrapes; any thread may call it. lives: tells whether a process of
    that number exists. wall_ns: the clock of jobs' start times.
    """

    def __init__(
        self, lives: Callable[[int], bool] = _lives, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._lock = threading.Lock()
        self._memory: _Memory[dict[Key, int]] = _Memory(lives, wall_ns)
        self._sums: dict[Key, int] = {}

    def take(self, jobs: Iterable[Job], nics: frozenset[str]) -> Jobs:
        """Return the sums, including these jobs' present numbers. nics: names that may become
        labels.
        """
        kept = list(jobs)
        with self._lock:
            now: dict[tuple[int, ...], dict[Key, int]] = {}
            for job in kept:
                numbers = now[job.key] = _numbers(job, nics)
                is_new, last = self._memory.before(job.key)
                before = last if last is not None else {} if is_new else numbers
                for name, value in numbers.items():
                    earlier = before.get(name, 0)
                    grown = value - earlier if value >= earlier else 0
                    self._sums[name] = self._sums.get(name, 0) + grown
            self._memory.remember(now)
            result = self._jobs()
        _gauges(result, kept, nics)
        return result

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
        for key, count in transports(job).items():
            result.comms[key] += count
        down: dict[str, bool] = {}
        for record in job.snapshot.rails:
            place = _place(record, nics)
            if place is not None:
                result.rails[place].lanes_open += int(record["lanes_open"])
                down[place[0]] = down.get(place[0], False) or record["down"] != 0
        for nic, is_down in down.items():
            result.down[nic] = result.down.get(nic, 0) + is_down


def transports(job: Job) -> dict[tuple[str, str], int]:
    """Count a job's open comms by transport (the kinds of their open lanes), and by the reason why
    a comm has kernel lanes only; "" for the other transports.
    """
    snapshot = job.snapshot
    kinds: dict[int, set[str]] = {}
    reasons: dict[int, str] = {}
    for comm in snapshot.comms:
        if COMM_STATES.get(int(comm["state"])) == "open":
            kinds[int(comm["serial"])] = set()
            reasons[int(comm["serial"])] = FALLBACKS.get(int(comm["fallback"]), "unknown")
    for lane in snapshot.lanes:
        serial, kind = int(lane["comm"]), KINDS.get(int(lane["kind"]), "unknown")
        if serial not in kinds:
            continue
        if lane["state"] in _WORKING:
            kinds[serial].add(kind)
        elif kind in ("harp", "dpdk"):
            reasons[serial] = "lane_lost"
    result = {("unknown", ""): snapshot.status.comms_hidden}
    for serial, each in kinds.items():
        name = "none" if not each else "mixed" if len(each) > 1 else next(iter(each))
        key = name, reasons[serial] if name == "kernel" else ""
        result[key] = result.get(key, 0) + 1
    return result


# --------------------------------------------------------------------------------------------------
# Instances.
#
@dataclass
class Device:
    """All instances of a NIC. numbers: by statistic, gauges of the present instances; buckets and
    sums_ns: in the order of HARP_HISTOGRAMS.
    """

    instances: int
    numbers: dict[str, int]
    buckets: list[list[int]]
    sums_ns: list[int]


class DeviceTotals:
    """Remembers instances between scrapes, as Totals does jobs; any thread may call it."""

    def __init__(
        self, lives: Callable[[int], bool] = _lives, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._lock = threading.Lock()
        self._memory: _Memory[_Vector] = _Memory(lives, wall_ns)
        self._sums: dict[str, _Vector] = {}

    def take(self, instances: Iterable[Instance]) -> dict[str, Device]:
        """Return the sums by NIC, including these instances' present numbers."""
        kept = list(instances)
        with self._lock:
            now: dict[tuple[int, ...], _Vector] = {}
            for each in kept:
                numbers = now[each.key] = _vector(each)
                is_new, last = self._memory.before(each.key)
                before = last if last is not None else np.zeros_like(numbers) if is_new else numbers
                grown = np.where(numbers >= before, numbers - before, 0)
                name = each.snapshot.identity.ifname
                self._sums[name] = self._sums.get(name, np.zeros_like(numbers)) + grown
            self._memory.remember(now)
            result = {name: _device(sums) for name, sums in self._sums.items()}
        for each in kept:
            device = result[each.snapshot.identity.ifname]
            device.instances += 1
            for one in schema.statistics():
                if one.kind == "gauge":
                    device.numbers[one.name] += int(each.snapshot.counters[one.name])
        return result


def _vector(each: Instance) -> _Vector:
    """Return the statistics, then each histogram's sum and buckets."""
    histograms = each.snapshot.histograms
    parts = [np.array(each.snapshot.counters.tolist(), dtype=np.uint64)]
    parts += [np.append(one["sum_ns"], one["bucket"]).astype(np.uint64) for one in histograms]
    return np.concatenate(parts)


def _device(sums: _Vector) -> Device:
    """Split a vector; gauges are 0."""
    statistics = schema.statistics()
    numbers = {
        one.name: 0 if one.kind == "gauge" else int(value)
        for one, value in zip(statistics, sums, strict=False)
    }
    histograms = sums[len(statistics) :].reshape(len(_page.histograms()), -1)
    return Device(
        instances=0,
        numbers=numbers,
        buckets=[[int(count) for count in one[1:]] for one in histograms],
        sums_ns=[int(one[0]) for one in histograms],
    )
