# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint, a separate process: `python -m harp.stats.exporter FD`.

The process parses files that any user may fill, so it is confined (harp.stats.confine). harpd
(harp.daemon.metrics) passes a listening socket, FD, and as standard input a client connection, over
which the process queries harpd's status and leases. It ends with that connection. harpd logs its
stderr.

Statistics are read at most once a second; all requests share them.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harp.daemon import families as own
from harp.daemon.client import DaemonClient
from harp.errors import HarpError
from harp.stats import families, totals
from harp.stats.confine import begin
from harp.stats.discover import find
from harp.stats.instance import look

AGE_S = 1.0
ASK_S = 5.0
REQUEST_TIMEOUT_S = 10.0
CLIENTS_MAX = 16
THREADS_MAX = 2 * CLIENTS_MAX  # including threads of closed clients that wait for statistics
# Returns harpd's documents; None: harpd does not answer.
DaemonSource = Callable[[], own.Documents | None]


class Scrapes:
    """All families, read at most once a second, for any thread. pid: harpd's, for process_*."""

    def __init__(
        self,
        source: DaemonSource = lambda: None,
        pid: Callable[[], int | str] = lambda: "self",
    ) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._last: dict[bool, tuple[float, list[Metric]]] = {}
        self._problem = ""
        self._process = ProcessCollector(pid=pid, registry=None)
        self._totals, self._names = totals.Totals(), families.Names()
        self._devices = totals.DeviceTotals()

    def collect(self, per_queue: bool) -> list[Metric]:
        """Return the families of the last second. per_queue: series of queues, not NICs."""
        with self._lock:
            read_s, metrics = self._last.get(per_queue, (-AGE_S, []))
            if time.monotonic() - read_s >= AGE_S:
                metrics = list(self._read(per_queue))
                self._last[per_queue] = time.monotonic(), metrics
            return metrics

    def _read(self, per_queue: bool) -> Iterator[Metric]:
        documents, before = self._source(), self._problem
        leased = own.leased(documents[1]) if documents is not None else {}
        nics = own.nics(documents[0]) if documents is not None else []
        statistics: list[Metric] = []
        try:
            scrape = self.scrape(leased, frozenset(nic["ifname"] for nic in nics), per_queue)
            statistics += families.collect(scrape)
            self._problem = ""
        except Exception as error:
            self._problem = f"reading statistics: {type(error).__name__}: {error}"
            if self._problem != before:
                print(self._problem, file=sys.stderr, flush=True)
        yield from self._process.collect()
        yield from own.collect(documents, not self._problem)
        yield from statistics

    def scrape(
        self, leased: families.Leased, nics: frozenset[str], per_queue: bool = False
    ) -> families.ScrapeData:
        """Return the data. nics: names that may become labels, besides this host's NICs."""
        with find() as pages:
            host = look(pages, flows=False, lanes=True)
        instances, ignored = families.believed(host.instances, leased)
        jobs, left_out = families.believed_jobs(host.jobs, leased)
        for reason, count in left_out.items():
            ignored[reason] = ignored.get(reason, 0) + count
        ignored["unreadable"] += len(host.bad)
        own_nics = {name for _, name in socket.if_nameindex()}
        job_sums = self._totals.of_jobs(jobs, nics.union(own_nics))
        devices = self._devices.of_devices(instances)
        instances, xstats_ignored = self._names.sift(instances)
        return families.ScrapeData(
            instances, ignored, job_sums, None if per_queue else devices, xstats_ignored
        )


class _View(Collector):
    def __init__(self, scrapes: Scrapes, per_queue: bool) -> None:
        self._scrapes, self._per_queue = scrapes, per_queue

    def collect(self) -> Iterable[Metric]:
        return self._scrapes.collect(self._per_queue)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S  # for a client that sends nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


class Exporter(ThreadingWSGIServer):
    """The server, with a thread for each client. With too many clients, the oldest one is closed,
    because Prometheus sends its request and reads the answer at once. With too many threads, a new
    client is closed, because the process shares its limit of threads with harpd.
    """

    block_on_close = False

    def __init__(
        self,
        listening: socket.socket,
        source: DaemonSource,
        pid: Callable[[], int | str] = lambda: "self",
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = map(str, self.server_address)  # type: ignore[assignment]
        self.setup_environ()
        self.set_app(self._application)
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, None] = {}  # the oldest first
        self._running = 0  # clients' threads
        self._applications = {}
        scrapes = Scrapes(source, pid)
        for per in ("device", "queue"):
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_View(scrapes, per == "queue"))
            self._applications[per] = make_wsgi_app(registry)

    def _application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request. Every path is /metrics; ?per=queue: series of each queue."""
        (per, *more) = parse_qs(environ.get("QUERY_STRING", "")).get("per", ["device"])
        if more or per not in self._applications:
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"per is device or queue\n"]
        try:
            choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except TypeError:  # the header has an invalid version: plain text
            del environ["HTTP_ACCEPT"]
        answer: Iterable[bytes] = self._applications[per](environ, start_response)
        return answer

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            admitted = self._running < THREADS_MAX
            if admitted:
                self._running += 1
                self._make_room(request)
        if not admitted:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the thread can't start; the caller closes the client
            self._thread_ended()
            raise

    def _make_room(self, request: socket.socket) -> None:
        self._clients[request] = None
        if len(self._clients) > CLIENTS_MAX:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            # This ends a thread that reads or writes. A thread that waits for statistics ends once
            # it has them.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._thread_ended()

    def _thread_ended(self) -> None:
        with self._lock:
            self._running -= 1

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""


def ask_harpd(harpd: DaemonClient) -> own.Documents | None:
    """Ask harpd for its documents; None: it does not answer in time."""
    try:
        return harpd.query("status"), harpd.query("instances")
    except HarpError:
        return None


def main() -> None:
    """Entry point. An error is the last line of stderr."""
    connection, pid = begin(), os.getppid()
    try:
        harpd = DaemonClient(Path("its socket"), "exporter", ASK_S, connection)
    except HarpError as error:
        sys.exit(str(error))
    listening = socket.socket(fileno=int(sys.argv[1]))
    Exporter(listening, lambda: ask_harpd(harpd), lambda: pid).serve_forever()


if __name__ == "__main__":
    main()
