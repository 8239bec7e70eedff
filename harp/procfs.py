# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a process, whatever the process is called."""

import contextlib
from pathlib import Path

PROC = Path("/proc")


def status_field(pid: int, name: str, proc: Path = PROC) -> str:
    """A line of its status; empty when it is gone.

    Its name, which it chose, comes first: bytes that are no text, and some that end a line for
    str.splitlines() and not for the kernel.
    """
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "status").read_bytes().split(b"\n"):
            key, _, value = line.partition(b":")
            if key == name.encode():
                return value.decode(errors="replace").strip()
    return ""
