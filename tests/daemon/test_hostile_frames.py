# SPDX-License-Identifier: Apache-2.0
"""After the end of a lease, a job keeps neither its frame memory nor its queue."""

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import close_inherited, lease_once
from harpd_rig import HostDaemon, Job, Send, Work, wait_for_go
from netns_tools import wait_until

from harp.daemon import frames
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.kernel import FD_FRAMES
from harp.daemon.loop import close_all
from harp.lab import Lab

FRAMES = 4096
LEASES = 6


@pytest.fixture
def harpd(lab: Lab) -> Iterator[HostDaemon]:
    with HostDaemon(lab.hosts[0], "port_rest_ms = 0") as daemon:
        yield daemon.start()


def held_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def take_lease(client: Any, ifname: str) -> tuple[Any, int, list[int]]:
    """Return a lease, its frame memory, all of it allocated, and its other descriptors."""
    lease, fds = client.lease(ifname, frame_count=FRAMES)
    frames_fd = fds.pop(FD_FRAMES)
    assert held_bytes(frames_fd) == lease.frame_count * lease.frame_size
    return lease, frames_fd, fds


def frame_links(pid: int) -> list[Path]:
    """Return the links in /proc of a process to frame memory."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the directory itself
            if "harp-frames" in str(link.readlink()):
                links.append(link)
    return links


def wait_for_no_leases(harpd: HostDaemon) -> None:
    wait_until(lambda: not harpd.query("instances")["instances"], "the end of all leases")


def test_memory_does_not_outlive_its_lease(harpd: HostDaemon) -> None:
    """The job returns several leases and keeps the memory and a mapping of each."""
    ifname = harpd.host.ifname

    def work(send: Send, _wait_fd: int) -> None:
        with harpd.client() as client:
            mappings = []
            for _ in range(LEASES):
                lease, fd, others = take_lease(client, ifname)
                close_all(others)
                client.release(lease.lease_id)
                mappings.append((fd, mmap.mmap(fd, os.fstat(fd).st_size)))
            wait_until(lambda: not any(held_bytes(fd) for fd, _ in mappings), "empty files")
            # It can't be resized and reads as zeros; pages that the job writes count as its own.
            fd, pages = mappings[0]
            for change in (lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 30)):
                with pytest.raises(PermissionError):
                    change()
            pages[0] = 1
            send(held_bytes(fd) - os.sysconf("SC_PAGESIZE"))

    with Job(work) as job:
        assert job.receive(60) == 0


def leasing_job(harpd: HostDaemon, mapped: bool) -> Work:
    """Return a job that keeps its frame memory mapped, as real jobs do, or open."""

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fd, _ = take_lease(client, harpd.host.ifname)
            pages = mmap.mmap(fd, os.fstat(fd).st_size)
            while mapped and (links := frame_links(os.getpid())):
                os.close(int(links[0].name))  # the descriptors of the client and of the mapping
            send(len(frame_links(os.getpid())) > 0)
            wait_for_go(wait_fd)
            del pages
            send(lease.lease_id)

    return work


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[int]:
    process = Path("/proc", str(pid))
    paths = frame_links(pid)
    for line in (process / "maps").read_text().splitlines():
        if "harp-frames" in line:
            paths.append(process / "map_files" / frames._without_zeros(line.split()[0]))
    with paths[0].open("rb", buffering=0) as file:
        yield file.fileno()


@pytest.mark.parametrize(
    ("end", "mapped"), [("killed", True), ("ended", False), ("restarted", True)]
)
def test_memory_is_freed_after_a_restart(harpd: HostDaemon, end: str, mapped: bool) -> None:
    with Job(leasing_job(harpd, mapped)) as job:
        assert job.receive() is not mapped
        with memory_of(job.pid) as frames_fd:
            if end == "restarted":
                assert harpd.harpctl("restart").returncode == 0
            else:
                harpd.end(signal.SIGKILL if end == "killed" else signal.SIGTERM)
                harpd.start()
            assert len(harpd.query("instances")["instances"]) == 1
            assert held_bytes(frames_fd) > 0
            job.kill()
            wait_for_no_leases(harpd)
            wait_until(lambda: held_bytes(frames_fd) == 0, "the release of the memory")


def hider(harpd: HostDaemon) -> Work:
    """Return a job that holds its frame memory only in a child."""

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            _, fd, _ = take_lease(client, harpd.host.ifname)
            child = os.fork()
            if child == 0:
                close_inherited(fd, wait_fd)
                wait_for_go(wait_fd)
                os._exit(0)
            os.close(fd)
            send(child)
            wait_for_go(wait_fd)
            os.waitpid(child, 0)

    return work


@pytest.mark.parametrize("end", ["killed", "restarted"])
def test_memory_that_is_hidden_in_another_process(harpd: HostDaemon, end: str) -> None:
    """`harpctl restart` keeps harpd's descriptor. A killed harpd loses it, so the lease ends."""
    with Job(hider(harpd)) as job:
        child = job.receive()
        with memory_of(child) as frames_fd:
            if end == "restarted":
                assert harpd.harpctl("restart").returncode == 0
                job.kill()
                wait_for_no_leases(harpd)
                wait_until(lambda: held_bytes(frames_fd) == 0, "the release of the memory")
                os.kill(child, signal.SIGKILL)
            else:
                harpd.end(signal.SIGKILL)
                harpd.start()
                assert harpd.query("instances")["instances"] == []
                log = harpd.log_text()
                assert "has neither opened nor mapped the lease's frame memory" in log
                job.go()
                job.go()
                assert job.join() == 0


def test_a_file_of_a_disk_is_not_emptied(tmp_path: Path) -> None:
    """The search opens only memfds, even if state.json names another file."""
    path = tmp_path / "file"
    path.write_text("kept")
    with path.open() as file:
        assert frames.search(os.getpid(), frames.identity(os.fstat(file.fileno()))) == -1
    assert path.read_text() == "kept"


def test_a_forked_child_of_a_killed_job_keeps_only_the_queue(harpd: HostDaemon) -> None:
    ifname = harpd.host.ifname

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            client.lease(ifname, queue=1)
            child = CDLL(None).syscall(57)  # fork() without any library's handlers
            if child == 0:
                signal.pause()
            send(child)
            wait_for_go(wait_fd)

    job = Job(work)
    child = job.receive()
    job.kill()
    try:
        wait_for_no_leases(harpd)
        nic = harpd.query("status")["nics"][0]
        assert nic["queues"]["1"] == "recovering"
        assert nic["queues_waiting"]["1"]["pid"] == job.pid
        with harpd.client() as client:
            lease_once(client, ifname)
            with pytest.raises(RefusedByDaemonError, match="queue 1"):
                client.lease(ifname, queue=1)
    finally:
        os.kill(child, signal.SIGKILL)
        job.close()
    wait_until(lambda: harpd.query("status")["nics"][0]["queues"]["1"] == "free", "the queue")
