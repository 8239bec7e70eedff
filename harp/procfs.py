# SPDX-License-Identifier: Apache-2.0
"""Reads /proc files of processes whose names may contain any bytes."""

import contextlib
from pathlib import Path

PROC = Path("/proc")


def status_field(pid: int, name: str, proc: Path = PROC) -> str:
    """Return a field of /proc/PID/status; "" if the process has ended.

    The process chooses the field Name, which may contain invalid UTF-8 and bytes that end a line
    for str.splitlines() and not for the kernel.
    """
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "status").read_bytes().split(b"\n"):
            key, _, value = line.partition(b":")
            if key == name.encode():
                return value.decode(errors="replace").strip()
    return ""
