# SPDX-License-Identifier: Apache-2.0
"""Sums over all jobs of a host, and over all instances of a NIC, as numbers that only grow.

Prometheus gets sums, because jobs and instances start and end. The sums keep the share of an ended
owner; otherwise rate() would take the decrease for a restart. An owner that started before the
first reading counts from the first time it is seen; a later one counts from its start. An owner
that readings left out for a while (its user exceeded a limit) counts from its last known numbers.
If more than ABSENT_MAX are absent, the oldest are forgotten, and unknown owners count as at the
first reading, so that nothing is counted twice.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harp import _page
from harp.procfs import PROC
from harp.stats import schema
from harp.stats.job import COMM_STATES, FALLBACKS, KINDS, LANE_STATES
from harp.stats.page import Instance, Job, text

OTHER = "other"  # for NICs that a job names and this host does not have
GAUGES = ("lanes_open",)
# Counters of lanes over a NIC; kind and down are not counters.
RAIL_COUNTERS = tuple(
    name for name, _ in _page.LISTS["rail"] if name not in ("kind", "down", *GAUGES)
)
# Transports of a comm, by the kinds of its open lanes. unknown: the page has no record of the comm.
TRANSPORTS = ("harp", "dpdk", "kernel", "mixed", "none", "unknown")
# Why a comm has kernel lanes only: the plugin's reasons; lane_lost: its HARP lanes died; unknown:
# the plugin names no reason.
REASONS = (*FALLBACKS.values(), "lane_lost", "unknown")
ABSENT_MAX = 512  # remembered owners that a reading left out and that still run
BUCKETS = len(_page.histogram_upper_ns()) + 1


@dataclass
class Rail:
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
        default_factory=lambda: {counter.name: 0 for counter in schema.job_counters()}
    )
    rails: dict[tuple[str, str], Rail] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


Owner = tuple[int, ...]  # Published.key: process, start time, instance
Key = tuple[str, ...]
Numbers = Mapping[Key, npt.NDArray[np.uint64]]
_WORKING = {number for number, name in LANE_STATES.items() if name != "dead"}


def _is_running(pid: int) -> bool:
    return (PROC / str(pid)).exists()


class Sums:
    """Sums of the counters of all owners, in vectors by key. lives: whether a process exists;
    wall_ns: the clock of owners' start times.
    """

    def __init__(
        self, lives: Callable[[int], bool] = _is_running, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._lives, self._wall_ns = lives, wall_ns
        self._last: dict[Owner, Numbers] = {}
        self._since_ns: int | None = None  # owners that began later count from their beginning
        self._sums: dict[Key, npt.NDArray[np.uint64]] = {}

    def take(self, now: Mapping[Owner, Numbers]) -> Numbers:
        """Return the sums, updated with the owners' current numbers."""
        for owner, numbers in now.items():
            is_new = self._since_ns is not None and owner[1] >= self._since_ns
            last = self._last.get(owner, {} if is_new else numbers)
            for key, current in numbers.items():
                before = last.get(key, np.zeros_like(current))
                growth = np.where(current >= before, current - before, 0)
                self._sums[key] = self._sums.get(key, np.zeros_like(current)) + growth
        self._remember(now)
        return self._sums

    def _remember(self, now: Mapping[Owner, Numbers]) -> None:
        """Replace the last numbers; keep those of absent owners whose process exists."""
        if self._since_ns is None:
            self._since_ns = self._wall_ns()
        absent = [owner for owner in self._last if owner not in now and self._lives(owner[0])]
        if len(absent) > ABSENT_MAX:
            self._since_ns = self._wall_ns()
        self._last = {owner: self._last[owner] for owner in absent[-ABSENT_MAX:]} | dict(now)


class Totals(Sums):
    """Remembers jobs between scrapes."""

    def of_jobs(self, jobs: Iterable[Job], nics: frozenset[str]) -> Jobs:
        """Return the sums; lanes over NICs that are not in `nics` count for "other"."""
        kept = list(jobs)
        sums = self.take({job.key: _job_numbers(job, nics) for job in kept})
        result = Jobs()
        for key, numbers in sums.items():
            values = numbers.tolist()
            if key == ("job",):
                names = (counter.name for counter in schema.job_counters())
                result.counters = dict(zip(names, values, strict=True))
                continue
            split = len(RAIL_COUNTERS)
            result.rails[key[1], key[2]] = Rail(
                counters=dict(zip(RAIL_COUNTERS, values[:split], strict=True)),
                srtt_sum_ns=values[split],
                srtt_buckets=values[split + 1 :],
            )
        _gauges(result, kept, nics)
        return result


def _job_numbers(job: Job, nics: frozenset[str]) -> Numbers:
    """Return a job's counters, and those of its lanes by NIC and kind."""
    result: dict[Key, npt.NDArray[np.uint64]] = {}
    result["job",] = np.array(job.snapshot.counters.tolist(), dtype=np.uint64)
    for rail in job.snapshot.rails:
        place = _place(rail, nics)
        if place is None:
            continue
        counters = [rail[name] for name in RAIL_COUNTERS]
        numbers = np.array([*counters, rail["srtt_sum_ns"], *rail["srtt_bucket"]], dtype=np.uint64)
        key = ("rail", *place)
        result[key] = result[key] + numbers if key in result else numbers
    return result


def _place(rail: np.void, nics: frozenset[str]) -> tuple[str, str] | None:
    """Return NIC and kind of a record; None for an unknown kind."""
    kind, name = KINDS.get(int(rail["kind"])), text(rail["ifname"])
    if kind is None:
        return None
    return (name if name in nics else OTHER), kind


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
    for serial, used in kinds.items():
        name = "none" if not used else "mixed" if len(used) > 1 else next(iter(used))
        key = name, reasons[serial] if name == "kernel" else ""
        result[key] = result.get(key, 0) + 1
    return result


@dataclass
class Device:
    """All instances of a NIC. numbers: by statistic, gauges of the current instances only; buckets
    and sums_ns: in the order of HARP_HISTOGRAMS.
    """

    instances: int
    numbers: dict[str, int]
    buckets: list[list[int]]
    sums_ns: list[int]


class DeviceTotals(Sums):
    """Remembers instances between scrapes."""

    def of_devices(self, instances: Iterable[Instance]) -> dict[str, Device]:
        kept = list(instances)
        sums = self.take(
            {item.key: {(item.snapshot.identity.ifname,): _vector(item)} for item in kept}
        )
        result = {key[0]: _device(numbers) for key, numbers in sums.items()}
        for instance in kept:
            _add_gauges(result[instance.snapshot.identity.ifname], instance)
        return result


def alone(instance: Instance) -> Device:
    """Return the numbers of one instance."""
    device = _device(_vector(instance))
    _add_gauges(device, instance)
    return device


def _vector(instance: Instance) -> npt.NDArray[np.uint64]:
    """Return the statistics, then each histogram's sum and buckets."""
    histograms = instance.snapshot.histograms
    parts = [np.array(instance.snapshot.counters.tolist(), dtype=np.uint64)]
    parts += [np.append(item["sum_ns"], item["bucket"]).astype(np.uint64) for item in histograms]
    return np.concatenate(parts)


def _device(numbers: npt.NDArray[np.uint64]) -> Device:
    """Split a vector; gauges are 0."""
    statistics = schema.statistics()
    histograms = numbers[len(statistics) :].reshape(len(_page.LISTS["histogram"]), -1)
    return Device(
        instances=0,
        numbers={
            item.name: 0 if item.kind == "gauge" else int(value)
            for item, value in zip(statistics, numbers, strict=False)
        },
        buckets=[item[1:].tolist() for item in histograms],
        sums_ns=[int(item[0]) for item in histograms],
    )


def _add_gauges(device: Device, instance: Instance) -> None:
    device.instances += 1
    for statistic in schema.statistics():
        if statistic.kind == "gauge":
            device.numbers[statistic.name] += int(instance.snapshot.counters[statistic.name])
