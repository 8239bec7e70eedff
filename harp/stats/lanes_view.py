# SPDX-License-Identifier: Apache-2.0
"""Tables of lanes for people: by peer, comm and lane; and of their jobs."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harp.output import table
from harp.stats import schema
from harp.stats.view import amount, counters_table, flows_view, notes, span
from harp.words import endpoint

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Record: TypeAlias = Mapping[str, Any]  # a job, a comm or a lane of a document
LaneKey: TypeAlias = tuple[int, int, int]  # process, start time of the job, serial of the lane


def _lane_key(job: Record, lane: Record) -> LaneKey:
    """Return a key that identifies a lane over time."""
    return job["pid"], job["identity"]["start_wall_ns"], lane["serial"]


def _lanes(job: Record) -> Iterator[Record]:
    for comm in job["comms"]:
        yield from comm["lanes"]


@dataclass(frozen=True)
class LaneRates:
    """The bytes that lanes carried between two readings."""

    seconds: float = 0.0  # between the readings; 0: there was no previous one
    before: Mapping[LaneKey, int] = field(default_factory=dict)  # payload bytes

    def carried(self, job: Record, lane: Record) -> float:
        """Return bytes of messages: so far, or per second since the previous reading."""
        now = float(lane["payload_bytes"])
        if self.seconds <= 0:
            return now
        return max(0, now - self.before.get(_lane_key(job, lane), 0)) / self.seconds


def rates(before: Record | None, seconds: float) -> LaneRates:
    """Return the rates since the previous reading; before is None at the first."""
    lanes = [(job, lane) for job in before["jobs"] for lane in _lanes(job)] if before else []
    return LaneRates(seconds, {_lane_key(job, lane): lane["payload_bytes"] for job, lane in lanes})


def of_peers(host: Record, peers: Network) -> dict[str, Any]:
    """Keep only comms, lanes and connections with these peers. A comm keeps its lanes."""

    def is_peer(address: str) -> bool:
        return ipaddress.ip_address(address) in peers

    def with_peers(records: Iterable[Record]) -> list[Record]:
        return [record for record in records if is_peer(record["remote"])]

    def comms(job: Record) -> Iterator[Record]:
        for comm in job["comms"]:
            if "serial" not in comm:  # without a record
                if lanes := with_peers(comm["lanes"]):
                    yield {**comm, "lanes": lanes}
            elif is_peer(comm["peer"]):
                yield comm

    return {
        **host,
        "instances": [
            {**instance, "flows": with_peers(instance["flows"])} for instance in host["instances"]
        ],
        "jobs": [{**job, "comms": list(comms(job))} for job in host["jobs"]],
    }


def over_nic(job: Record, nic: str) -> dict[str, Any]:
    """Return the job with only the comms that have a lane over the NIC, with all their lanes."""
    comms = [comm for comm in job["comms"] if any(lane["ifname"] == nic for lane in comm["lanes"])]
    return {**job, "comms": comms}


@dataclass(frozen=True)
class _Line:
    """A line of the tree: a peer, a comm or a lane. Sums are over the lanes below it."""

    title: str
    carried: float
    lanes: tuple[Record, ...]
    cells: Mapping[str, object]


def _lane_state(lane: Record) -> str:
    if lane["state"] == "dead":
        return f"dead: {lane['end']}" if lane["end"] else "dead"
    return "backup" if lane["state"] == "open" and lane["backup"] else str(lane["state"])


def _lane_line(job: Record, lane: Record, rates: LaneRates) -> _Line:
    local = endpoint(lane["local"], lane["local_port"])
    remote = endpoint(lane["remote"], lane["remote_port"])
    return _Line(
        f"    lane {lane['index']}: {local} > {remote}",
        rates.carried(job, lane),
        (lane,),
        {
            "kind": f"{lane['kind']}, encrypted" if lane["encrypted"] else lane["kind"],
            "nic": lane["ifname"],
            "state": _lane_state(lane),
            "share": f"{100 * lane['share']:.1f} %",
            "srtt": span(lane["srtt_ns"]),
        },
    )


def _messages(comm: Record) -> str:
    """Format the number of a sender's messages by kind of lane: harp 10, kernel 2."""
    counts = {name: comm[f"messages_{name}"] for name in ("harp", "kernel", "mixed")}
    return ", ".join(f"{name} {amount(count)}" for name, count in counts.items() if count)


def job_name(job: Record) -> str:
    return str(job["identity"]["label"] or job["comm"])


def _comm_lines(job: Record, comm: Record, rates: LaneRates) -> list[_Line]:
    lanes = [_lane_line(job, lane, rates) for lane in comm["lanes"]]
    cells: dict[str, object] = {"pid": job["pid"]}
    title = "  a comm without a record"
    if "serial" in comm:
        title = f"  comm {comm['serial']} of {job_name(job)}: {comm['side']}"
        cells |= {
            "nic": comm["ifname"],
            "state": comm["state"],
            "messages": _messages(comm) or amount(comm["requests"]),
        }
    carried = sum(line.carried for line in lanes)
    return [_Line(title, carried, tuple(comm["lanes"]), cells), *lanes]


def tree(host: Record, rates: LaneRates) -> Iterator[_Line]:
    """Return a line for every peer, comm and lane, in this order."""
    by_peer: dict[str, list[tuple[Record, Record]]] = {}
    for job in host["jobs"]:
        for comm in job["comms"]:
            by_peer.setdefault(comm["peer"], []).append((job, comm))
    for peer, pairs in sorted(by_peer.items()):
        comms = [_comm_lines(job, comm, rates) for job, comm in pairs]
        lanes = tuple(lane for _, comm in pairs for lane in comm["lanes"])
        alive = sum(lane["state"] in ("open", "stalled") for lane in lanes)
        carried = sum(lines[0].carried for lines in comms)
        yield _Line(peer, carried, lanes, {"state": f"{alive} of {len(lanes)} lanes"})
        for lines in comms:
            yield from lines


_COLUMNS = (
    "peer, comm, lane", "kind", "nic", "state", "share", "carried", "srtt", "in flight", "retrans",
    "moved", "duplicate", "rehashes", "messages", "pid",
)  # fmt: skip
_LEFT = ("peer, comm, lane", "kind", "nic", "state", "messages")


def _row(line: _Line, live: bool) -> list[object]:
    def total(name: str) -> int:
        return sum(lane[name] for lane in line.lanes)

    moved_away, moved_here = total("chunks_moved_away"), total("chunks_moved_here")
    cells: dict[str, object] = {
        "peer, comm, lane": line.title,
        "carried": amount(line.carried * 8) + "bit/s" if live else amount(line.carried) + "B",
        "in flight": amount(total("in_flight_bytes")),
        "retrans": total("retransmits"),
        "moved": f"-{moved_away} +{moved_here}" if moved_away or moved_here else 0,
        "duplicate": total("chunks_duplicate"),
        "rehashes": total("rehashes"),
        **line.cells,
    }
    return [cells.get(name, "") for name in _COLUMNS]


def _endpoints(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("local", "local_port", "remote", "remote_port"))


def without_lanes(host: Record) -> dict[str, Any]:
    """Return the instances with only those connections that are not lanes of a job."""
    lanes = {_endpoints(lane) for job in host["jobs"] for lane in _lanes(job)}
    return {
        "instances": [
            {**item, "flows": [flow for flow in item["flows"] if _endpoints(flow) not in lanes]}
            for item in host["instances"]
        ]
    }


def job_notes(host: Record) -> list[Text]:
    """Return notes on missing records, and on NICs without a working lane."""
    lines = []
    for job in host["jobs"]:
        status, title = job["status"], f"{job_name(job)} (process {job['pid']})"
        if status["flows_hidden"] or status["comms_hidden"]:
            lines.append(
                Text(
                    f"{title}: {status['flows_hidden']} lanes and {status['comms_hidden']} comms "
                    "have no record: set page_flows higher"
                )
            )
        down = {rail["ifname"] for rail in job["rails"] if rail["down"]}
        lines += [Text(f"{title}: no lane over {nic} works", "red") for nic in sorted(down)]
    return lines


def lanes_view(host: Record, rates: LaneRates) -> RenderableType:
    """Return the output of `harpctl flows`: lanes by peer and comm, then other connections."""
    lines = list(tree(host, rates))
    parts: list[RenderableType] = []
    if lines:
        rows = (_row(line, rates.seconds > 0) for line in lines)
        parts += [table("Lanes", _COLUMNS, rows, left=_LEFT)]
    others = without_lanes(host)
    if any(instance["flows"] for instance in others["instances"]):
        parts += ["", flows_view(others)]
    if not parts:
        parts = [Text("no lane is open")]
    return Group(*parts, *job_notes(host), *notes(host))


def _by_kind(job: Record, name: str) -> dict[str, int]:
    """Return the sums over the job's HARP lanes and over its kernel lanes."""
    result = {"harp": 0, "kernel": 0}
    for rail in job["rails"]:
        result["kernel" if rail["kind"] == "kernel" else "harp"] += rail[name]
    return result


def _over_nics(job: Record, name: str) -> int:
    return sum(rail[name] for rail in job["rails"])


def _job_row(job: Record) -> tuple[object, ...]:
    counters = job["counters"]
    lanes, payload = _by_kind(job, "lanes_open"), _by_kind(job, "payload_bytes")
    died = sum(count for name, count in counters.items() if name.startswith("lanes_died_"))
    return (
        job_name(job), job["pid"], job["status"]["comms_open"], lanes["harp"], lanes["kernel"],
        amount(payload["harp"]) + "B", amount(payload["kernel"]) + "B", died,
        counters["lanes_replaced"], _over_nics(job, "lanes_rehashed"),
        _over_nics(job, "chunks_moved_here"), _over_nics(job, "chunks_duplicate"),
        counters["rails_down"], counters["unauthenticated_peers"],
    )  # fmt: skip


def jobs_table(host: Record) -> Table | None:
    if not host["jobs"]:
        return None
    columns = (
        "job", "pid", "comms", "HARP lanes", "kernel lanes", "by HARP", "by kernel", "died",
        "replaced", "rehashed", "moved", "duplicate", "NICs down", "refused peers",
    )  # fmt: skip
    return table("Jobs, since their start", columns, map(_job_row, host["jobs"]))


def all_job_counters(job: Record) -> Table:
    """Return every counter that is not 0, with its meaning."""
    title = f"{job_name(job)}, process {job['pid']}"
    return counters_table(title, "counter", job["counters"], schema.job_counters())
