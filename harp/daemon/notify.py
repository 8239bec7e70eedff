# SPDX-License-Identifier: Apache-2.0
"""systemd's notification protocol (sd_notify(3))."""

import contextlib
import os
import socket
import time


def notify(*lines: str) -> None:
    """Send the lines to the service manager, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)


def ready(status: str) -> None:
    notify("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")


def reloading() -> None:
    """Report that a reload begins; ready() reports its end."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping() -> None:
    notify("STOPPING=1")


def watchdog_period_s() -> float | None:
    """Return half of systemd's watchdog interval; None without a watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid.isdecimal() and int(pid) != os.getpid()):
        return None
    return int(usec) / 2e6


def alive() -> None:
    notify("WATCHDOG=1")
