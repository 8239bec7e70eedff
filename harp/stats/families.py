# SPDX-License-Identifier: Apache-2.0
"""Metric families: a pure function of a scrape's data.

Names come from the lists: harp_NAME_total of a counter, harp_NAME of a gauge; drops are one counter
with the label reason, histograms are in seconds. Instances have sums by device, the NIC's name, or
series by device, queue and slot if Scene.devices is None. slot numbers the instances on the same
queue (in several network namespaces) from 0. Jobs have sums over all of them, by device and kind of
lane. No process, peer, port or label of a job
becomes a Prometheus label; harp.stats.xstats limits the names of a DPDK driver's counters.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from harp import _page
from harp.stats import schema, totals
from harp.stats.instance import Instance
from harp.stats.job import Job

INSTANCES_MAX = 512
QUEUE_MAX = 1023
LABELS = ("device", "queue", "slot")
RAIL_LABELS = ("device", "kind")
DIED = "lanes_died_"
NIC_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
# One bucket per octave, from about a microsecond to about 17 seconds.
OCTAVES_NS = tuple(1 << exponent for exponent in range(10, 35))


# harpd's leases: NIC and queue -> the owner's process.
Leased = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Scene:
    """The data of the families."""

    instances: tuple[Instance, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)  # pages, by reason
    jobs: totals.Jobs = field(default_factory=totals.Jobs)
    devices: Mapping[str, totals.Device] | None = None  # None: series of each queue
    xstats_ignored: Mapping[str, int] = field(default_factory=dict)  # by reason


# --------------------------------------------------------------------------------------------------
# Trust.
#
def believed(
    instances: Iterable[Instance], leased: Leased
) -> tuple[tuple[Instance, ...], dict[str, int]]:
    """Return the instances that may have series, and the number of ignored pages, by reason.

    A page itself names its NIC and queue. Root's pages are trusted, and those of a lease's owner
    that name the leased queue; others could fill a Prometheus with names.
    """
    kept: list[Instance] = []
    ignored = {"ended": 0, "malformed": 0, "unknown_owner": 0, "too_many": 0, "unreadable": 0}
    for each in instances:
        identity = each.snapshot.identity
        if each.snapshot.status.ended:
            ignored["ended"] += 1
        elif not NIC_NAME.fullmatch(identity.ifname) or identity.queue > QUEUE_MAX:
            ignored["malformed"] += 1
        elif each.uid != 0 and leased.get((identity.ifname, identity.queue)) != each.pid:
            ignored["unknown_owner"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(each)
    return tuple(kept), ignored


def believed_jobs(jobs: Iterable[Job], leased: Leased) -> tuple[tuple[Job, ...], dict[str, int]]:
    """Return the jobs that count (root's and those with a lease), and the number of ignored pages.

    Other jobs do not count as unknown owners, which raise an alert: a user's job over kernel lanes
    is normal.
    """
    owners = set(leased.values())
    kept: list[Job] = []
    ignored = {"job_of_user": 0, "ended": 0, "too_many": 0}
    for each in jobs:
        if each.snapshot.status.ended:
            ignored["ended"] += 1
        elif each.uid != 0 and each.pid not in owners:
            ignored["job_of_user"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(each)
    return tuple(kept), ignored


def _labeled(instances: Iterable[Instance]) -> list[tuple[tuple[str, str, str], Instance]]:
    """Return each with its labels' values; slots by age, so that a new one gets the next slot."""
    slots: dict[tuple[str, int], int] = {}
    result = []
    for each in sorted(instances, key=lambda one: (one.snapshot.identity.start_wall_ns, one.pid)):
        place = each.snapshot.identity.ifname, each.snapshot.identity.queue
        slot = slots.get(place, 0)
        slots[place] = slot + 1
        result.append(((place[0], str(place[1]), str(slot)), each))
    return result


# --------------------------------------------------------------------------------------------------
# Instances.
#
Labeled = list[tuple[tuple[str, str, str], Instance]]


def _plain(seen: Labeled) -> Iterator[Metric]:
    for one in schema.statistics():
        if one.drop_reason:
            continue
        family: Metric
        if one.kind == "counter":
            family = CounterMetricFamily(f"harp_{one.name}", sentence(one.help), labels=LABELS)
        else:
            family = GaugeMetricFamily(f"harp_{one.name}", sentence(one.help), labels=LABELS)
        for labels, each in seen:
            family.add_metric(labels, float(each.snapshot.counters[one.name]))
        yield family


def _drops(seen: Labeled) -> Metric:
    family = CounterMetricFamily(
        "harp_drops", "Dropped packets or payload, by reason.", labels=(*LABELS, "reason")
    )
    for labels, each in seen:
        for one in schema.drops():
            reason = one.drop_reason or ""
            family.add_metric((*labels, reason), float(each.snapshot.counters[one.name]))
    return family


def _xstats(seen: Labeled, ignored: Mapping[str, int]) -> Iterator[Metric]:
    counted = CounterMetricFamily(
        "harp_port_xstat",
        "Counters of a DPDK port's driver, by the driver's own names.",
        labels=("device", "slot", "name"),
    )
    for (nic, queue, slot), each in seen:
        # The instance on queue 0 publishes the port's counters.
        for name, value in each.snapshot.xstats.items() if queue == "0" else ():
            counted.add_metric((nic, slot, name), value)
    yield counted
    left_out = GaugeMetricFamily(
        "harp_port_xstats_ignored",
        "Counters of DPDK ports' drivers that have no series, by reason.",
        labels=("reason",),
    )
    for reason, count in sorted(ignored.items()):
        left_out.add_metric((reason,), count)
    yield left_out


# --------------------------------------------------------------------------------------------------
# Jobs.
#
def _job_counters(jobs: totals.Jobs) -> Iterator[Metric]:
    died = CounterMetricFamily(
        "harp_job_lanes_died", "Lanes lost while their comm lived, by reason.", labels=("reason",)
    )
    for one in schema.job_counters():
        value = jobs.counters[one.name]
        if one.name.startswith(DIED):
            died.add_metric((one.name.removeprefix(DIED),), value)
            continue
        family = CounterMetricFamily(f"harp_job_{one.name}", sentence(one.help))
        family.add_metric((), value)
        yield family
    yield died


def rail_metric(name: str) -> str:
    """Return the metric of a number of HARP_RAIL_VALUES."""
    return f"harp_{name}" if name.startswith("lanes_") else f"harp_lane_{name}"


def _rails(jobs: totals.Jobs) -> Iterator[Metric]:
    rails = sorted(jobs.rails.items())
    for name, text in _page.rail_values():
        family: Metric
        if name in totals.GAUGES:
            family = GaugeMetricFamily(rail_metric(name), sentence(text), labels=RAIL_LABELS)
            for labels, rail in rails:
                family.add_metric(labels, rail.lanes_open)
        elif name in totals.RAIL_COUNTERS:
            family = CounterMetricFamily(rail_metric(name), sentence(text), labels=RAIL_LABELS)
            for labels, rail in rails:
                family.add_metric(labels, rail.counters[name])
        else:
            continue
        yield family
    srtt = HistogramMetricFamily(
        "harp_lane_srtt_seconds",
        "Smoothed round-trip times of lanes, sampled while they work.",
        labels=RAIL_LABELS,
    )
    for labels, rail in rails:
        srtt.add_metric(labels, octaves(rail.srtt_buckets), rail.srtt_sum_ns / 1e9)
    yield srtt


def _jobs(jobs: totals.Jobs) -> Iterator[Metric]:
    running = GaugeMetricFamily("harp_jobs", "Processes that run the NCCL plugin.")
    running.add_metric((), jobs.jobs)
    yield running
    comms = GaugeMetricFamily("harp_comms_open", "Open comms of these jobs.")
    comms.add_metric((), jobs.comms_open)
    yield comms
    by = GaugeMetricFamily(
        "harp_comms",
        "Open comms by the kinds of their open lanes; unknown: without a record on the job's page. "
        "reason: why a comm has kernel lanes only.",
        labels=("transport", "reason"),
    )
    for labels, count in jobs.comms.items():
        by.add_metric(labels, count)
    yield by
    down = GaugeMetricFamily(
        "harp_rail_down",
        "Jobs with a comm for which no lane over the NIC works.",
        labels=("device",),
    )
    for nic, count in sorted(jobs.down.items()):
        down.add_metric((nic,), count)
    yield down
    yield from _job_counters(jobs)
    yield from _rails(jobs)


def octaves(bucket: Iterable[int]) -> list[tuple[str, float]]:
    """Return cumulative counts at OCTAVES_NS and +Inf of a page's histogram."""
    upper, counts = schema.upper_ns(), [int(count) for count in bucket]
    result, total, index = [], 0, 0
    for bound_ns in OCTAVES_NS:
        while index < len(upper) and upper[index] <= bound_ns:
            total += counts[index]
            index += 1
        result.append((repr(bound_ns / 1e9), float(total)))
    result.append(("+Inf", float(sum(counts))))
    return result


def _histograms(seen: Labeled) -> Iterator[Metric]:
    for index, (name, text) in enumerate(_page.histograms()):
        family = HistogramMetricFamily(f"harp_{name}_seconds", sentence(text), labels=LABELS)
        for labels, each in seen:
            item = each.snapshot.histograms[index]
            bucket = np.asarray(item["bucket"])
            family.add_metric(labels, octaves(bucket), float(item["sum_ns"]) / 1e9)
        yield family


def _devices(devices: Mapping[str, totals.Device]) -> Iterator[Metric]:
    """Yield the sums of each NIC's instances."""
    rows = sorted(devices.items())
    running = GaugeMetricFamily(
        "harp_instances", "Instances on the NIC, of all processes.", labels=("device",)
    )
    for name, device in rows:
        running.add_metric((name,), device.instances)
    yield running
    drops = CounterMetricFamily(
        "harp_drops", "Dropped packets or payload, by reason.", labels=("device", "reason")
    )
    for one in schema.statistics():
        if one.drop_reason:
            for name, device in rows:
                drops.add_metric((name, one.drop_reason), device.numbers[one.name])
            continue
        make: type[CounterMetricFamily | GaugeMetricFamily] = GaugeMetricFamily
        if one.kind == "counter":
            make = CounterMetricFamily
        family = make(f"harp_{one.name}", sentence(one.help), labels=("device",))
        for name, device in rows:
            family.add_metric((name,), device.numbers[one.name])
        yield family
    yield drops
    for index, (title, text) in enumerate(_page.histograms()):
        histogram = HistogramMetricFamily(
            f"harp_{title}_seconds", sentence(text), labels=("device",)
        )
        for name, device in rows:
            histogram.add_metric(
                (name,), octaves(device.buckets[index]), device.sums_ns[index] / 1e9
            )
        yield histogram


def _queues(seen: Labeled) -> Iterator[Metric]:
    """Yield the series of each queue."""
    starts = GaugeMetricFamily(
        "harp_instance_start_time_seconds",
        "When the instance was opened, seconds of the epoch.",
        labels=LABELS,
    )
    for labels, each in seen:
        starts.add_metric(labels, each.snapshot.identity.start_wall_ns / 1e9)
    yield starts
    yield from _plain(seen)
    yield _drops(seen)
    yield from _histograms(seen)


def _instances(scene: Scene) -> Iterator[Metric]:
    seen = _labeled(scene.instances)
    yield from _queues(seen) if scene.devices is None else _devices(scene.devices)
    yield from _xstats(seen, scene.xstats_ignored)
    ignored = GaugeMetricFamily(
        "harp_pages_ignored",
        "Statistics pages that have no series, by reason.",
        labels=("reason",),
    )
    for reason, count in sorted(scene.ignored.items()):
        ignored.add_metric((reason,), count)
    yield ignored


def sentence(text: str) -> str:
    """Return a help text of a list as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def collect(scene: Scene) -> Iterator[Metric]:
    """Return all families of instances and jobs, including those without samples."""
    yield from _instances(scene)
    yield from _jobs(scene.jobs)
