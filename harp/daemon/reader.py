# SPDX-License-Identifier: Apache-2.0
"""harpd's side of the process that reads users' statistics (harp.stats.reader).

The first request starts the process, and a later one starts it again if it died. It ends with
harpd. Requests come from workers or other threads, never from the loop: they wait for the answer.
"""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from harp.errors import HarpError

log = logging.getLogger("harpd")
COMMAND = (sys.executable, "-P", "-m", "harp.stats.reader")
START_S = 20.0  # it imports numpy, and the host may be loaded
END_S = 5.0
ANSWER_S = 60.0  # a document of 128 MiB
RESTART_S = 1.0  # shortest time between two starts
_ANSWER_BYTES_MAX = 4096


class ReaderError(HarpError):
    """The process did not answer; one line with the reason."""


class Reader:
    """A reader process. Any thread may use it; one request at a time."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = list(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._started_s = -RESTART_S
        self._closed = False

    @property
    def pid(self) -> int:
        """Return the process's number; 0: there is none."""
        process = self._process
        return process.pid if process is not None else 0

    def ask(self, request: dict[str, Any], limit_s: float = ANSWER_S) -> int:
        """Return the answer: a memfd that the caller owns. ReaderError."""
        with self._lock:
            connection = self._connected()
            try:
                connection.settimeout(limit_s)
                return self._exchange(connection, request)
            except OSError as error:
                self._end()
                raise ReaderError(f"the reader of statistics has failed: {error}") from error

    @staticmethod
    def _exchange(connection: socket.socket, request: dict[str, Any]) -> int:
        # In a memfd: the leases of a host need not fit into a message.
        with os.fdopen(os.memfd_create("harp-request", os.MFD_CLOEXEC), "wb") as file:
            file.write(json.dumps(request).encode())
            file.flush()
            file.seek(0)
            socket.send_fds(connection, [b"request"], [file.fileno()])
        answer, fds, _, _ = socket.recv_fds(connection, _ANSWER_BYTES_MAX, 1)
        if answer == b"ok" and fds:
            return fds[0]
        for each in fds:
            os.close(each)
        if not answer:
            raise ConnectionResetError("it has ended")
        raise ReaderError(f"the reader of statistics: {answer.decode(errors='replace')}")

    def _connected(self) -> socket.socket:
        """Return the connection to a living process, starting one if needed."""
        if self._connection is not None:
            return self._connection
        if self._closed:
            raise ReaderError("harpd ends")
        now_s = time.monotonic()
        if now_s - self._started_s < RESTART_S:
            raise ReaderError("the reader of statistics has died, and is started again in a moment")
        self._started_s = now_s
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=there.fileno(),
                    stdout=subprocess.DEVNULL,
                    # One thread of numpy's library, not one for each processor.
                    env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                )
            except OSError as error:
                here.close()
                raise ReaderError(
                    f"the reader of statistics can't be started: {error.strerror}"
                ) from error
        self._connection = here
        here.settimeout(START_S)
        try:
            answer = here.recv(_ANSWER_BYTES_MAX)
        except OSError as error:
            answer = str(error).encode()
        if answer != b"ready":
            self._end()
            why = answer.decode(errors="replace") or "it has ended at once; harpd's log says more"
            raise ReaderError(f"the reader of statistics {why}")
        log.debug("process %d reads statistics", self.pid)
        return here

    def _hang_up(self) -> None:
        """Close the connection, which ends the process. harpd has no CAP_KILL, and the process has
        another user.
        """
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._hang_up()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                log.error("process %d, which reads statistics, does not end", self.pid)
        self._connection = self._process = None

    def close(self) -> None:
        """End the process, and a request in progress in another thread. May be called twice."""
        self._closed = True
        self._hang_up()
        with self._lock:
            self._end()
