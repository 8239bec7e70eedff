# SPDX-License-Identifier: Apache-2.0
"""Tables of instances, drops and connections: totals at the first reading, rates afterwards.

Views show documents (harp.stats.instance), which this process or harpd made.
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
    """Two documents of one instance and the seconds between them."""

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
        """Return drops by reason that are not 0, likewise."""
        moved = {each.drop_reason or "": self.moved(each.name) for each in schema.drops()}
        return {reason: count for reason, count in moved.items() if count}

    def quantile_ns(self, histogram: str, share: float) -> int | None:
        """Return an upper bound, within a quarter, of a quantile; None: no values."""
        buckets = list(self.now["histograms"][histogram]["buckets"])
        if self.before is not None:
            earlier = self.before["histograms"][histogram]["buckets"]
            buckets = [max(0, now - then) for now, then in zip(buckets, earlier, strict=True)]
        return quantile_ns(buckets, share)


def rates(host: Mapping[str, Any], seconds: float, before: Mapping[str, Any] | None) -> list[Rates]:
    """Return each instance's changes since a reading; None: there was none."""

    def key(each: Mapping[str, Any]) -> tuple[int, int, int]:
        identity = each["identity"]
        return each["pid"], identity["start_wall_ns"], identity["instance"]

    earlier = {key(each): each for each in before["instances"]} if before else {}
    return [Rates(earlier.get(key(each)), each, seconds) for each in host["instances"]]


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
    shown = f"{value:.0f}" if step == 0 and value == int(value) else f"{value:.3g}"
    return f"{shown}{_UNITS[step]}"


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
    each, identity = rates.now, rates.now["identity"]
    return (
        name_of(each),
        identity["label"] or each["comm"],
        each["pid"],
        each["counters"]["tcp_conns"],
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


def instances(seen: Sequence[Rates], *, live: bool) -> Table:
    per = "/s" if live else ""
    title = "HARP instances" + ("" if live else ", since their start")
    bits = "bit/s" if live else "bits"
    columns = (
        "nic/queue", "label", "pid", "conns", f"rx pkts{per}", f"tx pkts{per}",
        f"rx {bits}", f"tx {bits}", f"retrans{per}", f"drops{per}",
        "rtt p50", "p99", "msg p50", "p99",
    )  # fmt: skip
    return table(title, columns, map(_instance_row, seen))


def drops(seen: Iterable[Rates], *, live: bool) -> Table | None:
    helps = {each.drop_reason: each.help for each in schema.drops()}
    rows = []
    for rates in seen:
        if live and rates.before is None:
            continue  # what it dropped before the first reading is no rate
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
    for each in host["instances"]:
        status, name = each["status"], name_of(each)
        if status["note"]:
            lines.append(Text(f"{name} (process {each['pid']}): {status['note']}", "yellow"))
        if status["ended"]:
            lines.append(Text(f"{name} (process {each['pid']}) has ended", "yellow"))
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
    rows = [(one.name, values[one.name], one.help) for one in known if values.get(one.name)]
    return table(title, (what, "value", "what"), rows, folded=(2,))


def all_counters(each: Mapping[str, Any]) -> Table:
    """Return every statistic of an instance that is not 0, with its meaning."""
    title = f"{name_of(each)}, process {each['pid']}"
    return counters_table(title, "statistic", each["counters"], schema.statistics())


def all_xstats(each: Mapping[str, Any]) -> Table | None:
    """Return the driver's counters that are not 0; None without any."""
    rows = [(name, value) for name, value in each.get("xstats", {}).items() if value]
    if not rows:
        return None
    return table(
        f"{name_of(each)}, process {each['pid']}: its driver's", ("counter", "value"), rows
    )


def stats_view(host: Mapping[str, Any], seen: Sequence[Rates], *, live: bool) -> RenderableType:
    """Return the instances' part of `harpctl stats`."""
    parts: list[RenderableType] = [instances(seen, live=live)] if seen else []
    lost = drops(seen, live=live)
    if lost is not None:
        parts += ["", lost]
    return Group(*parts, *notes(host))


def _flow_row(each: Mapping[str, Any], flow: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        endpoint(flow["local"], flow["local_port"]),
        endpoint(flow["remote"], flow["remote_port"]),
        flow["state"],
        name_of(each),
        flow["label"] or "-",
        amount(flow["cwnd_bytes"]),
        amount(flow["in_flight_bytes"]),
        span(flow["srtt_ns"]),
        flow["retransmits"],
        amount(flow["unsent_bytes"]),
        each["pid"],
    )


_FLOW_COLUMNS = (
    "local", "remote", "state", "nic/queue", "lane", "cwnd", "in flight", "srtt", "retrans",
    "unsent", "pid",
)  # fmt: skip
_LEFT = ("local", "remote", "state", "nic/queue", "lane")


def flows_view(host: Mapping[str, Any]) -> RenderableType:
    """Return the output of `harpctl flows --flat`."""
    rows = [_flow_row(each, flow) for each in host["instances"] for flow in each["flows"]]
    return Group(table("HARP connections", _FLOW_COLUMNS, rows, left=_LEFT), *notes(host))
