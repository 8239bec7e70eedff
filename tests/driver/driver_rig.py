# SPDX-License-Identifier: Apache-2.0
"""Ranks of harp-bench as processes of a test."""

import contextlib
import json
import os
import signal
import subprocess
import time
from typing import Any

Running = subprocess.Popen[str]

REMOTE_ERROR = 6  # ncclRemoteError
PLUGIN_FAILED = 4  # harp-bench's exit code
HANGS_S = 60
# Of the survivor and of the rank that is killed. Two sinks: both only wait.
ROLES = [("source", "sink"), ("sink", "source"), ("sink", "sink")]


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


def outlives(survivor: Running, victim: Running, stack: contextlib.ExitStack) -> None:
    """The victim is killed in the middle of a stream: the survivor ends with ncclRemoteError. A
    child that the victim forked lives until the stack is unwound."""
    ready, dead = event(survivor), event(victim)
    assert ready["event"] == dead["event"] == "ready"
    if "child" in dead:
        stack.callback(os.kill, dead["child"], signal.SIGKILL)
    time.sleep(0.2)  # in the middle of the stream; there is no event for "in the middle"
    os.kill(dead["pid"], signal.SIGKILL)
    error = event(survivor)
    assert error["event"] == "error"
    assert error["nccl"] == REMOTE_ERROR
    survivor.communicate(timeout=HANGS_S)
    assert survivor.returncode == PLUGIN_FAILED
