# SPDX-License-Identifier: Apache-2.0
"""Tables of instances, drops and connections: totals at the first reading, rates afterwards.

They show documents (harp.stats.instance) of this process or of harpd.
"""

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harp.output import table
from harp.stats import schema
from harp.words import endpoint


@dataclass(frozen=True)
class Rates:
    """Two documents of an instance and the seconds between them."""

    before: Mapping[str, Any] | None  # None at the first reading
    now: Mapping[str, Any]
    seconds: float

    def moved(self, name: str) -> float:
        """Return the counter's increase per second; at the first reading its value."""
        value = float(self.now["counters"].get(name, 0))
        if self.before is None or self.seconds <= 0:
            return value
        return max(0.0, value - float(self.before["counters"].get(name, 0))) / self.seconds

    def drops(self) -> dict[str, float]:
        """Return drops by reason that are not 0, as moved() does."""
        moved = {drop.drop_reason or "": self.moved(drop.name) for drop in schema.drops()}
        return {reason: count for reason, count in moved.items() if count}

    def quantile_ns(self, histogram: str, share: float) -> int | None:
        """Return an upper bound, within a quarter, of a quantile; None: no values."""
        buckets = list(self.now["histograms"][histogram]["buckets"])
        if self.before is not None:
            earlier = self.before["histograms"][histogram]["buckets"]
            buckets = [max(0, now - then) for now, then in zip(buckets, earlier, strict=True)]
        return quantile_ns(buckets, share)


def rates(host: Mapping[str, Any], seconds: float, before: Mapping[str, Any] | None) -> list[Rates]:
    """Return each instance's changes since the previous reading; before is None at the first."""

    def key(instance: Mapping[str, Any]) -> tuple[int, int, int]:
        identity = instance["identity"]
        return instance["pid"], identity["start_wall_ns"], identity["instance"]

    earlier = {key(item): item for item in before["instances"]} if before else {}
    return [Rates(earlier.get(key(item)), item, seconds) for item in host["instances"]]


def quantile_ns(buckets: Sequence[int], share: float) -> int | None:
    """Return the largest value of the bucket with the quantile; None if all are empty."""
    sums, upper = list(itertools.accumulate(buckets)), schema.upper_ns()
    if not sums or sums[-1] == 0:
        return None
    index = bisect.bisect_left(sums, max(1, math.ceil(share * sums[-1])))
    return upper[min(index, len(upper) - 1)]


_UNITS = ("", "k", "M", "G", "T", "P", "E")


def amount(value: float) -> str:
    """Format 1234567 as "1.23M"."""
    step = 0
    while value >= 1000 and step + 1 < len(_UNITS):
        value /= 1000
        step += 1
    number = f"{value:.0f}" if step == 0 and value == int(value) else f"{value:.3g}"
    return f"{number}{_UNITS[step]}"


def span(ns: float | None) -> str:
    """Format a duration in ns, us, ms or s; "-" without one."""
    if not ns:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g}{unit}"
    return f"{ns:.0f}ns"


def name_of(instance: Mapping[str, Any]) -> str:
    return f"{instance['identity']['ifname']}/{instance['identity']['queue']}"


def _instance_row(rates: Rates) -> tuple[object, ...]:
    instance, identity = rates.now, rates.now["identity"]
    return (
        name_of(instance),
        identity["label"] or instance["comm"],
        instance["pid"],
        instance["counters"]["tcp_conns"],
        amount(rates.moved("rx_packets")),
        amount(rates.moved("tx_packets")),
        amount(rates.moved("rx_bytes") * 8),
        amount(rates.moved("tx_bytes") * 8),
        amount(rates.moved("tcp_retransmits")),
        amount(sum(rates.drops().values())),
        span(rates.quantile_ns("tcp_rtt", 0.5)),
        span(rates.quantile_ns("tcp_rtt", 0.99)),
        span(rates.quantile_ns("message_latency", 0.5)),
        span(rates.quantile_ns("message_latency", 0.99)),
    )


def instances(readings: Sequence[Rates], *, live: bool) -> Table:
    per = "/s" if live else ""
    title = "HARP instances" + ("" if live else ", since their start")
    bits = "bit/s" if live else "bits"
    columns = (
        "nic/queue", "label", "pid", "conns", f"rx pkts{per}", f"tx pkts{per}",
        f"rx {bits}", f"tx {bits}", f"retrans{per}", f"drops{per}",
        "rtt p50", "p99", "msg p50", "p99",
    )  # fmt: skip
    return table(title, columns, map(_instance_row, readings))


def drops(readings: Iterable[Rates], *, live: bool) -> Table | None:
    helps = {drop.drop_reason: drop.help for drop in schema.drops()}
    rows = []
    for rates in readings:
        if live and rates.before is None:
            continue  # no rate at the first reading
        for reason, count in sorted(rates.drops().items(), key=lambda pair: -pair[1]):
            where = name_of(rates.now), rates.now["pid"]
            rows.append((*where, reason, amount(count), helps.get(reason, "")))
    if not rows:
        return None
    columns = ("nic/queue", "pid", "reason", "per s" if live else "count", "what")
    return table("Drops", columns, rows, left=("reason",), folded=(4,))


def notes(host: Mapping[str, Any]) -> list[Text]:
    """Return notes: instances that ended, and problems of pages."""
    lines = []
    for instance in host["instances"]:
        status, name = instance["status"], name_of(instance)
        if status["note"]:
            lines.append(Text(f"{name} (process {instance['pid']}): {status['note']}", "yellow"))
        if status["ended"]:
            lines.append(Text(f"{name} (process {instance['pid']}) has ended", "yellow"))
        if status["flows_hidden"]:
            lines.append(
                Text(
                    f"{name}: {status['flows_hidden']} of {status['flows_open']} connections have "
                    "no record: the page is too small"
                )
            )
    return lines


def counters_table(
    title: str, what: str, values: Mapping[str, int], known: Iterable[schema.Statistic]
) -> Table:
    rows = [(item.name, values[item.name], item.help) for item in known if values.get(item.name)]
    return table(title, (what, "value", "what"), rows, folded=(2,))


def all_counters(instance: Mapping[str, Any]) -> Table:
    """Return every statistic of an instance that is not 0, with its meaning."""
    title = f"{name_of(instance)}, process {instance['pid']}"
    return counters_table(title, "statistic", instance["counters"], schema.statistics())


def all_xstats(instance: Mapping[str, Any]) -> Table | None:
    """Return the driver's counters that are not 0; None without any."""
    rows = [(name, value) for name, value in instance.get("xstats", {}).items() if value]
    if not rows:
        return None
    return table(
        f"{name_of(instance)}, process {instance['pid']}: its driver's", ("counter", "value"), rows
    )


def stats_view(host: Mapping[str, Any], readings: Sequence[Rates], *, live: bool) -> RenderableType:
    """Return the instances' part of `harpctl stats`."""
    parts: list[RenderableType] = [instances(readings, live=live)] if readings else []
    drop_table = drops(readings, live=live)
    if drop_table is not None:
        parts += ["", drop_table]
    return Group(*parts, *notes(host))


def _flow_row(instance: Mapping[str, Any], flow: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        endpoint(flow["local"], flow["local_port"]),
        endpoint(flow["remote"], flow["remote_port"]),
        flow["state"],
        name_of(instance),
        flow["label"] or "-",
        amount(flow["cwnd_bytes"]),
        amount(flow["in_flight_bytes"]),
        span(flow["srtt_ns"]),
        flow["retransmits"],
        amount(flow["unsent_bytes"]),
        instance["pid"],
    )


_FLOW_COLUMNS = (
    "local", "remote", "state", "nic/queue", "lane", "cwnd", "in flight", "srtt", "retrans",
    "unsent", "pid",
)  # fmt: skip
_LEFT = ("local", "remote", "state", "nic/queue", "lane")


def flows_view(host: Mapping[str, Any]) -> RenderableType:
    """Return the output of `harpctl flows --flat`."""
    rows = [_flow_row(item, flow) for item in host["instances"] for flow in item["flows"]]
    return Group(table("HARP connections", _FLOW_COLUMNS, rows, left=_LEFT), *notes(host))
