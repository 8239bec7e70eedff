# SPDX-License-Identifier: Apache-2.0
"""Run a program to its end."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = {"PYTHONPATH": str(Path(__file__).parent)}  # a program's, to find those of this folder

Done = subprocess.CompletedProcess[str]


def finished(command: Sequence[str | os.PathLike[str]], **options: Any) -> Done:
    """Return what it printed, as text, and its exit status; options: of subprocess.run()."""
    return subprocess.run(command, capture_output=True, text=True, **{"check": False} | options)


def finished_alone(words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Done:
    """The same, with MODULES, in a network namespace of its own."""
    with subprocess.Popen(
        ["unshare", "-n", *words],
        env=os.environ | MODULES | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ranks that hang
    return Done(process.args, process.returncode, out, err)
