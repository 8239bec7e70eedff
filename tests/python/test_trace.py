# SPDX-License-Identifier: Apache-2.0
"""harpctl trace converts files of events to a Chrome trace, and refuses all other files."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harp import trace as traces
from harp.cli.trace import trace
from harp.errors import Exit, HarpError

HEAD = {
    "harp_trace": 1,
    "host": "a",
    "pid": 7,
    "program": "train",
    "wall_ns": 5_000_000_000,
    "monotonic_ns": 1_000,
}
START = {
    "start": 0,
    "rank": 3,
    "direction": "send",
    "comm": "00000000000000ff",
    "message": 9,
    "peer": "10.0.0.2:61000",
    "bytes": 4096,
    "ns": 11_000,
}
END = {
    "end": 0,
    "bytes": 4000,
    "ns": 19_000,
    "wait_ns": 2_000,
    "rtt_ns": 30_000,
    "retransmits": 1,
    "lane_kinds": 3,
    "error": 0,
}


def write(file: Path, *lines: dict[str, Any]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_message_becomes_a_slice(tmp_path: Path) -> None:
    write(tmp_path / "a-7.jsonl", HEAD, START, END)
    document = traces.chrome(traces.read_directory(tmp_path))
    begin, wait, waited, end = (e for e in document["traceEvents"] if e["ph"] != "M")
    assert (begin["name"], begin["ts"]) == ("send to 10.0.0.2:61000", 0)
    assert begin["args"] == {
        "rank": 3,
        "comm": "00000000000000ff",
        "message": 9,
        "peer": "10.0.0.2:61000",
        "bytes": 4000,
        "lanes": "HARP and kernel",
        "wait_us": 2,
        "round_trip_us": 30,
        "retransmits": 1,
        "error": 0,
    }
    assert (wait["ts"], waited["ts"], end["ts"]) == (0, 2, 8)
    assert len({begin["id"], wait["id"], waited["id"], end["id"]}) == 1


def test_hosts_are_aligned_by_their_wall_clocks(tmp_path: Path) -> None:
    write(tmp_path / "a-7.jsonl", HEAD, START, END)
    # The other host's monotonic clock is 1 s ahead, and the message starts 4 us later.
    other = {**HEAD, "host": "b", "monotonic_ns": 1_000_001_000}
    later = [{**line, "ns": line["ns"] + 1_000_004_000} for line in (START, END)]
    write(tmp_path / "b-7.jsonl", other, *later)
    events = traces.chrome(traces.read_directory(tmp_path))["traceEvents"]
    starts = [e["ts"] for e in events if e["ph"] == "b" and e["name"] != "wait"]
    assert starts == [0, 4]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["rank 3: train 7 on a", "rank 3: train 7 on b"]


def test_an_unfinished_message_lasts_until_the_last_event(tmp_path: Path) -> None:
    write(tmp_path / "a-7.jsonl", HEAD, START, {**START, "start": 1, "ns": 15_000})
    processes = traces.read_directory(tmp_path)
    begin, end = (
        e for e in traces.chrome(processes)["traceEvents"] if e.get("id", "").endswith(".0")
    )
    assert begin["args"]["unfinished"] is True
    assert end["ts"] - begin["ts"] == 4
    assert traces.summary(processes)["unfinished"] == 2


def test_a_line_that_was_cut_short_ends_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a-7.jsonl"
    write(file, HEAD, START)
    file.write_text(file.read_text() + '{"end": 0, "by')
    assert traces.summary(traces.read_directory(tmp_path))["unfinished"] == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello\n", "not a HARP trace"),
        ('{"harp_trace": 2}\n', "not a trace that this version"),
        (json.dumps(HEAD) + '\n{"end": 5, "ns": 1}\n', "without a valid 'bytes'"),
        (f"{json.dumps(HEAD)}\n{json.dumps(END)}\n", "message 0 ends before it starts"),
        (f"{json.dumps(HEAD)}\n{json.dumps(START | {'ns': 'soon'})}\n", "without a valid 'ns'"),
        (json.dumps(HEAD | {"host": None}) + "\n", "without a valid 'host'"),
        (json.dumps(HEAD) + "\n[]\n", "line 2 is not a HARP event"),
        ("\xff\n", "not a HARP trace"),
    ],
)
def test_a_file_that_is_not_a_trace_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(HarpError, match=reason):
        traces.read_directory(tmp_path)


def test_a_missing_or_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HarpError, match="no such directory"):
        traces.read_directory(tmp_path / "a")
    with pytest.raises(HarpError, match="harpctl run --trace") as caught:
        traces.read_directory(tmp_path)
    assert caught.value.code == Exit.MISSING


def test_the_command_prints_a_summary(tmp_path: Path) -> None:
    write(tmp_path / "a-7.jsonl", HEAD, START, END)
    file = tmp_path / "out.json"
    result = CliRunner().invoke(trace, [str(tmp_path), str(file)])
    assert "1 message of 1 process, 0 unfinished, 0 failed" in result.output
    assert len(json.loads(file.read_text())["traceEvents"]) == 5
