# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint: prometheus_client's HTTP server, in a thread of its own.

An answer is made at most once a second; requests meanwhile share it. harpd's part is made here.
Another process makes that of instances and jobs (harp.daemon.reader), since a scan of /proc takes
long and parses what users write. Without that process, the answer is harpd's part.

prometheus_client's make_wsgi_app() is not used: it would need the other process's part as objects,
and parsing thousands of lines takes time from the event loop that serves the jobs. Its server has a
thread for each client; the limits on clients are added here.
"""

import contextlib
import errno
import functools
import gzip
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import ProcessCollector
from prometheus_client.exposition import ThreadingWSGIServer

from harp.daemon import families
from harp.daemon.reader import Reader, ReaderError
from harp.errors import HarpError

log = logging.getLogger("harpd")
REQUEST_TIMEOUT_S = 10.0
AGE_S = 1.0
READ_S = 8.0  # below the 10 s that Prometheus waits by default
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUESTS_MAX = 8
TAKE_S = 1.0  # a client that reads longer is closed for others
MADE = "harp.made"  # in a request's environment: the function to call when the answer is made
DaemonSource = Callable[[], families.DaemonView | None]


class ExporterError(HarpError):
    """The endpoint can't be opened: its address is in use, or not of this host."""


@dataclass(frozen=True)
class Answer:
    """The answer to all requests within AGE_S."""

    text: bytes
    made_s: float

    @functools.cached_property
    def zipped(self) -> bytes:
        """The text for clients that accept gzip."""
        return gzip.compress(self.text, compresslevel=1)


class Scrapes:
    """Makes answers, at most one a second. Any thread may call it."""

    def __init__(self, source: DaemonSource, reader: Reader) -> None:
        self._source, self._reader = source, reader
        self._lock = threading.Lock()
        self._last: dict[bool, Answer] = {}
        self._problem = ""
        self._process = ProcessCollector(registry=None)

    def answer(self, per_queue: bool = False) -> Answer:
        """Return the last answer if it is recent. Requests wait for an answer in the making.

        Parameters
        ----------
        per_queue
            Whether instances have series of each queue instead of sums of each NIC.
        """
        with self._lock:
            last = self._last.get(per_queue)
            if last is None or time.monotonic() - last.made_s >= AGE_S:
                last = Answer(self._text(per_queue), time.monotonic())
                self._last[per_queue] = last
            return last

    def _text(self, per_queue: bool) -> bytes:
        view = self._view()
        pages = self._pages(view, per_queue)
        own = families.collect(view, pages is not None)
        return families.exposition((*self._process.collect(), *own)) + (pages or b"")

    def _view(self) -> families.DaemonView | None:
        """Return harpd's state; None if the source fails, which costs harpd's part only."""
        try:
            return self._source()
        except Exception:
            log.exception("metrics: harpd's part is missing from this scrape")
            return None

    def _pages(self, view: families.DaemonView | None, per_queue: bool) -> bytes | None:
        """Return families of instances and jobs; None if the process that reads them failed."""
        leased = [[*place, pid] for place, pid in view.leased.items()] if view else []
        nics = [nic.name for nic in view.nics] if view else []
        request = {"kind": "metrics", "per_queue": per_queue, "leased": leased, "nics": nics}
        problem = ""
        try:
            fd = self._reader.ask(request, READ_S)
            with os.fdopen(fd, "rb") as file:
                return file.read()
        except (ReaderError, OSError) as error:
            problem = str(error)
            return None
        finally:
            if problem and problem != self._problem:
                log.error("%s; /metrics is without jobs' statistics until it works", problem)
            self._problem = problem

    def close(self) -> None:
        """End the reader."""
        self._reader.close()


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S  # for a client that sends nothing
    server: "_Server"

    def parse_request(self) -> bool:
        """Read the headers: the client has sent its request."""
        good = super().parse_request()
        self.server.has_asked(self.connection)
        return good

    def get_environ(self) -> dict[str, Any]:
        """Add the function that the application calls when the answer is made."""
        made = functools.partial(self.server.is_answered, self.connection)
        return {**super().get_environ(), MADE: made}

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: " + format, *args)


class _Server(ThreadingWSGIServer):
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._room = threading.BoundedSemaphore(REQUESTS_MAX)
        self._lock = threading.Lock()
        # Clients for which the server waits, the oldest first, and from when on each may be closed
        # for another one.
        self._is_needed: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # http.server's own method asks the DNS for the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def _has_room(self) -> bool:
        """Reserve a slot. Prometheus sends and reads at once, so a slow client is closed for the
        next one.
        """
        if self._room.acquire(blocking=False):
            return True
        with self._lock:
            now_s = time.monotonic()
            slow = next((one for one, until_s in self._is_needed.items() if until_s <= now_s), None)
            if slow is not None:
                del self._is_needed[slow]
                with contextlib.suppress(OSError):
                    slow.shutdown(socket.SHUT_RDWR)  # its thread sees the end and ends
        return slow is not None and self._room.acquire(timeout=REQUEST_TIMEOUT_S)

    def has_asked(self, request: socket.socket) -> None:
        """The client has sent its request: it waits for us."""
        with self._lock:
            self._is_needed.pop(request, None)

    def is_answered(self, request: socket.socket) -> None:
        """The answer is made: the client must read it."""
        with self._lock:
            self._is_needed[request] = time.monotonic() + TAKE_S

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            self.shutdown_request(request)  # more at once than Prometheus needs
            return
        with self._lock:
            self._is_needed[request] = 0.0
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics: a request failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class Exporter:
    """A running endpoint."""

    def __init__(self, server: _Server, scrapes: Scrapes) -> None:
        self._server, self.scrapes = server, scrapes
        self._thread = threading.Thread(
            target=server.serve_forever, name="harpd-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Return its address and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Return the URL for a browser or Prometheus."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def close(self) -> None:
        """End it; requests in progress end with the process."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.scrapes.close()


def _app(scrapes: Scrapes) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application. Every path is /metrics; ?per=queue: series of each queue."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET")])
            environ[MADE]()
            return [b""]
        per = parse_qs(environ.get("QUERY_STRING", "")).get("per", ["device"])
        if per not in (["device"], ["queue"]):
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            environ[MADE]()
            return [b"per is device or queue\n"]
        answer = scrapes.answer(per == ["queue"])
        environ[MADE]()
        headers = [("Content-Type", CONTENT_TYPE)]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            start_response("200 OK", [*headers, ("Content-Encoding", "gzip")])
            return [answer.zipped]
        start_response("200 OK", headers)
        return [answer.text]

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
    address: str = "127.0.0.1",
    port: int = 9747,
    source: DaemonSource = lambda: None,
    reader: Reader | None = None,
) -> Exporter:
    """Serve /metrics.

    Parameters
    ----------
    port
        0: any, see Exporter.address.
    source
        Returns harpd's state; other threads call it.
    reader
        The process that reads jobs' statistics.

    Raises
    ------
    ExporterError
        The address can't be bound.
    """
    scrapes = Scrapes(source, reader or Reader())
    kind = _Server6 if ":" in address else _Server
    try:
        server = make_server(
            address, port, _app(scrapes), server_class=kind, handler_class=_Handler
        )
    except OSError as error:
        raise ExporterError(_why(address, port, error)) from error
    return Exporter(server, scrapes)
