# SPDX-License-Identifier: Apache-2.0
"""Ranks of harp-bench as processes of a test."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harp import _paths

Running = subprocess.Popen[str]
Start = Callable[..., Running]  # rank, mode, options

REMOTE_ERROR = 6  # ncclRemoteError
PLUGIN_FAILED = 4  # harp-bench's exit code
HANGS_S = 60
# Of the survivor and of the rank that is killed. Two sinks: both only wait.
ROLES = [("source", "sink"), ("sink", "source"), ("sink", "sink")]


def bench(mode: str, rank: int, ranks: int, root: str, *args: str | Path) -> list[str]:
    """The command of one rank. The plugin is HARP's unless args name another one."""
    words = [_paths.find("harp-bench"), mode, "--rank", rank, "--ranks", ranks, "--root", root]
    plugin = () if "--plugin" in args else ("--plugin", _paths.plugin())
    return [str(word) for word in (*words, "--timeout", HANGS_S, *plugin, *args)]


def finish(process: Running) -> None:
    """No process outlives its test."""
    if process.poll() is None:
        process.kill()
    process.communicate()


def event(process: Running) -> dict[str, Any]:
    """The next JSON line that a role prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def outlives(start: Start, roles: tuple[str, str], *fork: str) -> None:
    """A rank whose peer is killed in the middle of a stream ends with ncclRemoteError, even if a
    child that the peer forked lives on."""
    with contextlib.ExitStack() as stack:
        survivor = start(0, roles[0], "--sizes", "64K")
        stack.callback(finish, survivor)
        victim = start(1, roles[1], "--sizes", "64K", *fork)
        stack.callback(finish, victim)
        ready, dead = event(survivor), event(victim)
        assert ready["event"] == dead["event"] == "ready"
        if "child" in dead:
            stack.callback(os.kill, dead["child"], signal.SIGKILL)
        time.sleep(0.2)  # in the middle of the stream; there is no event for "in the middle"
        os.kill(dead["pid"], signal.SIGKILL)
        error = event(survivor)
        assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
        survivor.communicate(timeout=HANGS_S)
        assert survivor.returncode == PLUGIN_FAILED


def delivers(start: Start, size: str) -> None:
    """A sender that exits without closing right after its last message is done loses nothing."""
    args = ("--sizes", f"{size}:100")
    with contextlib.ExitStack() as stack:
        sink, source = start(0, "sink", *args), start(1, "source", "--abrupt", *args)
        stack.callback(finish, sink)
        stack.callback(finish, source)
        assert event(sink)["event"] == "ready"
        done = event(sink)
        assert (done["event"], done["received_messages"], done["wrong"]) == ("done", 100, 0)
