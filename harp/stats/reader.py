# SPDX-License-Identifier: Apache-2.0
"""The process that reads users' statistics for harpd: `python -m harp.stats.reader`.

It parses files that any user may fill, so it has neither harpd's memory nor its capabilities. It
keeps two: CAP_SYS_PTRACE, to follow /proc/PID/fd of other users' processes, and
CAP_DAC_READ_SEARCH, to list that directory. It runs as user nobody, which owns nothing.

Its standard input is a socket (SOCK_SEQPACKET) to harpd. A request is a memfd with a JSON object;
the answer is "ok" with a memfd, or the reason of a failure. The process ends with the connection,
even during a reading.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from harp.daemon.documents import written
from harp.daemon.families import exposition
from harp.procfs import status_field
from harp.stats import discover, families, totals
from harp.stats.instance import host_text, look

REQUEST_BYTES_MAX = 4096
NOBODY = 65534
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_CAP_DAC_READ_SEARCH, _CAP_SYS_PTRACE = 2, 19
KEPT = 1 << _CAP_DAC_READ_SEARCH | 1 << _CAP_SYS_PTRACE
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


# --------------------------------------------------------------------------------------------------
# Privileges.
#
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
    """Drop the privileges that this process does not need. OSError: harpd may not change users."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's; harpd uses the socket
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the kernel kills it before harpd if memory is short
        Path("/proc/self/oom_score_adj").write_text("1000")
    kept = int(status_field(os.getpid(), "CapPrm") or "0", 16) & KEPT
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    if os.geteuid() == 0:
        _checked(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _keep_capabilities(kept)


# --------------------------------------------------------------------------------------------------
# Requests.
#
class Reader:
    """Answers requests, one at a time."""

    def __init__(self) -> None:
        self._totals, self._names = totals.Totals(), families.Names()
        self._devices = totals.DeviceTotals()

    def answer(self, request: dict[str, Any]) -> int:
        """Return a memfd with the answer."""
        if request["kind"] == "document":
            with discover.find() as found:
                return written(host_text(look(found, flows=request["flows"])))
        leased = {(ifname, queue): pid for ifname, queue, pid in request["leased"]}
        scrape = self.scrape(leased, frozenset(request["nics"]), request["per_queue"])
        return written([exposition(families.collect(scrape))])

    def scrape(
        self, leased: families.Leased, nics: frozenset[str], per_queue: bool = False
    ) -> families.ScrapeData:
        """Return the data of a scrape. nics: names of NICs that may become labels, besides this
        host's.
        """
        with discover.find() as found:
            host = look(found, flows=False, lanes=True)
        instances, ignored = families.believed(host.instances, leased)
        jobs, left_out = families.believed_jobs(host.jobs, leased)
        for reason, count in left_out.items():
            ignored[reason] = ignored.get(reason, 0) + count
        ignored["unreadable"] += len(host.bad)
        here = {name for _, name in socket.if_nameindex()}
        done = self._totals.of_jobs(jobs, nics.union(here))
        devices = self._devices.of_devices(instances)
        instances, xstats_ignored = self._names.sift(instances)
        shown = None if per_queue else devices
        return families.ScrapeData(instances, ignored, done, shown, xstats_ignored)


# --------------------------------------------------------------------------------------------------
# The conversation.
#
def _end_with(connection: socket.socket) -> None:
    """End this process with harpd, whose end of the connection is then closed."""
    ends = select.poll()
    ends.register(connection, 0)  # POLLHUP is always reported
    ends.poll()
    os._exit(0)


def serve(connection: socket.socket) -> None:
    """Answer until harpd closes the connection."""
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    reader = Reader()
    while True:
        raw, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 1)
        if not raw:
            return
        try:
            with os.fdopen(fds[0], "rb") as file:
                fd = reader.answer(json.load(file))
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}"[:1000].encode())
            continue
        try:
            socket.send_fds(connection, [b"ok"], [fd])
        finally:
            os.close(fd)


def main() -> None:
    """Entry point; an error is one line in harpd's log."""
    connection = socket.socket(fileno=os.dup(0))
    try:
        confine()
    except OSError as error:
        connection.send(
            f"can't give up its privileges: {error.strerror or error}; harpd needs CAP_SETUID "
            "and CAP_SETGID for that".encode()
        )
        sys.exit(1)
    connection.send(b"ready")
    serve(connection)


if __name__ == "__main__":
    main()
