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

BYTES = 100_000  # per rank


def convert_trace(folder: Path) -> dict[str, Any]:
    """Runs `harpctl trace` and returns its document."""
    file = folder / "trace.json"
    result = CliRunner().invoke(trace, [str(folder), str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(file.read_text())
    return document


# One version of NCCL per profiler ABI with events of net plugins: v3 to v7.
@pytest.mark.parametrize("version", ["2.26.5", "2.27.7", "2.28.9", "2.30.7", NEWEST])
@pytest.mark.parametrize("path", ["kernel", "xdp"])
def test_each_message_is_a_slice(lab: Lab, version: str, path: str, tmp_path: Path) -> None:
    extra = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path), "HARP_PATH": path}
    with ranks_of(lab, version, HARP, extra) as ranks:
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
    events = convert_trace(tmp_path)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert sorted(name[:6] for name in names) == ["rank 0", "rank 1"]
    messages = [event for event in events if event["ph"] == "b" and event["name"] != "wait"]
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    for pid in (1, 2):
        for direction in ("send", "receive"):
            arguments = [e["args"] for e in messages if (e["pid"], e["cat"]) == (pid, direction)]
            assert sum(argument["bytes"] for argument in arguments) >= BYTES // 2
            lanes = {argument["lanes"] for argument in arguments if argument["bytes"]}
            assert lanes == {"kernel" if path == "kernel" else "HARP"}
            assert all(argument["error"] == 0 for argument in arguments)
    assert all(ends[event["id"]] >= event["ts"] for event in messages)
    # Both ends of a message have the same comm and number.
    keys = {
        side: {(e["args"]["comm"], e["args"]["message"]) for e in messages if e["cat"] == side}
        for side in ("send", "receive")
    }
    assert keys["send"] == keys["receive"]


def test_a_killed_peer_leaves_unfinished_messages(lab: Lab, tmp_path: Path) -> None:
    extra = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path)}
    with ranks_of(lab, NEWEST, HARP, extra) as ranks:
        ranks.init()
        check_once(ranks)
        # Rank 0 waits for a message that is never sent.
        ranks[0].ask(f"start 0 alltoall {BYTES}")
        ranks[1].process.kill()
        ranks[1].process.wait()
        with pytest.raises(Exception, match="rank 0"):
            ranks[0].ask("finish 0")
        ranks[0].ask("abort 0")
    summary = traces.summary(traces.read_directory(tmp_path))
    assert summary["failed"] + summary["unfinished"] > 0


@pytest.mark.parametrize("directory", ["", "/nonexistent"])
def test_an_unusable_directory_causes_one_warning(lab: Lab, directory: str) -> None:
    extra = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": directory}
    with ranks_of(lab, NEWEST, HARP, extra) as ranks:
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
        warnings = [line for line in ranks[0].log if "WARN PROFILER/HARP" in line]
    assert len(warnings) == 1
    assert "are not traced" in warnings[0]
