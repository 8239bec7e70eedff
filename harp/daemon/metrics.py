# SPDX-License-Identifier: Apache-2.0
"""harpd's side of the Prometheus endpoint, which another process serves (harp.stats.exporter).

harpd binds the port, starts the process and answers what it asks: harpd's status and leases. The
process ends with harpd. If it ends before, or can't be started, harpd starts it again after a
second, and after up to a minute while that happens repeatedly.
"""

import contextlib
import errno
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harp.config import MetricsConfig
from harp.daemon.documents import READER_ENVIRONMENT, Document
from harp.daemon.limits import Bucket
from harp.daemon.loop import Loop
from harp.errors import HarpError
from harp.words import printable

log = logging.getLogger("harpd")
COMMAND = (sys.executable, "-P", "-m", "harp.stats.exporter")
BACKLOG = 16
# The delay of a restart doubles, until the process has served for the longest delay.
RESTART_S, RESTART_MAX_S = 1.0, 60.0
END_S = 5.0
PAUSE_S = 0.1  # shortest time between two answers to the process
LOGS_PER_S, LOGS_BURST = 1 / 60, 10.0  # problems that the process reports
READY, STATE = b"ready", b"state"  # STATE is followed by the process's problem, if any
_MESSAGE_MAX = 4096


def listen(address: str, port: int) -> socket.socket:
    """Return the listening socket. HarpError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise HarpError(f"metrics endpoint {address} port {port}: {_why(error)}") from error
    return sock


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has it; set another port in [metrics] of harp.toml"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL) or isinstance(error, socket.gaierror):
        return "no address of this host; set another address in [metrics] of harp.toml"
    if error.errno == errno.EACCES:
        return "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
    return error.strerror or str(error)


def url(listening: socket.socket) -> str:
    """Return the URL of the endpoint for a browser or Prometheus."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _text(message: bytes) -> str:
    return printable(message.decode(errors="replace"))


class Metrics:
    """The endpoint. Used by the loop's thread.

    Parameters
    ----------
    source
        Returns the documents of status and instances.

    Raises
    ------
    HarpError
        The address can't be bound.
    """

    def __init__(
        self,
        loop: Loop,
        config: MetricsConfig,
        source: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._loop, self._source, self._command = loop, source, command
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._ready, self._problem = False, ""
        self._restart_s, self._started_s = RESTART_S, 0.0
        self._log_bucket = Bucket(LOGS_PER_S, LOGS_BURST)
        self._failed = False  # it could not serve, which was logged
        self._listening = listen(config.address, config.port)
        self.url = url(self._listening)
        self._start()

    @property
    def pid(self) -> int:
        """Return the process's number; 0: it does not serve."""
        return self._process.pid if self._process is not None and self._ready else 0

    def _start(self) -> None:
        if self._listening.fileno() < 0:  # closed meanwhile
            return
        if self._process is not None and self._process.poll() is None:
            self._fail("does not end")
            self._start_later()
            return
        self._started_s = self._loop.time()
        try:
            self._connection = self._spawn()
        except OSError as error:
            self._fail(f"can't be started: {error.strerror}")
            self._start_later()
            return
        self._listen()

    def _spawn(self) -> socket.socket:
        """Start the process; return harpd's end of the connection. OSError."""
        number = self._listening.fileno()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(number)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    pass_fds=[number],
                    env=os.environ | READER_ENVIRONMENT,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    def _start_later(self) -> None:
        self._loop.call_later(self._restart_s, self._start)
        self._restart_s = min(2 * self._restart_s, RESTART_MAX_S)

    def _fail(self, why: str) -> None:
        """Log why the process can't serve, once until it does."""
        if not self._failed:
            log.error("the process that serves /metrics %s; harpd tries again", why)
        self._failed = True

    def _listen(self) -> None:
        if self._connection is not None:
            self._loop.add_reader(self._connection, self._readable, self._connection)

    def _readable(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(_MESSAGE_MAX)
        except OSError:
            message = b""
        if self._ready and message.startswith(STATE):
            self._answer(connection, _text(message.removeprefix(STATE)))
        elif message == READY and not self._ready:
            self._ready, self._failed = True, False
        elif message and not self._ready:
            self._ended(f"can't work: {_text(message)}")
        elif message:
            self._ended("sent an unknown message")
        else:
            self._ended("has ended" if self._ready else "ended before it served")

    def _answer(self, connection: socket.socket, problem: str) -> None:
        is_new = problem not in ("", self._problem)
        if is_new and self._log_bucket.take(self._loop.time()) == 0:
            log.error("%s; /metrics is without jobs' statistics until it works", problem)
        self._problem = problem
        document = Document(json.dumps(self._source()).encode())
        with contextlib.suppress(OSError):  # it has ended
            socket.send_fds(connection, [STATE], [document.fd])
        document.close(empty=False)
        self._loop.remove_reader(connection)
        self._loop.call_later(PAUSE_S, self._listen)

    def _ended(self, why: str) -> None:
        """Hang up, log at most one line, and start another process later."""
        self._hang_up()
        if self._ready:
            log.warning("the process that serves /metrics %s; another one is started", why)
        else:
            self._fail(why)
        if self._ready and self._loop.time() - self._started_s >= RESTART_MAX_S:
            self._restart_s = RESTART_S
        self._ready = False
        self._start_later()

    def _hang_up(self) -> None:
        """Close the connection, which ends the process. harpd has no CAP_KILL, and the process has
        another user.
        """
        if self._connection is not None:
            self._loop.remove_reader(self._connection)
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        """End the process, so that the next harpd can bind the port."""
        self._hang_up()
        self._listening.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                log.error("process %d, which serves /metrics, does not end", self._process.pid)
