# SPDX-License-Identifier: Apache-2.0
"""harpd's side of the Prometheus endpoint, which another process serves (harp.stats.exporter).

harpd binds the port, starts the process and answers what it asks: harpd's status and leases. The
process ends with harpd. If it dies, it is started again after a second.
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
from harp.daemon.loop import Loop
from harp.errors import HarpError
from harp.words import printable

log = logging.getLogger("harpd")
COMMAND = (sys.executable, "-P", "-m", "harp.stats.exporter")
BACKLOG = 16
RESTART_S, END_S = 1.0, 5.0
PAUSE_S = 0.1  # shortest time between two answers to the process
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
        self._listening = listen(config.address, config.port)
        self.url = url(self._listening)
        self._start()

    @property
    def pid(self) -> int:
        """Return the process's number; 0: it does not serve."""
        return self._process.pid if self._process is not None and self._ready else 0

    def _start(self) -> None:
        number = self._listening.fileno()
        if number < 0:  # closed meanwhile
            return
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
            except OSError as error:
                ours.close()
                log.error("the process that serves /metrics can't be started: %s", error.strerror)
                return
        ours.setblocking(False)
        self._connection = ours
        self._listen()

    def _listen(self) -> None:
        if self._connection is not None:
            self._loop.add_reader(self._connection, self._readable, self._connection)

    def _readable(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(_MESSAGE_MAX)
        except OSError:
            message = b""
        if message.startswith(STATE):
            self._answer(connection, _text(message.removeprefix(STATE)))
        elif message:
            self._ready = message == READY
            if not self._ready:
                log.error("the process that serves /metrics: %s", _text(message))
        else:
            self._ended()

    def _answer(self, connection: socket.socket, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("%s; /metrics is without jobs' statistics until it works", problem)
        self._problem = problem
        document = Document(json.dumps(self._source()).encode())
        with contextlib.suppress(OSError):  # it has ended
            socket.send_fds(connection, [STATE], [document.fd])
        document.close(empty=False)
        self._loop.remove_reader(connection)
        self._loop.call_later(PAUSE_S, self._listen)

    def _ended(self) -> None:
        self._hang_up()
        if self._ready:
            log.warning("the process that serves /metrics has ended; another one is started")
            self._loop.call_later(RESTART_S, self._start)
        else:
            log.error("the process that serves /metrics can't work: there are no metrics")
        self._ready = False

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
