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
from wsgiref.simple_server import WSGIRequestHandler

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
CONNECTION = "harp.connection"  # in a request's environment
DaemonSource = Callable[[], families.Documents | None]


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
        documents = self._documents()
        pages = self._pages(documents, per_queue)
        own = families.collect(documents, pages is not None)
        return families.exposition((*self._process.collect(), *own)) + (pages or b"")

    def _documents(self) -> families.Documents | None:
        """Return harpd's documents; None if the source fails, which costs harpd's part only."""
        try:
            return self._source()
        except Exception:
            log.exception("metrics: harpd's part is missing from this scrape")
            return None

    def _pages(self, documents: families.Documents | None, per_queue: bool) -> bytes | None:
        """Return families of instances and jobs; None if the process that reads them failed."""
        leased: list[list[Any]] = []
        nics: list[str] = []
        if documents is not None:
            leased = [[*place, pid] for place, pid in families.leased(documents[1]).items()]
            nics = [nic["ifname"] for nic in families.nics(documents[0])]
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
    server: "Exporter"

    def parse_request(self) -> bool:
        """Read the headers: the client has sent its request."""
        good = super().parse_request()
        self.server.has_asked(self.connection)
        return good

    def get_environ(self) -> dict[str, Any]:
        """Add the connection, for the application."""
        return {**super().get_environ(), CONNECTION: self.connection}

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: " + format, *args)


class Exporter(ThreadingWSGIServer):
    """A running endpoint.

    Parameters
    ----------
    port
        0: any, see address.
    source
        Returns harpd's state; other threads call it.
    reader
        The process that reads jobs' statistics.

    Raises
    ------
    ExporterError
        The address can't be bound.
    """

    block_on_close = False
    request_queue_size = 16

    def __init__(
        self,
        address: str = "127.0.0.1",
        port: int = 9747,
        source: DaemonSource = lambda: None,
        reader: Reader | None = None,
    ) -> None:
        self._scrapes = Scrapes(source, reader or Reader())
        self._room = threading.BoundedSemaphore(REQUESTS_MAX)
        self._lock = threading.Lock()
        # Clients for which the server waits, the oldest first, and from when on each may be closed
        # for another one.
        self._closable_from_s: dict[socket.socket, float] = {}
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise ExporterError(_why(address, port, error)) from error
        self.set_app(self._application)
        self._thread = threading.Thread(
            target=self.serve_forever, name="harpd-metrics", daemon=True
        )
        self._thread.start()

    def server_bind(self) -> None:
        # http.server's own method asks the DNS for the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.address
        self.setup_environ()

    @property
    def address(self) -> tuple[str, int]:
        """Return its address and port."""
        host, port = self.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Return the URL for a browser or Prometheus."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def close(self) -> None:
        """End it; requests in progress end with the process."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        self._scrapes.close()

    # ---- an answer ----

    def _application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        status, headers, body = self._answer(environ)
        with self._lock:  # from now on the client must read
            self._closable_from_s[environ[CONNECTION]] = time.monotonic() + TAKE_S
        start_response(status, headers)
        return [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return status, headers and body. Every path is /metrics; ?per=queue: series of each
        queue.
        """
        if environ["REQUEST_METHOD"] != "GET":
            return "405 Method Not Allowed", [("Allow", "GET")], b""
        per = parse_qs(environ.get("QUERY_STRING", "")).get("per", ["device"])
        if per not in (["device"], ["queue"]):
            return "400 Bad Request", [("Content-Type", "text/plain")], b"per is device or queue\n"
        answer, headers = self._scrapes.answer(per == ["queue"]), [("Content-Type", CONTENT_TYPE)]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            return "200 OK", [*headers, ("Content-Encoding", "gzip")], answer.zipped
        return "200 OK", headers, answer.text

    # ---- the limit of clients ----

    def _has_room(self) -> bool:
        """Reserve a slot. Prometheus sends and reads at once, so a slow client is closed for the
        next one.
        """
        if self._room.acquire(blocking=False):
            return True
        with self._lock:
            now_s = time.monotonic()
            slow = next(
                (one for one, until_s in self._closable_from_s.items() if until_s <= now_s), None
            )
            if slow is not None:
                del self._closable_from_s[slow]
                with contextlib.suppress(OSError):
                    slow.shutdown(socket.SHUT_RDWR)  # its thread sees the end and ends
        return slow is not None and self._room.acquire(timeout=REQUEST_TIMEOUT_S)

    def has_asked(self, request: socket.socket) -> None:
        """The client has sent its request: it waits for us."""
        with self._lock:
            self._closable_from_s.pop(request, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            self.shutdown_request(request)  # more at once than Prometheus needs
            return
        with self._lock:
            self._closable_from_s[request] = 0.0
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can start; process_request_thread() never runs
            self.has_asked(request)
            self._room.release()
            self.shutdown_request(request)
            log.warning("metrics: %s", error)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("metrics: a request failed", exc_info=True)


def _why(address: str, port: int, error: OSError) -> str:
    where = f"metrics endpoint {address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another process has it; set another port in [metrics] of harp.toml"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL) or isinstance(error, socket.gaierror):
        return f"{where}: no address of this host; set another address in [metrics] of harp.toml"
    if error.errno == errno.EACCES:
        return f"{where}: ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
    return f"{where}: {error.strerror or os.strerror(error.errno or errno.EIO)}"
