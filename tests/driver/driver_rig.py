# SPDX-License-Identifier: Apache-2.0
"""Runs ranks of harp-bench as processes of a test."""

import json
import subprocess
from pathlib import Path
from typing import Any

from harp import _paths

Running = subprocess.Popen[str]

REMOTE_ERROR = 6  # ncclRemoteError
PLUGIN_FAILED = 4  # harp-bench's exit code
TIMEOUT_S = 60


def bench(mode: str, rank: int, ranks: int, root: str, *args: str | Path) -> list[str]:
    """The command of one rank. The plugin is HARP's unless args name another one."""
    command = [_paths.find("harp-bench"), mode, "--rank", rank, "--ranks", ranks, "--root", root]
    plugin = () if "--plugin" in args else ("--plugin", _paths.plugin())
    return [str(word) for word in (*command, "--timeout", TIMEOUT_S, *plugin, *args)]


def finish(process: Running) -> None:
    """Kill the process if it runs, and read its output."""
    if process.poll() is None:
        process.kill()
    process.communicate()


def event(process: Running) -> dict[str, Any]:
    """The next JSON line that the process prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    parsed: dict[str, Any] = json.loads(line)
    return parsed
