# SPDX-License-Identifier: Apache-2.0
"""Measures how long one user's requests to harpd take while another loads it.

Not a test: it prints times. Run as root from the repository root:
    PYTHONPATH=tests:tests/daemon:tests/netns .venv/bin/python tests/daemon/measure_harpd.py
"""

import contextlib
import os
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from harpd_rig import HostDaemon, Job

from harp.daemon.client import RefusedByDaemonError
from harp.lab import Lab, LabOptions

BLOCKS, CONNECTIONS, SCRAPERS, OPENERS = 17, 8, 4, 8
REQUESTS, LEASES = 40, 15
METRICS_PORT = 9747
DESCRIPTORS = 1000
BLOCK_PORTS = 256


def spread(times_s: list[float]) -> str:
    """Median and maximum."""
    return (
        f"median {statistics.median(times_s) * 1e3:8.1f} ms, max {max(times_s) * 1e3:8.1f} ms"
        f" ({len(times_s)} requests)"
    )


def binder(send: Callable[[Any], None], wait_fd: int) -> None:
    """Binds the last port of each block of ports."""
    held = [socket.socket() for _ in range(BLOCKS)]
    for number, sock in enumerate(held):
        sock.bind(("", 61000 + BLOCK_PORTS * number + BLOCK_PORTS - 1))
    send("bound")
    os.read(wait_fd, 1)


def asker(harpd: HostDaemon) -> Callable[[Callable[[Any], None], int], None]:
    """Requests leases without a pause; all are refused while no block of ports is free."""

    def work(send: Callable[[Any], None], _wait_fd: int) -> None:
        with harpd.client() as client:
            send("asking")
            while True:
                with contextlib.suppress(RefusedByDaemonError):
                    client.lease(harpd.host.ifname)

    return work


def opener(send: Callable[[Any], None], wait_fd: int) -> None:
    """Holds descriptors open, which a scan of /proc reads one by one."""
    for _ in range(DESCRIPTORS):
        os.dup(wait_fd)
    send("open")
    os.read(wait_fd, 1)


def scraper(send: Callable[[Any], None], _wait_fd: int) -> None:
    """Fetches /metrics without a pause."""
    send("scraping")
    while True:
        url = f"http://127.0.0.1:{METRICS_PORT}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()


@contextlib.contextmanager
def running(*jobs: Job) -> Iterator[None]:
    """Start the jobs and wait until each has begun."""
    try:
        for job in jobs:
            job.receive()
        yield
    finally:
        for job in jobs:
            job.close()


def queries(harpd: HostDaemon) -> str:
    """Connect, HELLO, and one query, by root."""
    times_s = []
    for _ in range(REQUESTS):
        begin_s = time.monotonic()
        with contextlib.suppress(Exception):
            harpd.query("instances")
        times_s.append(time.monotonic() - begin_s)
    return spread(times_s)


def leases(harpd: HostDaemon) -> str:
    """From LEASE to LEASED; the release is not counted."""
    times_s = []
    with harpd.client() as client:
        for _ in range(LEASES):
            begin_s = time.monotonic()
            lease, fds = client.lease(harpd.host.ifname)
            times_s.append(time.monotonic() - begin_s)
            for fd in fds:
                os.close(fd)
            client.release(lease.lease_id)
            # Each lease gets a queue that the kernel has let go of.
            while harpd.query("status")["nics"][0]["queues_free"] < 4:
                time.sleep(0.05)
    return spread(times_s)


def main() -> None:
    """Prints one line for each measurement."""
    with Lab(LabOptions(queues=4)) as lab:
        netns = lab.hosts[0].netns
        harpd = HostDaemon(lab.hosts[0], "port_rest_ms = 0", "", METRICS_PORT)
        try:
            harpd.start()
            print("query, idle:             ", queries(harpd), flush=True)
            print("lease, idle:             ", leases(harpd), flush=True)
            scrapers = [Job(scraper, uid=None, netns=netns) for _ in range(SCRAPERS)]
            openers = [Job(opener, netns=netns) for _ in range(OPENERS)]
            with running(*openers, *scrapers):
                print("lease, /metrics fetched: ", leases(harpd), flush=True)
            askers = [Job(asker(harpd), netns=netns) for _ in range(CONNECTIONS)]
            with running(Job(binder, netns=netns), *askers):
                time.sleep(1)
                print("query, ports searched:   ", queries(harpd), flush=True)
        finally:
            harpd.close()


if __name__ == "__main__":
    sys.exit(main())
