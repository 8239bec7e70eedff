# SPDX-License-Identifier: Apache-2.0
"""Tables for people: instances, drops, flows; totals at the first reading, rates afterwards."""

from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harp import _page
from harp.output import fold, table
from harp.stats import schema
from harp.stats.instance import Instance, Sight
from harp.stats.page import endpoint, text
from harp.stats.rates import Rates

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def amount(value: float, unit: str = "") -> str:
    """Format 1234567 as "1.23M"."""
    step = 0
    while value >= 1000 and step + 1 < len(_UNITS):
        value /= 1000
        step += 1
    shown = f"{value:.0f}" if step == 0 and value == int(value) else f"{value:.3g}"
    return f"{shown}{_UNITS[step]}{unit}" if step or unit == "" else f"{shown}{unit}"


def span(ns: float | None) -> str:
    """Format a duration in ns, us, ms or s; "-" without one."""
    if not ns:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g}{unit}"
    return f"{ns:.0f}ns"


def _instance_row(rates: Rates, each: Instance) -> tuple[object, ...]:
    counters, identity = each.snapshot.counters, each.snapshot.identity

    def moved(name: str, factor: int = 1) -> str:
        per_s = rates.per_s(name)
        return amount(float(counters[name]) * factor if per_s is None else per_s * factor)

    drops = rates.drops_per_s() if rates.before is not None else each.snapshot.drops()
    return (
        each.name,
        identity.label or each.comm,
        each.pid,
        int(counters["tcp_conns"]),
        moved("rx_packets"),
        moved("tx_packets"),
        moved("rx_bytes", 8),
        moved("tx_bytes", 8),
        moved("tcp_retransmits"),
        amount(sum(drops.values())),
        span(rates.quantile_ns("tcp_rtt", 0.5)),
        span(rates.quantile_ns("tcp_rtt", 0.99)),
        span(rates.quantile_ns("message_latency", 0.5)),
        span(rates.quantile_ns("message_latency", 0.99)),
    )


def instances(seen: Sequence[tuple[Rates, Instance]], *, live: bool) -> Table:
    """Return a line per instance."""
    per = "/s" if live else ""
    title = "HARP instances" + ("" if live else ", since their start")
    bits = "bit/s" if live else "bits"
    columns = (
        "nic/queue", "label", "pid", "conns", f"rx pkts{per}", f"tx pkts{per}",
        f"rx {bits}", f"tx {bits}", f"retrans{per}", f"drops{per}",
        "rtt p50", "p99", "msg p50", "p99",
    )  # fmt: skip
    return table(title, columns, (_instance_row(rates, each) for rates, each in seen))


def drops(seen: Iterable[tuple[Rates, Instance]], *, live: bool) -> Table | None:
    """Return a table of drops by reason; None without drops."""
    helps = {each.drop_reason: each.help for each in schema.drops()}
    rows = []
    for rates, each in seen:
        found = rates.drops_per_s() if live else each.snapshot.drops()
        for reason, count in sorted(found.items(), key=lambda pair: -pair[1]):
            rows.append((each.name, each.pid, reason, amount(count), helps.get(reason, "")))
    if not rows:
        return None
    result = table(
        "Drops", ("nic/queue", "pid", "reason", "per s" if live else "count", "what"), rows
    )
    result.columns[2].justify = "left"
    fold(result, 4)
    return result


def notes(sight: Sight) -> list[Text]:
    """Return notes: instances that ended, and problems of pages."""
    lines = []
    for each in sight.instances:
        status = each.snapshot.status
        if status.note:
            lines.append(Text(f"{each.name} (process {each.pid}): {status.note}", "yellow"))
        if status.ended:
            lines.append(Text(f"{each.name} (process {each.pid}) has ended", "yellow"))
        if status.flows_hidden:
            lines.append(
                Text(
                    f"{each.name}: {status.flows_hidden} of {status.flows_open} connections have "
                    "no record: the page is too small"
                )
            )
    return lines


def counters_table(
    title: str, what: str, values: np.void, known: Iterable[schema.Statistic]
) -> Table:
    """Return the known counters that are not 0, with their meaning."""
    rows = [(one.name, int(values[one.name]), one.help) for one in known if values[one.name]]
    result = table(title, (what, "value", "what"), rows)
    fold(result, 2)
    return result


def all_counters(each: Instance) -> Table:
    """Return every statistic that is not 0, with its meaning."""
    title = f"{each.name}, process {each.pid}"
    return counters_table(title, "statistic", each.snapshot.counters, schema.statistics())


def all_xstats(each: Instance) -> Table | None:
    """Return the driver's counters that are not 0; None without any."""
    rows = [(name, value) for name, value in each.snapshot.xstats.items() if value]
    if not rows:
        return None
    return table(f"{each.name}, process {each.pid}: its driver's", ("counter", "value"), rows)


def stats_view(
    sight: Sight, seen: Sequence[tuple[Rates, Instance]], *, live: bool
) -> RenderableType:
    """Return the instances' part of `harpctl stats`."""
    parts: list[RenderableType] = [instances(seen, live=live)] if seen else []
    lost = drops(seen, live=live)
    if lost is not None:
        parts += ["", lost]
    return Group(*parts, *notes(sight))


def _flow_cells(each: Instance, flow: np.void) -> dict[str, object]:
    threshold = int(flow["ssthresh_bytes"])
    return {
        "local": endpoint(flow["local_addr"].tobytes(), int(flow["local_port"])),
        "remote": endpoint(flow["remote_addr"].tobytes(), int(flow["remote_port"])),
        "state": _page.state_name(int(flow["state"])),
        "nic/queue": each.name,
        "lane": text(flow["label"]) or "-",
        "cc": _page.congestion_name(int(flow["congestion"])),
        "cwnd": amount(int(flow["cwnd_bytes"])),
        "ssthresh": "-" if threshold >= _page.SSTHRESH_NONE else amount(threshold),
        "in flight": amount(int(flow["in_flight_bytes"])),
        "srtt": span(int(flow["srtt_ns"])),
        "rttvar": span(int(flow["rttvar_ns"])),
        "retrans": int(flow["retransmits"]),
        "lost": int(flow["lost_segs"]),
        "timeouts": int(flow["rto_count"]),
        "unsent": amount(int(flow["unsent_bytes"])),
        "unread": amount(int(flow["unread_bytes"])),
        "acked": amount(int(flow["acked_bytes"])),
        "received": amount(int(flow["received_bytes"])),
        "pid": each.pid,
    }


_FLOW_COLUMNS = (
    "local", "remote", "state", "nic/queue", "lane", "cwnd", "in flight", "srtt", "retrans",
    "unsent", "pid",
)  # fmt: skip
_FLOW_COLUMNS_WIDE = (
    "local", "remote", "state", "nic/queue", "lane", "cc", "cwnd", "ssthresh", "in flight", "srtt",
    "rttvar", "retrans", "lost", "timeouts", "unsent", "unread", "acked", "received", "pid",
)  # fmt: skip
_LEFT = ("local", "remote", "state", "nic/queue", "lane", "cc")


def flows_view(sight: Sight, *, wide: bool = False) -> RenderableType:
    """Return the output of `harpctl flows --flat`."""
    columns = _FLOW_COLUMNS_WIDE if wide else _FLOW_COLUMNS
    cells = [_flow_cells(each, flow) for each in sight.instances for flow in each.snapshot.flows]
    result = table("HARP connections", columns, ([row[name] for name in columns] for row in cells))
    for name, column in zip(columns, result.columns, strict=True):
        column.justify = "left" if name in _LEFT else "right"
    return Group(result, *notes(sight))
