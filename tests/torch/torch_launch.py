# SPDX-License-Identifier: Apache-2.0
"""Programs that use harp.torch, each in a network namespace of its own."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

TIMEOUT_S = 120
ENV = {
    "HARP_DAEMON": "off",
    "HARP_PATH": "kernel",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def output_of(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> tuple[int, str, str]:
    """Runs a program in a new network namespace: exit status and what it printed."""
    with subprocess.Popen(
        ["unshare", "-n", *words],
        env=os.environ | ENV | env,
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
