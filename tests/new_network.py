# SPDX-License-Identifier: Apache-2.0
"""Programs in a network namespace of their own."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def output_of(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """Runs a program in a new network namespace: exit status and what it printed."""
    with subprocess.Popen(
        ["unshare", "-n", *words],
        env=os.environ | env,
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
    return process.returncode, out, err
