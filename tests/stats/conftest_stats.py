# SPDX-License-Identifier: Apache-2.0
"""Processes that publish statistics as tests command (tests/unit/page_owner.c), a metrics
endpoint, and harpd's documents."""

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
    """Create a memfd like that of a page, with this content."""
    fd = os.memfd_create("harp-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


class CommandedProgram(Piped):
    """A program that reads commands, one per line, and answers each with "ok"."""

    limit_s = 60.0

    def __init__(self, program: Path, *arguments: str) -> None:
        pipe, command = subprocess.PIPE, [program, *arguments]
        super().__init__(
            program.name, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        )
        assert self.line() == "ok"

    def send(self, *lines: str) -> None:
        """Send commands, each after the answer to the previous one."""
        for line in lines:
            super().send(line)
            assert self.line() == "ok"


class Owner(CommandedProgram):
    """page_owner: two stacks on queues 0 and 1 of a NIC that does not exist."""

    def __init__(self, program: Path, ifname: str, label: str, connections: int) -> None:
        self.ifname = ifname
        super().__init__(program, ifname, label, str(connections))

    def pages(self, regions: stats.Found) -> list[stats.Page]:
        """Return the owner's pages in order of their queues."""
        pages = [page for page in regions.pages if page.pid == self.process.pid]
        return sorted(pages, key=lambda page: stats.read(page.fd).identity.queue)

    def instances(self) -> tuple[Instance, ...]:
        """Return the owner's instances in order of their queues."""
        with stats.find() as regions:
            instances = [
                instance for instance in look(regions).instances if instance.pid == self.process.pid
            ]
        return tuple(sorted(instances, key=lambda instance: instance.snapshot.identity.queue))


class JobOwner(CommandedProgram):
    """lane_owner: a process with a job's page, whose comms and lanes are set by commands."""

    def page(self, regions: stats.Found) -> stats.Page:
        (page_of_job,) = [page for page in regions.jobs if page.pid == self.process.pid]
        return page_of_job

    def job(self) -> stats.Job:
        with stats.find() as regions:
            (result,) = [
                candidate for candidate in look(regions).jobs if candidate.pid == self.process.pid
            ]
        return result


MakeOwner = Callable[..., Owner]


@pytest.fixture
def make_owner(build_dir: Path) -> Iterator[MakeOwner]:
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
    result = make_owner()
    result.send("run 200")
    return result


@pytest.fixture
def make_job(build_dir: Path) -> Iterator[Callable[..., JobOwner]]:
    """A function that starts lane_owner; flows: HARP_PAGE_FLOWS."""
    owners: list[JobOwner] = []

    def make(label: str = "train rank 1", flows: int = 4, ifname: str = "lo") -> JobOwner:
        program = build_dir / "tests" / "unit" / "lane_owner"
        owners.append(JobOwner(program, label, str(flows), ifname))
        return owners[-1]

    yield make
    for owner in owners:
        owner.close()


# The HARP lane carries 5000 of 20000 bytes. The lane of comm 1 dies.
JOB_COMMANDS = (
    "comm 0", "lane 0 0 harp", "lane 0 1 kernel", "bytes 0 0 5000", "bytes 0 1 15000",
    "tcp 0 0 30000 2", "message 0 3 20000", "comm 1", "lane 1 0 kernel", "die 1 0 104",
)  # fmt: skip


@pytest.fixture
def job_owner(make_job: Callable[..., JobOwner]) -> JobOwner:
    result = make_job()
    result.send(*JOB_COMMANDS)
    return result


@contextlib.contextmanager
def serving(source: DaemonSource, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve metrics in this process on an unused port; yield the URL."""
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


def scrape(url: str | urllib.request.Request) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def tool(name: str) -> Path:
    """Return the path of promtool, prometheus or the browser, which tools/setup.sh installs."""
    import shutil

    path = shutil.which(name, path=f"{TOOLS}:{os.environ['PATH']}:/usr/local/bin")
    if path is None:
        pytest.fail(f"{name} is not installed: run `make build-tests`")
    return Path(path)


Documents = tuple[dict[str, Any], dict[str, Any]]


def nic(ifname: str = "eth1", *queues: str, **changes: Any) -> dict[str, Any]:
    """Return a NIC's status: its queues have these states."""
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
    """Return harpd's status and instances; leases: (NIC, queue, PID)."""
    status = {
        "since_s": 1000.0, "nics": list(nics), "dpdk": [], "granted": 0, "refused": {}
    }  # fmt: skip
    instances = [
        {"ifname": ifname, "queue": queue, "pid": pid, "device": None, "queues": 1}
        for ifname, queue, pid in leases
    ]
    return status | changes, {"instances": instances}
