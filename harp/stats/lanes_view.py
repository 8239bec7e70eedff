# SPDX-License-Identifier: Apache-2.0
"""Tables of lanes for people: by peer, comm and lane; and of their jobs."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harp import _page
from harp.output import table
from harp.stats import schema
from harp.stats.instance import Instance, Sight
from harp.stats.job import (
    COMM_STATES,
    KINDS,
    LANE_STATES,
    SIDES,
    UNKNOWN,
    CommLanes,
    Job,
    comms,
)
from harp.stats.page import Items, address, endpoint, text
from harp.stats.view import amount, counters_table, flows_view, notes, span

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
LaneKey: TypeAlias = tuple[int, int, int]  # of the job, and the lane's serial


def lane_key(job: Job, lane: np.void) -> LaneKey:
    """Identifies a lane over time."""
    return *job.key, int(lane["serial"])


@dataclass(frozen=True)
class LaneRates:
    """What lanes carried between two readings. seconds 0: there was no previous reading."""

    seconds: float = 0.0
    before: Mapping[LaneKey, int] = field(default_factory=dict)  # payload bytes

    def carried(self, job: Job, lane: np.void) -> float:
        """Return bytes of messages: so far, or per second since the previous reading; all of a new
        lane's.
        """
        now = int(lane["payload_bytes"])
        if self.seconds <= 0:
            return now
        return max(0, now - self.before.get(lane_key(job, lane), 0)) / self.seconds


def payloads(sight: Sight) -> dict[LaneKey, int]:
    """Return the state for a later comparison."""
    return {
        lane_key(job, lane): int(lane["payload_bytes"])
        for job in sight.jobs
        for lane in job.snapshot.lanes
    }


# --------------------------------------------------------------------------------------------------
# Filters.
#
def _is_peer(raw: bytes, peers: Network) -> bool:
    found = ipaddress.ip_address(address(raw))
    return found.version == peers.version and found in peers


def _of_peers(records: Items, peers: Network) -> Items:
    keep = [_is_peer(each["remote_addr"].tobytes(), peers) for each in records]
    result: Items = records[np.array(keep, dtype=bool)]
    return result


def of_peers(sight: Sight, peers: Network) -> Sight:
    """Keep only comms, lanes and connections with these peers. A comm keeps its lanes."""

    def lanes_of(job: Job) -> Job:
        kept = _of_peers(job.snapshot.comms, peers)
        shown = {int(each["serial"]) for each in job.snapshot.comms}
        chosen = {int(each["serial"]) for each in kept}
        lanes = job.snapshot.lanes
        keep = [
            int(lane["comm"]) in chosen
            or (int(lane["comm"]) not in shown and _is_peer(lane["remote_addr"].tobytes(), peers))
            for lane in lanes
        ]
        return replace(
            job,
            snapshot=replace(job.snapshot, comms=kept, lanes=lanes[np.array(keep, dtype=bool)]),
        )

    return replace(
        sight,
        instances=tuple(
            replace(
                each, snapshot=replace(each.snapshot, flows=_of_peers(each.snapshot.flows, peers))
            )
            for each in sight.instances
        ),
        jobs=tuple(lanes_of(job) for job in sight.jobs),
    )


def over_nic(job: Job, nic: str) -> Job:
    """Return the job's comms that have a lane over the NIC, with all their lanes."""
    lanes = job.snapshot.lanes
    serials = {int(lane["comm"]) for lane in lanes if text(lane["ifname"]) == nic}

    def chosen(records: Items, name: str) -> Items:
        result: Items = records[
            np.array([int(each[name]) in serials for each in records], dtype=bool)
        ]
        return result

    snapshot = job.snapshot
    return replace(
        job,
        snapshot=replace(
            snapshot, comms=chosen(snapshot.comms, "serial"), lanes=chosen(lanes, "comm")
        ),
    )


# --------------------------------------------------------------------------------------------------
# harpctl flows.
#
@dataclass(frozen=True)
class _Line:
    """A line of the tree: a peer, a comm or a lane. Sums are over the lanes below it."""

    what: str
    carried: float
    lanes: tuple[np.void, ...]
    cells: Mapping[str, object]


def _sums(lanes: Iterable[np.void]) -> dict[str, int]:
    names = ("in_flight_bytes", "retransmits", "chunks_moved_away", "chunks_moved_here",
             "chunks_duplicate", "rerolls")  # fmt: skip
    kept = list(lanes)
    return {name: sum(int(lane[name]) for lane in kept) for name in names}


def _lane_state(lane: np.void) -> str:
    state = LANE_STATES.get(int(lane["state"]), UNKNOWN)
    if state == "dead":
        end = _page.lane_end_name(min(int(lane["end"]), 255))
        return f"dead: {end}" if end else "dead"
    return "backup" if state == "open" and lane["backup"] else state


def _lane_line(job: Job, each: CommLanes, lane: np.void, rates: LaneRates) -> _Line:
    local = endpoint(lane["local_addr"].tobytes(), int(lane["local_port"]))
    remote = endpoint(lane["remote_addr"].tobytes(), int(lane["remote_port"]))
    kind = KINDS.get(int(lane["kind"]), UNKNOWN)
    return _Line(
        f"    lane {int(lane['index'])}: {local} > {remote}",
        rates.carried(job, lane),
        (lane,),
        {
            "kind": f"{kind}, encrypted" if lane["encrypted"] else kind,
            "nic": text(lane["ifname"]),
            "state": _lane_state(lane),
            "share": f"{100 * each.share(lane):.1f} %",
            "srtt": span(int(lane["srtt_ns"])),
        },
    )


def _messages(comm: np.void) -> str:
    """ "harp 10, kernel 2": how many of a sender's messages each kind carried."""
    counts = {name: int(comm[f"messages_{name}"]) for name in ("harp", "kernel", "mixed")}
    return ", ".join(f"{name} {amount(count)}" for name, count in counts.items() if count)


def _comm_lines(job: Job, each: CommLanes, rates: LaneRates) -> Iterator[_Line]:
    lanes = [_lane_line(job, each, lane, rates) for lane in each.lanes]
    carried = sum(line.carried for line in lanes)
    cells: dict[str, object] = {"pid": job.pid}
    what = "  a comm without a record"
    if each.comm is not None:
        side = SIDES.get(int(each.comm["side"]), UNKNOWN)
        what = f"  comm {int(each.comm['serial'])} of {job.name}: {side}"
        cells |= {
            "nic": text(each.comm["ifname"]),
            "state": COMM_STATES.get(int(each.comm["state"]), UNKNOWN),
            "messages": _messages(each.comm) or amount(int(each.comm["requests"])),
        }
    yield _Line(what, carried, each.lanes, cells)
    yield from lanes


def tree(sight: Sight, rates: LaneRates) -> Iterator[_Line]:
    """Return a line for every peer, comm and lane, in this order."""
    by_peer: dict[str, list[tuple[Job, CommLanes]]] = {}
    for job in sight.jobs:
        for each in comms(job.snapshot):
            by_peer.setdefault(each.peer, []).append((job, each))
    for peer in sorted(by_peer):
        lines = [list(_comm_lines(job, each, rates)) for job, each in by_peer[peer]]
        lanes = tuple(lane for _, each in by_peer[peer] for lane in each.lanes)
        alive = sum(LANE_STATES.get(int(lane["state"])) in ("open", "stalled") for lane in lanes)
        yield _Line(
            peer,
            sum(comm[0].carried for comm in lines),
            lanes,
            {"state": f"{alive} of {len(lanes)} lanes"},
        )
        for comm in lines:
            yield from comm


_COLUMNS = (
    "peer, comm, lane", "kind", "nic", "state", "share", "carried", "srtt", "in flight", "retrans",
    "moved", "twice", "re-rolls", "messages", "pid",
)  # fmt: skip
_LEFT = ("peer, comm, lane", "kind", "nic", "state", "messages")


def _row(line: _Line, live: bool) -> list[object]:
    sums = _sums(line.lanes)
    away, here = sums["chunks_moved_away"], sums["chunks_moved_here"]
    cells: dict[str, object] = {
        "peer, comm, lane": line.what,
        "carried": amount(line.carried * 8) + "bit/s" if live else amount(line.carried) + "B",
        "in flight": amount(sums["in_flight_bytes"]),
        "retrans": sums["retransmits"],
        "moved": f"-{away} +{here}" if away or here else 0,
        "twice": sums["chunks_duplicate"],
        "re-rolls": sums["rerolls"],
        **line.cells,
    }
    return [cells.get(name, "") for name in _COLUMNS]


def _lanes_table(lines: Iterable[_Line], live: bool) -> Table:
    result = table("Lanes", _COLUMNS, (_row(line, live) for line in lines))
    for name, column in zip(_COLUMNS, result.columns, strict=True):
        column.justify = "left" if name in _LEFT else "right"
    return result


def _endpoints(record: np.void) -> tuple[Any, ...]:
    return tuple(
        record[name].tobytes()
        for name in ("local_addr", "local_port", "remote_addr", "remote_port")
    )


def without_lanes(sight: Sight) -> Sight:
    """Return the connections of instances that are no lanes of a job."""
    known = {_endpoints(lane) for job in sight.jobs for lane in job.snapshot.lanes}

    def rest(each: Instance) -> Instance:
        flows = each.snapshot.flows
        kept = flows[[_endpoints(flow) not in known for flow in flows]] if len(flows) else flows
        return replace(each, snapshot=replace(each.snapshot, flows=kept))

    return Sight(tuple(rest(each) for each in sight.instances))


def job_notes(sight: Sight) -> list[Text]:
    """Return notes on missing records, and on NICs without a working lane."""
    lines = []
    for job in sight.jobs:
        status = job.snapshot.status
        if status.flows_hidden or status.comms_hidden:
            lines.append(
                Text(
                    f"{job.name} (process {job.pid}): {status.flows_hidden} lanes and "
                    f"{status.comms_hidden} comms have no record: set page_flows higher"
                )
            )
        down = {text(rail["ifname"]) for rail in job.snapshot.rails if rail["down"]}
        for nic in sorted(down):
            lines.append(Text(f"{job.name} (process {job.pid}): no lane over {nic} works", "red"))
    return lines


def lanes_view(sight: Sight, rates: LaneRates, *, wide: bool = False) -> RenderableType:
    """Return the output of `harpctl flows`: lanes by peer and comm, then other connections."""
    lines = list(tree(sight, rates))
    parts: list[RenderableType] = []
    if lines:
        parts += [_lanes_table(lines, rates.seconds > 0)]
    rest = without_lanes(sight)
    if any(len(each.snapshot.flows) for each in rest.instances):
        parts += ["", flows_view(rest, wide=wide)]
    if not parts:
        parts = [Text("no lane is open")]
    return Group(*parts, *job_notes(sight), *notes(sight))


# --------------------------------------------------------------------------------------------------
# harpctl stats.
#
def _by_kind(job: Job, name: str) -> dict[str, int]:
    result = {"harp": 0, "kernel": 0}
    for rail in job.snapshot.rails:
        kind = KINDS.get(int(rail["kind"]))
        if kind:
            result["harp" if kind == "dpdk" else kind] += int(rail[name])
    return result


def _over_nics(job: Job, name: str) -> int:
    return sum(int(rail[name]) for rail in job.snapshot.rails)


def _job_row(job: Job) -> tuple[object, ...]:
    counters, status = job.snapshot.counters, job.snapshot.status
    lanes, payload = _by_kind(job, "lanes_open"), _by_kind(job, "payload_bytes")
    died = sum(
        int(counters[each.name])
        for each in schema.job_counters()
        if each.name.startswith("lanes_died_")
    )
    return (
        job.name, job.pid, status.comms_open, lanes["harp"], lanes["kernel"],
        amount(payload["harp"]) + "B", amount(payload["kernel"]) + "B", died,
        int(counters["lanes_replaced"]), _over_nics(job, "lanes_rerolled"),
        _over_nics(job, "chunks_moved_here"), _over_nics(job, "chunks_duplicate"),
        int(counters["rails_down"]), int(counters["unauthenticated_peers"]),
    )  # fmt: skip


def jobs_table(sight: Sight) -> Table | None:
    """Return a line for every job; None without jobs."""
    if not sight.jobs:
        return None
    columns = (
        "job", "pid", "comms", "HARP lanes", "kernel lanes", "by HARP", "by kernel", "died",
        "replaced", "re-rolled", "moved", "duplicate", "NICs down", "refused peers",
    )  # fmt: skip
    return table("Jobs, since their start", columns, map(_job_row, sight.jobs))


def all_job_counters(job: Job) -> Table:
    """Return every counter that is not 0, with its meaning."""
    title = f"{job.name}, process {job.pid}"
    return counters_table(title, "counter", job.snapshot.counters, schema.job_counters())
