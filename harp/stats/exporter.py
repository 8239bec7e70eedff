# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint: an HTTP server in a thread of its own, that harpd starts.

A scrape reads the host's pages and asks the source for harpd's part. What jobs did is kept in
between (harp.stats.totals): nothing else is.
"""

import contextlib
import errno
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harp.errors import HarpError
from harp.procfs import PROC
from harp.stats import discover, families, totals
from harp.stats.instance import look
from harp.stats.xstats import Names

log = logging.getLogger("harpd")
REQUEST_TIMEOUT_S = 10.0
REQUESTS_MAX = 8
TAKE_S = 1.0  # who takes longer over an answer makes room for others
MADE = "harp.made"  # of a request's environment: what to call when the answer is made
DaemonSource = Callable[[], families.DaemonView | None]


class ExporterError(HarpError):
    """The endpoint can't be had: the address is another's, or nobody's."""


def _nics(daemon: families.DaemonView | None) -> frozenset[str]:
    """Names that jobs' lanes may have in labels: of this host's interfaces, and harpd's."""
    names = {name for _, name in socket.if_nameindex()}
    return frozenset(names.union(nic.name for nic in daemon.nics) if daemon else names)


def scene(
    source: DaemonSource,
    proc: Path = PROC,
    sums: totals.Totals | None = None,
    names: Names | None = None,
) -> families.Scene:
    """What there is to tell now. A source that fails costs harpd's part only. sums: what jobs of
    the past did; names: what drivers' counters were called so far."""
    try:
        daemon = source()
    except Exception:
        log.exception("metrics: harpd's part is missing from this scrape")
        daemon = None
    with discover.find(proc) as found:
        sight = look(found, flows=False)
    instances, ignored = families.believed(sight.instances, daemon)
    jobs, left_out = families.believed_jobs(sight.jobs, daemon)
    for reason, count in left_out.items():
        ignored[reason] = ignored.get(reason, 0) + count
    ignored["unreadable"] += len(sight.bad)
    done = (sums or totals.Totals()).take(jobs, _nics(daemon))
    instances, xstats_ignored = (names or Names()).sift(instances)
    return families.Scene(instances, ignored, daemon, done, xstats_ignored)


class _Harp(Collector):
    def __init__(self, source: DaemonSource) -> None:
        self._source = source
        self._sums = totals.Totals()
        self._names = Names()

    def collect(self) -> Iterator[Metric]:
        yield from families.collect(scene(self._source, sums=self._sums, names=self._names))

    def describe(self) -> Iterator[Metric]:
        """Registering must not read the host."""
        return iter(())


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S  # whoever connects and says nothing
    server: "_Server"

    def parse_request(self) -> bool:
        """Reads the headers: now it is known what is asked."""
        good = super().parse_request()
        self.server.has_asked(self.connection)
        return good

    def get_environ(self) -> dict[str, Any]:
        """With a word for who makes the answer."""
        made = functools.partial(self.server.is_answered, self.connection)
        return {**super().get_environ(), MADE: made}

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: " + format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._room = threading.BoundedSemaphore(REQUESTS_MAX)
        self._lock = threading.Lock()
        # The oldest first: those that have not asked yet, and since when others take their answers.
        self._silent: dict[socket.socket, None] = {}
        self._taking: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # http.server's own asks the DNS for the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def _has_room(self) -> bool:
        """A Prometheus asks at once, and takes its answer at once: who is slow with that makes room
        for the next."""
        if self._room.acquire(blocking=False):
            return True
        with self._lock:
            slow = self._slowest()
            if slow is not None:
                self._forget(slow)
                with contextlib.suppress(OSError):
                    slow.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and ends
        return slow is not None and self._room.acquire(timeout=REQUEST_TIMEOUT_S)

    def _forget(self, request: socket.socket) -> None:
        self._silent.pop(request, None)
        self._taking.pop(request, None)

    def _slowest(self) -> socket.socket | None:
        late_s = time.monotonic() - TAKE_S
        slow = (request for request, since_s in self._taking.items() if since_s <= late_s)
        return next(iter(self._silent), None) or next(slow, None)

    def has_asked(self, request: socket.socket) -> None:
        """From now on it is we who are waited for."""
        with self._lock:
            self._silent.pop(request, None)

    def is_answered(self, request: socket.socket) -> None:
        """From now on it has only to take its answer."""
        with self._lock:
            self._taking[request] = time.monotonic()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            self.shutdown_request(request)  # more at once than any Prometheus needs
            return
        with self._lock:
            self._silent[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._forget(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics: a request failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class Exporter:
    """A running endpoint."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="harpd-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """For a browser or Prometheus."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def close(self) -> None:
        """Ends it; requests under way are cut off with the process."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _app(registry: CollectorRegistry) -> Callable[..., Iterable[bytes]]:
    """prometheus_client's, which says when it has made an answer."""
    client = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer: Iterable[bytes] = client(environ, start_response)
        environ[MADE]()
        return answer

    return app


def _why(address: str, port: int, error: OSError) -> str:
    where = f"metrics endpoint {address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another process has it; set another port in [metrics] of harp.toml"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL) or isinstance(error, socket.gaierror):
        return f"{where}: no address of this host; set another address in [metrics] of harp.toml"
    if error.errno == errno.EACCES:
        return f"{where}: ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
    return f"{where}: {error.strerror or os.strerror(error.errno or errno.EIO)}"


def start(
    address: str = "127.0.0.1", port: int = 9747, source: DaemonSource = lambda: None
) -> Exporter:
    """Serves /metrics. port 0: any, see Exporter.address. source is called by other threads.

    ExporterError in one line when address and port can't be had: log it and go on.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Harp(source))
    kind = _Server6 if ":" in address else _Server
    try:
        server = make_server(
            address, port, _app(registry), server_class=kind, handler_class=_Handler
        )
    except OSError as error:
        raise ExporterError(_why(address, port, error)) from error
    return Exporter(server)
