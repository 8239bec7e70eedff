# SPDX-License-Identifier: Apache-2.0
"""Run a program to its end."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = {"PYTHONPATH": str(Path(__file__).parent)}  # lets programs import modules of tests/

Done = subprocess.CompletedProcess[str]


def finished(command: Sequence[str | os.PathLike[str]], **options: Any) -> Done:
    """Run a program to its end with options of subprocess.run(). Return output and exit status."""
    return subprocess.run(command, capture_output=True, text=True, **{"check": False} | options)


def finished_alone(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Done:
    """As finished(), with MODULES, in a new network namespace."""
    with subprocess.Popen(
        ["unshare", "-n", *command],
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
