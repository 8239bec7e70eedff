# SPDX-License-Identifier: Apache-2.0
"""Processes that publish (tests/unit/page_owner.c), at the tests' command; harpd's status and
instances, as much as its metrics need."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harp import stats
from harp.daemon import metrics
from harp.lab.piped import Piped
from harp.stats.exporter import DaemonSource, Exporter
from harp.stats.instance import Instance, look

TOOLS = Path(sys.executable).parent


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def content_of(page: stats.Page) -> bytearray:
    return bytearray(os.pread(page.fd, os.fstat(page.fd).st_size, 0))


@contextlib.contextmanager
def memory(content: bytes, seals: int = SEALS) -> Iterator[int]:
    """A file like that of a page, with this content."""
    fd = os.memfd_create("harp-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


class Commanded(Piped):
    """A program that obeys lines on its standard input and answers each with "ok"."""

    limit_s = 60.0

    def __init__(self, program: Path, *arguments: str) -> None:
        pipe, command = subprocess.PIPE, [program, *arguments]
        super().__init__(
            program.name, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        )
        assert self.line() == "ok"

    def send(self, *lines: str) -> None:
        """Each command is complete before the next one is sent."""
        for line in lines:
            super().send(line)
            assert self.line() == "ok"


class Owner(Commanded):
    """page_owner: two stacks on queues 0 and 1 of a NIC that does not exist."""

    def __init__(self, program: Path, ifname: str, label: str, connections: int) -> None:
        self.ifname = ifname
        super().__init__(program, ifname, label, str(connections))

    def pages(self, found: stats.Found) -> list[stats.Page]:
        """Its pages, by queue."""
        mine = [page for page in found.pages if page.pid == self.process.pid]
        return sorted(mine, key=lambda page: stats.read(page.fd).identity.queue)

    def instances(self) -> tuple[Instance, ...]:
        """Its instances as they are now, by queue."""
        with stats.find() as found:
            seen = [each for each in look(found).instances if each.pid == self.process.pid]
        return tuple(sorted(seen, key=lambda each: each.snapshot.identity.queue))


class JobOwner(Commanded):
    """lane_owner: a process with a job's page, whose comms and lanes are set by commands."""

    def page(self, found: stats.Found) -> stats.Page:
        """Its page."""
        (mine,) = [page for page in found.jobs if page.pid == self.process.pid]
        return mine

    def job(self) -> stats.Job:
        """Return the job as its page shows it now."""
        with stats.find() as found:
            (mine,) = [job for job in look(found).jobs if job.pid == self.process.pid]
        return mine


MakeOwner = Callable[..., Owner]


@pytest.fixture
def make_owner(build_dir: Path) -> Iterator[MakeOwner]:
    """Starts one: ifname, label, connections."""
    owners: list[Owner] = []

    def make(ifname: str = "harp7", label: str = "train rank 0", connections: int = 3) -> Owner:
        program = build_dir / "tests" / "unit" / "page_owner"
        owners.append(Owner(program, ifname, label, connections))
        return owners[-1]

    yield make
    for owner in owners:
        owner.close()


@pytest.fixture
def owner(make_owner: MakeOwner) -> Owner:
    """One that has moved some bytes."""
    result = make_owner()
    result.send("run 200")
    return result


@pytest.fixture
def make_job(build_dir: Path) -> Iterator[Callable[..., JobOwner]]:
    """Starts one: label, HARP_PAGE_FLOWS, NIC."""
    owners: list[JobOwner] = []

    def make(label: str = "train rank 1", flows: int = 4, ifname: str = "lo") -> JobOwner:
        program = build_dir / "tests" / "unit" / "lane_owner"
        owners.append(JobOwner(program, label, str(flows), ifname))
        return owners[-1]

    yield make
    for each in owners:
        each.close()


# Of 20000 bytes HARP's lane carries a quarter. The lane of comm 1 is lost.
A_LIFE = (
    "comm 0", "lane 0 0 harp", "lane 0 1 kernel", "bytes 0 0 5000", "bytes 0 1 15000",
    "tcp 0 0 30000 2", "message 0 3 20000", "comm 1", "lane 1 0 kernel", "die 1 0 104",
)  # fmt: skip


@pytest.fixture
def job_owner(make_job: Callable[..., JobOwner]) -> JobOwner:
    """One with two comms."""
    result = make_job()
    result.send(*A_LIFE)
    return result


@contextlib.contextmanager
def serving(source: DaemonSource, address: str = "127.0.0.1") -> Iterator[str]:
    """A metrics endpoint in this process, on an unused port; its URL."""
    listening = metrics.listen(address, 0)
    endpoint = Exporter(listening, source)
    thread = threading.Thread(target=endpoint.serve_forever)
    thread.start()
    try:
        yield metrics.url(listening)
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


def scraped(url: str | urllib.request.Request) -> str:
    """An answer of it."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def tool(name: str) -> Path:
    """promtool, prometheus or the browser; tools/setup.sh brings them."""
    import shutil

    found = shutil.which(name, path=f"{TOOLS}:{os.environ['PATH']}:/usr/local/bin")
    if found is None:
        pytest.fail(f"{name} is not there: run `make build-tests`")
    return Path(found)


Documents = tuple[dict[str, Any], dict[str, Any]]


def nic(ifname: str = "eth1", *queues: str, **changes: Any) -> dict[str, Any]:
    """A NIC with queues of these states."""
    return {
        "ifname": ifname,
        "up": True,
        "problem": "",
        "queues": {str(number): state for number, state in enumerate(queues)},
        "queues_unreachable": [],
        "verdicts": {},
        **changes,
    }


def documents(*nics: dict[str, Any], leases: Any = (), **changes: Any) -> Documents:
    """Documents of these NICs; leases: NIC, queue and process."""
    status = {
        "since_s": 1000.0, "nics": list(nics), "dpdk": [], "granted": 0, "refused": {}, "reloads": 0
    }  # fmt: skip
    instances = [
        {"ifname": ifname, "queue": queue, "pid": pid, "device": None, "queues": 1}
        for ifname, queue, pid in leases
    ]
    return status | changes, {"instances": instances}
