# SPDX-License-Identifier: Apache-2.0
"""harpd's own metric families: its state, its NICs and its leases.

Another process makes those of instances and jobs (harp.stats.reader), because it parses files of
users. This module imports nothing that takes long.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harp import __version__

REFUSALS = ("EACCES", "EBUSY", "EDQUOT", "EINVAL", "ENODEV")


@dataclass(frozen=True)
class NicView:
    """State of a NIC."""

    name: str
    usable: bool = True  # HARP can lease it
    queues: Mapping[str, int] = field(default_factory=dict)  # number of queues by state
    verdicts: Mapping[str, int] = field(default_factory=dict)  # of the XDP program
    unreachable: int = 0  # queues that receive none of HARP's packets


@dataclass(frozen=True)
class DaemonView:
    """State of harpd. refused: by errno's name. leased: (nic, queue) -> pid."""

    start_s: float
    nics: tuple[NicView, ...] = ()
    leased: Mapping[tuple[str, int], int] = field(default_factory=dict)
    granted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    reloads: int = 0


def daemon_view(status: Mapping[str, Any], instances: Mapping[str, Any]) -> DaemonView:
    """Build the snapshot from harpd's documents (harp.daemon.queries)."""
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
        # A DPDK port is leased whole: its holder has all queues, from 0.
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


Labels = tuple[str, ...]


def family(
    make: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Labels,
    rows: Iterable[tuple[Labels, float]],
) -> Metric:
    """Return a metric family.

    Parameters
    ----------
    labels
        Names of the labels.
    rows
        The labels' values and the number of each series.
    """
    result = make(name, text, labels=labels)
    for values, number in rows:
        result.add_metric(values, number)
    return result


def single(
    make: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, value: float
) -> Metric:
    """Return a family of one series without labels."""
    return family(make, name, text, (), [((), value)])


class _Metrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Return metrics as Prometheus's text."""
    return generate_latest(_Metrics(metrics))


def _per_nic(counts: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[tuple[Any, float]]:
    """Yield rows of the labels device and key."""
    for nic, numbers in counts:
        for key, number in sorted(numbers.items()):
            yield (nic, key), number


def _daemon(view: DaemonView) -> Iterator[Metric]:
    nics = view.nics
    yield single(
        GaugeMetricFamily,
        "harpd_start_time_seconds",
        "When harpd was started, seconds of the epoch.",
        view.start_s,
    )
    yield family(
        GaugeMetricFamily,
        "harpd_nic_usable",
        "1 when harpd can lease the NIC; 0 when jobs on it have kernel lanes only.",
        ("device",),
        (((nic.name,), 1 if nic.usable else 0) for nic in nics),
    )
    yield family(
        GaugeMetricFamily,
        "harpd_queues",
        "Queues of the NIC that harpd may lease, by state.",
        ("device", "state"),
        _per_nic((nic.name, nic.queues) for nic in nics),
    )
    yield family(
        GaugeMetricFamily,
        "harpd_queues_unreachable",
        "Queues of the NIC that are not leased because it puts all of HARP's packets on one.",
        ("device",),
        (((nic.name,), nic.unreachable) for nic in nics),
    )
    yield family(
        CounterMetricFamily,
        "harp_steering_packets",
        "What the XDP program did with the NIC's packets, by verdict.",
        ("device", "verdict"),
        _per_nic((nic.name, nic.verdicts) for nic in nics),
    )
    leases = Counter(nic for nic, _queue in view.leased)
    yield family(
        GaugeMetricFamily,
        "harpd_leases",
        "Leases in force.",
        ("device",),
        (((nic.name,), leases[nic.name]) for nic in nics),
    )
    yield single(
        CounterMetricFamily,
        "harpd_leases_granted",
        "Leases granted since harpd's start.",
        view.granted,
    )
    # A series must exist before it changes, or its first increase is not seen.
    refused = dict.fromkeys(REFUSALS, 0) | dict(view.refused)
    yield family(
        CounterMetricFamily,
        "harpd_leases_refused",
        "Leases refused since harpd's start, by errno.",
        ("error",),
        (((error,), count) for error, count in sorted(refused.items())),
    )
    yield single(
        CounterMetricFamily,
        "harpd_reloads",
        "Reloads of the configuration.",
        view.reloads,
    )


def collect(view: DaemonView | None, pages_read: bool) -> Iterator[Metric]:
    """Return all of harpd's families. None: harpd's loop did not answer. pages_read: families of
    instances and jobs follow.
    """
    info = InfoMetricFamily("harp_build", "The version of HARP that exports.")
    info.add_metric((), {"version": __version__})
    yield info
    yield single(
        GaugeMetricFamily,
        "harpd_pages_read",
        "1 when jobs' statistics were read for this answer; 0 when the process that reads them "
        "failed: families of instances and jobs are missing.",
        1 if pages_read else 0,
    )
    if view is not None:
        yield from _daemon(view)
