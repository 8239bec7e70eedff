# SPDX-License-Identifier: Apache-2.0
"""A job's network events, from the files that libnccl-profiler-harp.so writes, as a Chrome trace.

Each process has one file, HOST-PID.jsonl, in the directory that HARP_TRACE named
(plugin/profiler/trace.c). The trace is one JSON document in Chrome's trace event format, which
Perfetto reads. It has a process for each process of the job and an asynchronous slice for each
message, which contains one for the time before its first byte moved. The times of several hosts are
aligned by their wall clocks.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp.errors import Exit, HarpError

SUFFIX = ".jsonl"
_LANES = {0: "none", 1: "HARP", 2: "kernel", 3: "HARP and kernel"}
Line = dict[str, Any]
# The fields of the three kinds of lines (plugin/profiler/trace.c).
_HEAD = {"host": str, "program": str, "pid": int, "wall_ns": int, "monotonic_ns": int}
_START = {
    **dict.fromkeys(("start", "rank", "message", "bytes", "ns"), int),
    **dict.fromkeys(("direction", "comm", "peer"), str),
}
_END = dict.fromkeys(
    ("end", "bytes", "ns", "wait_ns", "rtt_ns", "retransmits", "lane_kinds", "error"), int
)


@dataclass
class Process:
    """One file: a process and its messages."""

    head: Line
    events: dict[int, Line] = field(default_factory=dict)  # start and end of a message merged
    last_ns: int = 0

    @property
    def offset_ns(self) -> int:
        """The difference from the process's monotonic clock to its wall clock."""
        return int(self.head["wall_ns"]) - int(self.head["monotonic_ns"])


def _lines(file: Path) -> Iterator[Line]:
    try:
        with file.open(encoding="ascii") as lines:
            for number, text in enumerate(lines, 1):
                if not text.endswith("\n"):
                    return  # the process was killed while it wrote
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise HarpError(f"{file}: line {number} is not a HARP event")
                yield line
    except (OSError, ValueError) as error:
        raise HarpError(f"{file}: not a HARP trace: {error}") from error


def _check(file: Path, line: Line, fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        if not isinstance(line.get(name), kind):
            raise HarpError(f"{file}: not a HARP trace: a line without a valid {name!r}")


def read(file: Path) -> Process | None:
    lines = _lines(file)
    head = next(lines, None)
    if head is None:
        return None
    if head.get("harp_trace") != 1:
        raise HarpError(f"{file}: not a trace that this version of HARP reads")
    _check(file, head, _HEAD)
    process = Process(head)
    for line in lines:
        _check(file, line, _START if "start" in line else _END)
        process.last_ns = max(process.last_ns, line["ns"])
        if "start" in line:
            process.events[line["start"]] = {**line, "start_ns": line["ns"]}
        elif line["end"] in process.events:
            process.events[line["end"]] |= {**line, "end_ns": line["ns"]}
        else:
            raise HarpError(
                f"{file}: not a HARP trace: message {line['end']} ends before it starts"
            )
    return process


def read_directory(directory: Path) -> list[Process]:
    if not directory.is_dir():
        raise HarpError(f"{directory}: no such directory", Exit.MISSING)
    files = sorted(directory.glob(f"*{SUFFIX}"))
    processes = [process for process in map(read, files) if process is not None]
    if not processes:
        raise HarpError(
            f"{directory}: no trace in it; run the job with "
            f"`harpctl run --trace {directory} -- CMD`, with NCCL 2.26 or later",
            Exit.MISSING,
        )
    return processes


def _slice(event: Line, pid: int, number: int, zero_ns: int, until_ns: int) -> Iterator[Line]:
    end_ns = event.get("end_ns", until_ns)
    common = {"cat": event["direction"], "id": f"{pid}.{number}", "pid": pid, "tid": pid}

    def at(phase: str, name: str, ns: int, **more: Any) -> Line:
        return {**common, "ph": phase, "name": name, "ts": (ns - zero_ns) / 1e3, **more}

    sign = "to" if event["direction"] == "send" else "from"
    name = f"{event['direction']} {sign} {event['peer']}"
    details = {key: event[key] for key in ("rank", "comm", "message", "peer", "bytes")}
    if "end_ns" in event:
        details |= {
            "lanes": _LANES.get(event["lane_kinds"], "unknown"),
            "wait_us": event["wait_ns"] / 1e3,
            "round_trip_us": event["rtt_ns"] / 1e3,
            "retransmits": event["retransmits"],
            "error": event["error"],
        }
    else:
        details["unfinished"] = True
    yield at("b", name, event["start_ns"], args=details)
    if event.get("wait_ns"):
        yield at("b", "wait", event["start_ns"])
        yield at("e", "wait", min(event["start_ns"] + event["wait_ns"], end_ns))
    yield at("e", name, end_ns)


def chrome(processes: list[Process]) -> Line:
    """Return the trace. An unfinished message lasts until the process's last event."""
    starts = [
        event["start_ns"] + process.offset_ns
        for process in processes
        for event in process.events.values()
    ]
    first_ns = min(starts, default=0)
    events: list[Line] = []
    for pid, process in enumerate(processes, 1):
        ranks = ", ".join(map(str, sorted({event["rank"] for event in process.events.values()})))
        head = process.head
        name = f"rank {ranks or '?'}: {head['program']} {head['pid']} on {head['host']}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        zero_ns = first_ns - process.offset_ns
        for number, event in process.events.items():
            events += _slice(event, pid, number, zero_ns, process.last_ns)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def summary(processes: list[Process]) -> Line:
    events = [event for process in processes for event in process.events.values()]
    done = [event for event in events if "end_ns" in event]
    return {
        "processes": len(processes),
        "messages": len(events),
        "bytes": sum(event["bytes"] for event in done),
        "unfinished": len(events) - len(done),
        "failed": sum(event["error"] != 0 for event in done),
    }
