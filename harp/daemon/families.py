# SPDX-License-Identifier: Apache-2.0
"""harpd's own metric families: its state, its NICs and its leases."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from harp import __version__

REFUSALS = ("EACCES", "EBUSY", "EDQUOT", "EINVAL", "ENODEV")
# harpd's status and instances (harp.daemon.queries).
Documents = tuple[Mapping[str, Any], Mapping[str, Any]]
Labels = tuple[str, ...]


def nics(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the NICs of harpd's status, and its DPDK ports in the same form."""
    ports = [
        {
            "ifname": port["name"],
            "up": True,
            "problem": port["problem"],
            "queues": dict.fromkeys(range(port["queues"]), "leased" if port["pid"] else "free"),
            "queues_unreachable": (),
            "verdicts": {},
        }
        for port in status["dpdk"]
    ]
    return [*status["nics"], *ports]


def leased(instances: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return each leased queue, as NIC and number, with its process."""
    pids: dict[tuple[str, int], int] = {}
    for instance in instances["instances"]:
        # A DPDK port has one owner, which has the queues from 0.
        queues = range(instance["queues"]) if instance["device"] else (instance["queue"],)
        pids |= {(instance["ifname"], queue): instance["pid"] for queue in queues}
    return pids


def family(
    make: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Labels,
    rows: Iterable[tuple[Labels, float]],
) -> Metric:
    """Return a metric family. rows: label values and number of each series."""
    result = make(name, text, labels=labels)
    for values, number in rows:
        result.add_metric(values, number)
    return result


gauge = functools.partial(family, GaugeMetricFamily)
counter = functools.partial(family, CounterMetricFamily)


def single(
    make: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, value: float
) -> Metric:
    """Return a family of one series without labels."""
    return family(make, name, text, (), [((), value)])


def _per_nic(counts: Iterable[tuple[str, Mapping[str, int]]]) -> Iterator[tuple[Any, float]]:
    """Yield rows with two labels: the device and a key of its numbers."""
    for nic, numbers in counts:
        for key, number in sorted(numbers.items()):
            yield (nic, key), number


def _daemon(status: Mapping[str, Any], instances: Mapping[str, Any]) -> Iterator[Metric]:
    devices = nics(status)
    yield single(
        GaugeMetricFamily,
        "harpd_start_time_seconds",
        "When harpd was started, seconds of the epoch.",
        status["since_s"],
    )
    yield gauge(
        "harpd_nic_usable",
        "1 when harpd can lease the NIC; 0 when jobs on it have kernel lanes only.",
        ("device",),
        (((nic["ifname"],), int(nic["up"] and not nic["problem"])) for nic in devices),
    )
    yield gauge(
        "harpd_queues",
        "Queues of the NIC that harpd may lease, by state.",
        ("device", "state"),
        _per_nic((nic["ifname"], Counter(nic["queues"].values())) for nic in devices),
    )
    yield gauge(
        "harpd_queues_unreachable",
        "Queues of the NIC that are not leased because it puts all of HARP's packets on one.",
        ("device",),
        (((nic["ifname"],), len(nic["queues_unreachable"])) for nic in devices),
    )
    yield counter(
        "harp_steering_packets",
        "What the XDP program did with the NIC's packets, by verdict.",
        ("device", "verdict"),
        _per_nic((nic["ifname"], nic["verdicts"]) for nic in devices),
    )
    leases = Counter(nic for nic, _queue in leased(instances))
    yield gauge(
        "harpd_leases",
        "Leases in force.",
        ("device",),
        (((nic["ifname"],), leases[nic["ifname"]]) for nic in devices),
    )
    yield single(
        CounterMetricFamily,
        "harpd_leases_granted",
        "Leases granted since harpd's start.",
        status["granted"],
    )
    # A series must exist before it changes, or its first increase is not seen.
    refused = dict.fromkeys(REFUSALS, 0) | status["refused"]
    yield counter(
        "harpd_leases_refused",
        "Leases refused since harpd's start, by errno.",
        ("error",),
        (((error,), count) for error, count in sorted(refused.items())),
    )


def collect(documents: Documents | None, pages_read: bool) -> Iterator[Metric]:
    """Yield all of harpd's families. documents None: harpd did not answer."""
    info = InfoMetricFamily("harp_build", "The version of HARP that exports.")
    info.add_metric((), {"version": __version__})
    yield info
    yield single(
        GaugeMetricFamily,
        "harpd_pages_read",
        "1 when jobs' statistics were read for this answer; 0 when reading them failed: families "
        "of instances and jobs are missing.",
        1 if pages_read else 0,
    )
    if documents is not None:
        yield from _daemon(*documents)
