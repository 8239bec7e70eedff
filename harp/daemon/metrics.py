# SPDX-License-Identifier: Apache-2.0
"""harpd's side of the Prometheus endpoint, which another process serves (harp.stats.exporter).

harpd binds the port and starts the process, with a connection to harpd. The process ends with
harpd. If it ends before, or can't be started, harpd starts it again after a second; the delay
doubles up to a minute.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from harp.config import MetricsConfig
from harp.daemon.limits import Bucket
from harp.daemon.loop import Loop
from harp.daemon.peer import Peer
from harp.daemon.server import Client, Server
from harp.daemon.table import Owner
from harp.errors import HarpError
from harp.words import printable

log = logging.getLogger("harpd")
COMMAND = (sys.executable, "-P", "-m", "harp.stats.exporter")
# One thread of numpy's library, not one for each processor.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
BACKLOG = 16
# The delay of a restart doubles, until the process has served for the longest delay.
RESTART_S, RESTART_MAX_S = 1.0, 60.0
END_S = 5.0
NOBODY = 65534  # the process's user
BUSY_S = 5.0  # interval of retries to bind: the process of a killed harpd may have the port
LOGS_PER_S, LOGS_BURST = 1 / 60, 10.0
LOG_AGAIN_S = 3600.0  # until the same line is logged again
SETTLE_S = 1.0  # until a traceback, which the process writes line by line, is complete
_PIPE_BYTES, _LINE_BYTES = 1 << 16, 4096  # limits of one read, and of a log line


def listen(address: str, port: int) -> socket.socket:
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
        return "another process uses it; set another port in [metrics] of harp.toml"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL) or isinstance(error, socket.gaierror):
        return "this host does not have the address; set another one in [metrics] of harp.toml"
    if error.errno == errno.EACCES:
        return "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
    return error.strerror or str(error)


def url(listening: socket.socket) -> str:
    """Return the URL of the endpoint for a browser or Prometheus."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


class Metrics:
    """The endpoint. Used by the loop's thread. url: empty until the port could be bound."""

    def __init__(
        self, loop: Loop, config: MetricsConfig, server: Server, command: Sequence[str] = COMMAND
    ) -> None:
        self._loop, self._server, self._command = loop, server, command
        self._config = config
        self._listening: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._logged: dict[str, float] = {}  # when each line was logged
        self._stderr = b""  # the last bytes of the process that are not logged yet
        self._bucket = Bucket(LOGS_PER_S, LOGS_BURST)
        self.url = ""
        self._listen()
        self._task = loop.spawn(self._run())

    def _log(self, text: str) -> None:
        """Log a line, within limits, because it may contain users' data."""
        now_s = self._loop.time()
        recent = {line: at_s for line, at_s in self._logged.items() if now_s - at_s < LOG_AGAIN_S}
        self._logged = recent
        if text not in recent and self._bucket.take(now_s) == 0:
            recent[text] = now_s
            log.error("%s", text)

    def _listen(self) -> None:
        try:
            self._listening = listen(self._config.address, self._config.port)
            self.url = url(self._listening)
        except HarpError as error:
            self._log(f"{error}; harpd serves without metrics until it can bind the port")

    async def _run(self) -> None:
        while self._listening is None:
            await asyncio.sleep(BUSY_S)
            self._listen()
        delay_s = RESTART_S
        while True:
            begin_s = self._loop.time()
            try:
                await self._serve(self._listening.fileno())
                why = "has ended; harpd starts it again"
            except OSError as error:
                why = f"can't be started: {error.strerror}; harpd tries again"
            if self._loop.time() - begin_s >= RESTART_MAX_S:
                delay_s = RESTART_S
                self._logged.clear()
            self._log(f"the process that serves /metrics {why}")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_MAX_S)

    async def _serve(self, listening: int) -> None:
        """Start the process and wait for its end. OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as of_client:
            of_client.enter_context(ours)
            with theirs:
                self._process = process = subprocess.Popen(
                    [*self._command, str(listening)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[listening],
                    env=os.environ | ENVIRONMENT,
                )
            assert process.stderr is not None
            stderr = opened.enter_context(process.stderr).fileno()
            os.set_blocking(stderr, False)
            pidfd = os.pidfd_open(process.pid)
            opened.callback(os.close, pidfd)
            owner = Owner(process.pid, 0, NOBODY)
            peer = Peer(owner, frozenset(), os.pidfd_open(process.pid), "exporter")
            of_client.callback(peer.close)
            opened.callback(self._hang_up)
            self._client = self._server.add(ours, peer, internal=True)
            of_client.pop_all()  # the client owns socket and peer now
            ended = asyncio.Event()
            self._loop.add_reader(pidfd, ended.set)
            opened.callback(self._loop.remove_reader, pidfd)
            self._loop.add_reader(stderr, self._read, stderr)
            opened.callback(self._loop.remove_reader, stderr)
            await ended.wait()
            self._read(stderr)
            self._report()
            process.wait()

    def _read(self, stderr: int) -> None:
        """Read stderr of the process, and log it after SETTLE_S."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(stderr, _PIPE_BYTES)
            if not data:
                self._loop.remove_reader(stderr)
            elif not self._stderr:
                self._loop.call_later(SETTLE_S, self._report)
            self._stderr = (self._stderr + data)[-_LINE_BYTES:]

    def _report(self) -> None:
        text, self._stderr = self._stderr.decode(errors="replace").strip(), b""
        if lines := text.splitlines():
            self._log(f"the process that serves /metrics: {printable(lines[-1])}")

    def _hang_up(self) -> None:
        """End the process by closing its connection: harpd may lack CAP_KILL."""
        if self._client is not None:
            self._client.close("")

    def close(self) -> None:
        self._task.cancel()
        self._hang_up()
        if self._listening is not None:
            self._listening.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                log.error("process %d, which serves /metrics, does not end", self._process.pid)
