# SPDX-License-Identifier: Apache-2.0
"""harpd's own metric families: what it knows of itself, its NICs and its leases.

Those of instances and jobs are made by another process (harp.stats.reader), for they are read from
users' files. This module imports nothing that takes long.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from harp import __version__

REFUSALS = ("EACCES", "EBUSY", "EDQUOT", "EINVAL", "ENODEV")


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


def collect(view: DaemonView | None, pages_read: bool) -> Iterator[Metric]:
    """All of harpd's families. None: harpd's loop did not answer. pages_read: families of
    instances and jobs follow."""
    info = InfoMetricFamily("harp_build", "The version of HARP that exports.")
    info.add_metric((), {"version": __version__})
    yield info
    read = GaugeMetricFamily(
        "harpd_pages_read",
        "1 when jobs' statistics were read for this answer; 0 when the process that reads them "
        "failed: families of instances and jobs are missing.",
    )
    read.add_metric((), 1 if pages_read else 0)
    yield read
    if view is not None:
        yield from _daemon(view)
