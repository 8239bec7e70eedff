# SPDX-License-Identifier: Apache-2.0
"""The network events of NVIDIA's NCCL over HARP, as `harpctl trace` writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from nccl_tools import NEWEST, check_once, ranks_of

from harp import trace as traces
from harp.cli.trace import trace
from harp.lab import Lab
from harp.nccl.ranks import HARP

pytestmark = pytest.mark.nccl

BYTES = 100_000  # each rank sends so many to the other one


def written(folder: Path) -> dict[str, Any]:
    """What `harpctl trace` makes of it."""
    file = folder / "trace.json"
    result = CliRunner().invoke(trace, [str(folder), str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(file.read_text())
    return document


# One version of each table of profilers that knows events of net plugins: v3 to v7.
@pytest.mark.parametrize("version", ["2.26.5", "2.27.7", "2.28.9", "2.30.7", NEWEST])
@pytest.mark.parametrize("path", ["kernel", "xdp"])
def test_each_message_is_a_slice(lab: Lab, version: str, path: str, tmp_path: Path) -> None:
    more = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path), "HARP_PATH": path}
    with ranks_of(lab, version, HARP, more) as ranks:
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
    events = written(tmp_path)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert sorted(name[:6] for name in names) == ["rank 0", "rank 1"]
    messages = [event for event in events if event["ph"] == "b" and event["name"] != "wait"]
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    for pid in (1, 2):
        for direction in ("send", "receive"):
            mine = [e["args"] for e in messages if (e["pid"], e["cat"]) == (pid, direction)]
            assert sum(each["bytes"] for each in mine) >= BYTES // 2
            lanes = {each["lanes"] for each in mine if each["bytes"]}
            assert lanes == {"kernel" if path == "kernel" else "HARP"}
            assert all(each["error"] == 0 for each in mine)
    assert all(ends[event["id"]] >= event["ts"] for event in messages)
    # Both ends of a message have the same comm and number.
    keys = {
        side: {(e["args"]["comm"], e["args"]["message"]) for e in messages if e["cat"] == side}
        for side in ("send", "receive")
    }
    assert keys["send"] == keys["receive"]


def test_a_killed_peer_leaves_unfinished_messages(lab: Lab, tmp_path: Path) -> None:
    more = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path)}
    with ranks_of(lab, NEWEST, HARP, more) as ranks:
        ranks.init()
        check_once(ranks)
        # The receiver of a message that is never sent.
        ranks[0].ask(f"start 0 alltoall {BYTES}")
        ranks[1].process.kill()
        ranks[1].process.wait()
        with pytest.raises(Exception, match="rank 0"):
            ranks[0].ask("finish 0")
        ranks[0].ask("abort 0")
    found = traces.summary(traces.read_directory(tmp_path))
    assert found["failed"] + found["unfinished"] > 0


@pytest.mark.parametrize("directory", ["", "/nonexistent"])
def test_a_directory_that_is_no_good_is_one_warning(lab: Lab, directory: str) -> None:
    more = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": directory}
    with ranks_of(lab, NEWEST, HARP, more) as ranks:
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
        warnings = [line for line in ranks[0].log if "WARN PROFILER/HARP" in line]
    assert len(warnings) == 1
    assert "are not traced" in warnings[0]
