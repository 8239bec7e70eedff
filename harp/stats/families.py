# SPDX-License-Identifier: Apache-2.0
"""Metric families: a pure function of a scrape's data.

Names come from the lists: harp_NAME_total of a counter, harp_NAME of a gauge; drops are one counter
with the label reason, histograms are in seconds. Instances have sums by device, the NIC's name, or
series by device, queue and slot if ScrapeData.devices is None. slot numbers the instances on the
same queue (in several network namespaces) from 0. Jobs have sums over all of them, by device and
kind of lane. No process, peer, port or label of a job becomes a Prometheus label.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from harp import _page
from harp.daemon.families import Labels, counter, family, gauge, single
from harp.stats import schema, totals
from harp.stats.page import Instance, Job

INSTANCES_MAX = 512
QUEUE_MAX = 1023
LABELS = ("device", "queue", "slot")
RAIL_LABELS = ("device", "kind")
DIED = "lanes_died_"
NIC_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
XSTAT_NAME = re.compile(r"[A-Za-z0-9_.:/\[\] -]{1,63}")
# One bucket per octave, from about a microsecond to about 17 seconds.
OCTAVES_NS = tuple(1 << exponent for exponent in range(10, 35))


# harpd's leases: NIC and queue -> the owner's process.
Leased = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class ScrapeData:
    instances: tuple[Instance, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)  # pages, by reason
    jobs: totals.Jobs = field(default_factory=totals.Jobs)
    devices: Mapping[str, totals.Device] | None = None  # None: series of each queue
    xstats_ignored: Mapping[str, int] = field(default_factory=dict)  # by reason


def believed(
    instances: Iterable[Instance], leased: Leased
) -> tuple[tuple[Instance, ...], dict[str, int]]:
    """Return the instances that may have series, and the number of ignored pages, by reason.

    A page names its own NIC and queue. Trusted are root's pages, and those of a lease's owner that
    name the leased queue. Others could fill Prometheus with names.
    """
    kept: list[Instance] = []
    ignored = {"ended": 0, "malformed": 0, "unknown_owner": 0, "too_many": 0, "unreadable": 0}
    for instance in instances:
        identity = instance.snapshot.identity
        if instance.snapshot.status.ended:
            ignored["ended"] += 1
        elif not NIC_NAME.fullmatch(identity.ifname) or identity.queue > QUEUE_MAX:
            ignored["malformed"] += 1
        elif instance.uid != 0 and leased.get((identity.ifname, identity.queue)) != instance.pid:
            ignored["unknown_owner"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(instance)
    return tuple(kept), ignored


def believed_jobs(jobs: Iterable[Job], leased: Leased) -> tuple[tuple[Job, ...], dict[str, int]]:
    """Return the jobs that count (root's and those with a lease), and the number of ignored pages.

    Other jobs do not count as unknown owners, which raise an alert: a user's job over kernel lanes
    is normal.
    """
    owners = set(leased.values())
    kept: list[Job] = []
    ignored = {"job_of_user": 0, "ended": 0, "too_many": 0}
    for job in jobs:
        if job.snapshot.status.ended:
            ignored["ended"] += 1
        elif job.uid != 0 and job.pid not in owners:
            ignored["job_of_user"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(job)
    return tuple(kept), ignored


class Names:
    """The names of drivers' counters so far, by NIC.

    A job reports its driver's counters and could invent their names. So the exporter accepts at
    most as many names of a NIC as a page holds, and only printable ones.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def sift(self, instances: Iterable[Instance]) -> tuple[tuple[Instance, ...], dict[str, int]]:
        """Return the instances with the counters that may have series, and how many may not."""
        kept = []
        ignored = Counter({"name": 0, "too_many": 0})
        for instance in instances:
            known = self._known.setdefault(instance.snapshot.identity.ifname, set())
            accepted: dict[str, int] = {}
            for name, value in instance.snapshot.xstats.items():
                if not XSTAT_NAME.fullmatch(name):
                    ignored["name"] += 1
                elif name not in known and len(known) >= _page.XSTATS_MAX:
                    ignored["too_many"] += 1
                else:
                    known.add(name)
                    accepted[name] = value
            kept.append(replace(instance, snapshot=replace(instance.snapshot, xstats=accepted)))
        return tuple(kept), dict(ignored)


def _labeled(instances: Iterable[Instance]) -> list[tuple[tuple[str, str, str], Instance]]:
    """Return instances with their labels' values. Slots are by age, so that a new one is last."""
    slots: dict[tuple[str, int], int] = {}
    result = []
    for instance in sorted(
        instances, key=lambda instance: (instance.snapshot.identity.start_wall_ns, instance.pid)
    ):
        queue = instance.snapshot.identity.ifname, instance.snapshot.identity.queue
        slot = slots.get(queue, 0)
        slots[queue] = slot + 1
        result.append(((queue[0], str(queue[1]), str(slot)), instance))
    return result


Rows = Sequence[tuple[Labels, totals.Device]]


def octaves(bucket: Iterable[int]) -> list[tuple[str, float]]:
    """Return the cumulative counts of a page's histogram at OCTAVES_NS and +Inf."""
    upper, sums = schema.upper_ns(), [0, *accumulate(int(count) for count in bucket)]
    bounds = [(repr(ns / 1e9), float(sums[bisect_right(upper, ns)])) for ns in OCTAVES_NS]
    return [*bounds, ("+Inf", float(sums[-1]))]


def _histogram(
    name: str, text: str, labels: Labels, rows: Iterable[tuple[Labels, Iterable[int], int]]
) -> Metric:
    """rows: the labels' values, the buckets of a page, and their sum in nanoseconds."""
    result = HistogramMetricFamily(name, text, labels=labels)
    for values, buckets, sum_ns in rows:
        result.add_metric(values, octaves(buckets), sum_ns / 1e9)
    return result


def _statistics(labels: Labels, rows: Rows) -> Iterator[Metric]:
    """Yield a family of each statistic, of the drops, and of each histogram."""
    for statistic in schema.statistics():
        if not statistic.drop_reason:
            make = CounterMetricFamily if statistic.kind == "counter" else GaugeMetricFamily
            numbers = ((values, device.numbers[statistic.name]) for values, device in rows)
            yield family(make, f"harp_{statistic.name}", sentence(statistic.help), labels, numbers)
    yield counter(
        "harp_drops",
        "Dropped packets or payload, by reason.",
        (*labels, "reason"),
        (
            ((*values, statistic.drop_reason or ""), device.numbers[statistic.name])
            for values, device in rows
            for statistic in schema.drops()
        ),
    )
    for index, (name, text) in enumerate(_page.LISTS["histogram"]):
        yield _histogram(
            f"harp_{name}_seconds",
            sentence(text),
            labels,
            ((values, device.buckets[index], device.sums_ns[index]) for values, device in rows),
        )


def _instances(scrape: ScrapeData) -> Iterator[Metric]:
    labeled = _labeled(scrape.instances)
    if scrape.devices is None:
        yield gauge(
            "harp_instance_start_time_seconds",
            "When the instance was opened, seconds of the epoch.",
            LABELS,
            (
                (labels, instance.snapshot.identity.start_wall_ns / 1e9)
                for labels, instance in labeled
            ),
        )
        yield from _statistics(
            LABELS, [(labels, totals.alone(instance)) for labels, instance in labeled]
        )
    else:
        rows = [((name,), device) for name, device in sorted(scrape.devices.items())]
        yield gauge(
            "harp_instances",
            "Instances on the NIC, of all processes.",
            ("device",),
            ((labels, device.instances) for labels, device in rows),
        )
        yield from _statistics(("device",), rows)
    yield counter(
        "harp_port_xstat",
        "Counters of a DPDK port's driver, by the driver's own names.",
        ("device", "slot", "name"),
        (
            ((nic, slot, name), value)
            for (nic, queue, slot), instance in labeled
            if queue == "0"  # this instance publishes the port's counters
            for name, value in instance.snapshot.xstats.items()
        ),
    )
    yield gauge(
        "harp_port_xstats_ignored",
        "Counters of DPDK ports' drivers without a series, by reason.",
        ("reason",),
        (((reason,), count) for reason, count in sorted(scrape.xstats_ignored.items())),
    )
    yield gauge(
        "harp_pages_ignored",
        "Statistics pages without a series, by reason.",
        ("reason",),
        (((reason,), count) for reason, count in sorted(scrape.ignored.items())),
    )


def rail_metric(name: str) -> str:
    """Return the metric of a number of HARP_RAIL_VALUES."""
    return f"harp_{name}" if name.startswith("lanes_") else f"harp_lane_{name}"


def _jobs(jobs: totals.Jobs) -> Iterator[Metric]:
    yield single(GaugeMetricFamily, "harp_jobs", "Processes that run the NCCL plugin.", jobs.jobs)
    yield single(GaugeMetricFamily, "harp_comms_open", "Open comms of these jobs.", jobs.comms_open)
    yield gauge(
        "harp_comms",
        "Open comms by the kinds of their open lanes; unknown: without a record on the job's page. "
        "reason: why a comm has kernel lanes only.",
        ("transport", "reason"),
        jobs.comms.items(),
    )
    yield gauge(
        "harp_rail_down",
        "Jobs with a comm for which no lane over the NIC works.",
        ("device",),
        (((nic,), count) for nic, count in sorted(jobs.down.items())),
    )
    for statistic in schema.job_counters():
        if not statistic.name.startswith(DIED):
            name = f"harp_job_{statistic.name}"
            yield single(
                CounterMetricFamily, name, sentence(statistic.help), jobs.counters[statistic.name]
            )
    yield counter(
        "harp_job_lanes_died",
        "Lanes lost while their comm lived, by reason.",
        ("reason",),
        (
            ((name.removeprefix(DIED),), count)
            for name, count in jobs.counters.items()
            if name.startswith(DIED)
        ),
    )
    rails = sorted(jobs.rails.items())
    for name, text in _page.LISTS["rail"]:
        if name in totals.GAUGES:
            rows = [(labels, rail.lanes_open) for labels, rail in rails]
            yield gauge(rail_metric(name), sentence(text), RAIL_LABELS, rows)
        elif name in totals.RAIL_COUNTERS:
            rows = [(labels, rail.counters[name]) for labels, rail in rails]
            yield counter(rail_metric(name), sentence(text), RAIL_LABELS, rows)
    yield _histogram(
        "harp_lane_srtt_seconds",
        "Smoothed round-trip times of lanes, sampled while they work.",
        RAIL_LABELS,
        ((labels, rail.srtt_buckets, rail.srtt_sum_ns) for labels, rail in rails),
    )


def sentence(text: str) -> str:
    """Return a help text of a list as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def collect(scrape: ScrapeData) -> Iterator[Metric]:
    """Return all families of instances and jobs, including those without samples."""
    yield from _instances(scrape)
    yield from _jobs(scrape.jobs)
