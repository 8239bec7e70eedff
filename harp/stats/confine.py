# SPDX-License-Identifier: Apache-2.0
"""Confines the process that reads users' statistics for harpd (harp.stats.exporter).

It parses files that any user may fill, so it has neither harpd's memory nor its capabilities,
except two: CAP_SYS_PTRACE, to follow /proc/PID/fd of other users' processes, and
CAP_DAC_READ_SEARCH, to list that directory. It runs as user nobody, which owns no files.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from harp.procfs import status_field

NOBODY = 65534
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_CAP_DAC_READ_SEARCH, _CAP_SYS_PTRACE = 2, 19
KEPT = 1 << _CAP_DAC_READ_SEARCH | 1 << _CAP_SYS_PTRACE
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _keep_capabilities(kept: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # struct __user_cap_data_struct, twice: effective, permitted, inheritable of 32 bits each
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _checked(_libc.capset(header, data), "capset")


def confine() -> None:
    """Drop the privileges that this process does not need. OSError with one line."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGHUP):  # from a terminal; harpd uses the socket
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the kernel kills it before harpd if memory is short
        Path("/proc/self/oom_score_adj").write_text("1000")
    kept = int(status_field(os.getpid(), "CapPrm") or "0", 16) & KEPT
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if os.geteuid() == 0:
        _checked(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError as error:
            why = f"can't become user nobody ({error.strerror}): "
            raise OSError(error.errno, why + "harpd needs CAP_SETUID and CAP_SETGID") from error
    _keep_capabilities(kept)


def begin() -> socket.socket:
    """Confine this process, and end it when the peer closes its standard input, a socket."""
    connection = socket.socket(fileno=os.dup(0))
    try:
        confine()
    except OSError as error:
        sys.exit(str(error.strerror))
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    return connection


def _end_with(connection: socket.socket) -> None:
    ends = select.poll()
    ends.register(connection, 0)  # POLLHUP is always reported
    ends.poll()
    os._exit(1)
