# SPDX-License-Identifier: Apache-2.0
"""Reads a process's /proc files, whatever its name contains."""

import contextlib
from pathlib import Path

PROC = Path("/proc")


def status_field(pid: int, name: str, proc: Path = PROC) -> str:
    """Return a line of its status; empty after its end.

    Its name comes first and is its own choice: it may contain bytes that are no text, and some that
    end a line for str.splitlines() and not for the kernel.
    """
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "status").read_bytes().split(b"\n"):
            key, _, value = line.partition(b":")
            if key == name.encode():
                return value.decode(errors="replace").strip()
    return ""
