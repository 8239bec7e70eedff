# SPDX-License-Identifier: Apache-2.0
"""Prometheus's view: a pure function from what was seen to metric families.

Names come from the lists: harp_NAME_total of a counter, harp_NAME of a gauge; drops are one counter
with the label reason, histograms are in seconds. Labels are bounded: nic and queue as the host has
them, and slot, which counts the instances that say they are on the same queue (in other network
namespaces) from 0. Of jobs there are sums over all of them, by NIC and kind of lane. No process, no
peer, no port, no label of a job's becomes a Prometheus label; of the names that a DPDK port's
driver has for its counters harp.stats.xstats lets through what is bounded.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from harp import __version__, _page
from harp.stats import schema, totals
from harp.stats.instance import Instance
from harp.stats.job import Job

INSTANCES_MAX = 512
QUEUE_MAX = 1023
LABELS = ("nic", "queue", "slot")
RAIL_LABELS = ("nic", "kind")
DIED = "lanes_died_"
REFUSALS = ("EACCES", "EBUSY", "EDQUOT", "EINVAL", "ENODEV")
NIC_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
# A bucket an octave, from about a microsecond to about 17 seconds.
OCTAVES_NS = tuple(1 << exponent for exponent in range(10, 35))


@dataclass(frozen=True)
class NicView:
    """What harpd knows of a NIC."""

    name: str
    usable: bool = True  # HARP can lease it
    queues: Mapping[str, int] = field(default_factory=dict)  # how many in each state
    verdicts: Mapping[str, int] = field(default_factory=dict)  # of the steering program
    unreachable: int = 0  # queues that none of HARP's packets come to


@dataclass(frozen=True)
class DaemonView:
    """What harpd knows of itself. refused: by errno's name. leased: (nic, queue) -> pid."""

    start_s: float
    nics: tuple[NicView, ...] = ()
    leased: Mapping[tuple[str, int], int] = field(default_factory=dict)
    granted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    reloads: int = 0


def daemon_view(status: Mapping[str, Any], instances: Mapping[str, Any]) -> DaemonView:
    """Of harpd's own documents (harp.daemon.queries)."""
    nics = []
    for nic in status["nics"]:
        states = Counter(nic["queues"].values())
        usable = not nic["problem"] and nic["up"]
        unreachable = len(nic.get("queues_unreachable", ()))
        nics.append(NicView(nic["ifname"], usable, dict(states), nic["verdicts"], unreachable))
    for port in status.get("dpdk", ()):
        states = Counter({"leased" if port["pid"] else "free": port["queues"]})
        nics.append(NicView(port["name"], not port["problem"], dict(states), {}, 0))
    leased: dict[tuple[str, int], int] = {}
    for each in instances["instances"]:
        # A DPDK port is leased whole: its queues, from 0, are its holder's.
        queues = range(each["queues"]) if each.get("device") else (each["queue"],)
        leased |= {(each["ifname"], queue): each["pid"] for queue in queues}
    return DaemonView(
        start_s=status["since_s"],
        nics=tuple(nics),
        leased=leased,
        granted=status.get("granted", 0),
        refused=status.get("refused", {}),
        reloads=status.get("reloads", 0),
    )


@dataclass(frozen=True)
class Scene:
    """Everything one scrape is made of. daemon None: an exporter without harpd."""

    instances: tuple[Instance, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)  # pages, by reason
    daemon: DaemonView | None = None
    jobs: totals.Jobs = field(default_factory=totals.Jobs)
    xstats_ignored: Mapping[str, int] = field(default_factory=dict)  # by reason


# --------------------------------------------------------------------------------------------------
# Whom to believe.
#
def believed(
    instances: Iterable[Instance], daemon: DaemonView | None
) -> tuple[tuple[Instance, ...], dict[str, int]]:
    """Instances that may have series of their own, and how many pages were left out, by reason.

    A page says itself where it belongs. Root's is believed, and a lease's when it says what harpd
    knows; anyone else could fill a Prometheus with names.
    """
    leased = daemon.leased if daemon is not None else {}
    kept: list[Instance] = []
    ignored = {"ended": 0, "malformed": 0, "stranger": 0, "too_many": 0, "unreadable": 0}
    for each in instances:
        identity = each.snapshot.identity
        if each.snapshot.status.ended:
            ignored["ended"] += 1
        elif not NIC_NAME.fullmatch(identity.ifname) or identity.queue > QUEUE_MAX:
            ignored["malformed"] += 1
        elif each.uid != 0 and leased.get((identity.ifname, identity.queue)) != each.pid:
            ignored["stranger"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(each)
    return tuple(kept), ignored


def believed_jobs(
    jobs: Iterable[Job], daemon: DaemonView | None
) -> tuple[tuple[Job, ...], dict[str, int]]:
    """Jobs that count, and how many pages were left out: root's, and those of who has a lease.

    Others' are not counted as strangers, of whom an alert tells: a user's job over kernel lanes is
    nothing to be alarmed of.
    """
    leased = set(daemon.leased.values()) if daemon is not None else set()
    kept: list[Job] = []
    ignored = {"job_of_user": 0, "ended": 0, "too_many": 0}
    for each in jobs:
        if each.snapshot.status.ended:
            ignored["ended"] += 1
        elif each.uid != 0 and each.pid not in leased:
            ignored["job_of_user"] += 1
        elif len(kept) >= INSTANCES_MAX:
            ignored["too_many"] += 1
        else:
            kept.append(each)
    return tuple(kept), ignored


def _labelled(instances: Iterable[Instance]) -> list[tuple[tuple[str, str, str], Instance]]:
    """Each with its labels' values; slots by age, so that a newcomer takes the next one."""
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
Labelled = list[tuple[tuple[str, str, str], Instance]]


def _plain(seen: Labelled) -> Iterator[Metric]:
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


def _drops(seen: Labelled) -> Metric:
    family = CounterMetricFamily(
        "harp_drops", "Packets or payload thrown away, by reason.", labels=(*LABELS, "reason")
    )
    for labels, each in seen:
        for one in schema.drops():
            reason = one.drop_reason or ""
            family.add_metric((*labels, reason), float(each.snapshot.counters[one.name]))
    return family


def _xstats(seen: Labelled, ignored: Mapping[str, int]) -> Iterator[Metric]:
    counted = CounterMetricFamily(
        "harp_port_xstat",
        "What the driver of a DPDK port counts, by its own name for it.",
        labels=("nic", "slot", "name"),
    )
    for (nic, queue, slot), each in seen:
        # The instance on queue 0 speaks for the port.
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
    """The metric of a number of HARP_RAIL_VALUES."""
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
        "Smoothed round-trip times of lanes, asked now and then while they work.",
        labels=RAIL_LABELS,
    )
    for labels, rail in rails:
        srtt.add_metric(labels, octaves(rail.srtt_buckets), rail.srtt_sum_ns / 1e9)
    yield srtt


def _jobs(jobs: totals.Jobs) -> Iterator[Metric]:
    running = GaugeMetricFamily("harp_jobs", "Processes that run the NCCL plugin.")
    running.add_metric((), jobs.jobs)
    yield running
    comms = GaugeMetricFamily("harp_comms_open", "Comms that they have.")
    comms.add_metric((), jobs.comms_open)
    yield comms
    down = GaugeMetricFamily(
        "harp_rail_down", "Jobs with a comm for which no lane over the NIC works.", labels=("nic",)
    )
    for nic, count in sorted(jobs.down.items()):
        down.add_metric((nic,), count)
    yield down
    yield from _job_counters(jobs)
    yield from _rails(jobs)


def octaves(bucket: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative counts at OCTAVES_NS and +Inf of a page's histogram, as Prometheus wants them."""
    upper, counts = schema.upper_ns(), [int(count) for count in bucket]
    result, total, index = [], 0, 0
    for bound_ns in OCTAVES_NS:
        while index < len(upper) and upper[index] <= bound_ns:
            total += counts[index]
            index += 1
        result.append((repr(bound_ns / 1e9), float(total)))
    result.append(("+Inf", float(sum(counts))))
    return result


def _histograms(seen: Labelled) -> Iterator[Metric]:
    for index, (name, text) in enumerate(_page.histograms()):
        family = HistogramMetricFamily(f"harp_{name}_seconds", sentence(text), labels=LABELS)
        for labels, each in seen:
            item = each.snapshot.histograms[index]
            bucket = np.asarray(item["bucket"])
            family.add_metric(labels, octaves(bucket), float(item["sum_ns"]) / 1e9)
        yield family


def _instances(scene: Scene) -> Iterator[Metric]:
    seen = _labelled(scene.instances)
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
    yield from _xstats(seen, scene.xstats_ignored)
    ignored = GaugeMetricFamily(
        "harp_pages_ignored",
        "Statistics pages that have no series, by reason.",
        labels=("reason",),
    )
    for reason, count in sorted(scene.ignored.items()):
        ignored.add_metric((reason,), count)
    yield ignored


# --------------------------------------------------------------------------------------------------
# harpd.
#
def _per_nic(
    name: str,
    text: str,
    make: Callable[..., CounterMetricFamily | GaugeMetricFamily],
    label: str,
    rows: Iterable[tuple[str, Mapping[str, int]]],
) -> Metric:
    family = make(name, text, labels=("nic", label))
    for nic, values in rows:
        for key, value in sorted(values.items()):
            family.add_metric((nic, key), value)
    return family


def _daemon(view: DaemonView) -> Iterator[Metric]:
    start = GaugeMetricFamily(
        "harpd_start_time_seconds", "When harpd was started, seconds of the epoch."
    )
    start.add_metric((), view.start_s)
    yield start
    usable = GaugeMetricFamily(
        "harpd_nic_usable",
        "1 when harpd can lease the NIC; 0 when jobs on it have kernel lanes only.",
        labels=("nic",),
    )
    for nic in view.nics:
        usable.add_metric((nic.name,), 1 if nic.usable else 0)
    yield usable
    yield _per_nic(
        "harpd_queues",
        "Queues of the NIC that harpd may lease, by state.",
        GaugeMetricFamily,
        "state",
        ((nic.name, nic.queues) for nic in view.nics),
    )
    unreachable = GaugeMetricFamily(
        "harpd_queues_unreachable",
        "Queues of the NIC that are not leased because it puts all of HARP's packets on one.",
        labels=("nic",),
    )
    for nic in view.nics:
        unreachable.add_metric((nic.name,), nic.unreachable)
    yield unreachable
    yield _per_nic(
        "harp_steering_packets",
        "What the steering program did with the NIC's packets, by verdict.",
        CounterMetricFamily,
        "verdict",
        ((nic.name, nic.verdicts) for nic in view.nics),
    )
    leases = GaugeMetricFamily("harpd_leases", "Leases in force.", labels=("nic",))
    for nic in view.nics:
        leases.add_metric((nic.name,), sum(place[0] == nic.name for place in view.leased))
    yield leases
    granted = CounterMetricFamily("harpd_leases_granted", "Leases granted since harpd's start.")
    granted.add_metric((), view.granted)
    yield granted
    refused = CounterMetricFamily(
        "harpd_leases_refused", "Leases refused since harpd's start, by errno.", labels=("error",)
    )
    # A series must be there before it moves, or its first step is not seen.
    for error, count in sorted((dict.fromkeys(REFUSALS, 0) | dict(view.refused)).items()):
        refused.add_metric((error,), count)
    yield refused
    reloads = CounterMetricFamily("harpd_reloads", "Times that harpd read its configuration anew.")
    reloads.add_metric((), view.reloads)
    yield reloads


def sentence(text: str) -> str:
    """A help text of a list, as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def collect(scene: Scene) -> Iterator[Metric]:
    """All families, with those that have no samples now."""
    info = InfoMetricFamily("harp_build", "The version of HARP that exports.")
    info.add_metric((), {"version": __version__})
    yield info
    yield from _instances(scene)
    yield from _jobs(scene.jobs)
    if scene.daemon is not None:
        yield from _daemon(scene.daemon)
