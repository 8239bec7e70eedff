# SPDX-License-Identifier: Apache-2.0
"""Ranks of harp-bench as processes of a test."""

import json
import subprocess
from typing import Any

Running = subprocess.Popen[str]


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
