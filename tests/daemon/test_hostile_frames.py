# SPDX-License-Identifier: Apache-2.0
"""What a job keeps of leases that are over: empty files instead of frame memory, and no queue."""

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import lease_once, leave_harpd
from harpd_rig import HostDaemon, Job, Send, Work, paused
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
    """The memory of a file."""
    return os.fstat(fd).st_blocks * 512


def leased(client: Any, ifname: str) -> tuple[Any, int, list[int]]:
    """A lease, its frame memory, which is all there, and its other descriptors."""
    lease, fds = client.lease(ifname, frame_count=FRAMES)
    kept = fds.pop(FD_FRAMES)
    assert held_bytes(kept) == lease.frame_count * lease.frame_size
    return lease, kept, fds


def frame_links(pid: int) -> list[Path]:
    """Descriptors of a process that are frame memory."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the directory's own
            if "harp-frames" in str(link.readlink()):
                found.append(link)
    return found


def no_leases(harpd: HostDaemon) -> None:
    wait_until(lambda: not harpd.query("instances")["instances"], "the leases' end")


def test_memory_does_not_outlive_its_lease(harpd: HostDaemon) -> None:
    """As often as the job likes: each lease is given back, its memory and a mapping are kept."""
    ifname = harpd.host.ifname

    def work(send: Send, _wait_fd: int) -> None:
        with harpd.client() as client:
            kept = []
            for _ in range(LEASES):
                lease, fd, others = leased(client, ifname)
                close_all(others)
                client.release(lease.lease_id)
                kept.append((fd, mmap.mmap(fd, os.fstat(fd).st_size)))
            wait_until(lambda: not any(held_bytes(fd) for fd, _ in kept), "all are empty")
            # It reads as zeros, may not be sealed or resized, and is written at one's own expense.
            fd, pages = kept[0]
            for change in (lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 30)):
                with pytest.raises(PermissionError):
                    change()
            pages[0] = 1
            send(held_bytes(fd) - os.sysconf("SC_PAGESIZE"))

    with Job(work) as job:
        assert job.receive(60) == 0


def leasing_job(harpd: HostDaemon, mapped: bool) -> Work:
    """A job with a lease that keeps its memory: mapped, as jobs do, or open."""

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fd, _ = leased(client, harpd.host.ifname)
            pages = mmap.mmap(fd, os.fstat(fd).st_size)
            while mapped and (links := frame_links(os.getpid())):
                os.close(int(links[0].name))  # the client's, and that of the mapping
            send(len(frame_links(os.getpid())) > 0)
            paused(wait_fd)
            del pages
            send(lease.lease_id)

    return work


@contextlib.contextmanager
def memory_of(pid: int) -> Iterator[int]:
    """A process's frame memory, open here."""
    process = Path("/proc", str(pid))
    paths = frame_links(pid)
    for line in (process / "maps").read_text().splitlines():
        if "harp-frames" in line:
            paths.append(process / "map_files" / frames._without_zeros(line.split()[0]))
    with paths[0].open("rb", buffering=0) as file:
        yield file.fileno()


@pytest.mark.parametrize(
    ("way", "mapped"), [("killed", True), ("ended", False), ("restarted", True)]
)
def test_memory_is_freed_after_a_restart(harpd: HostDaemon, way: str, mapped: bool) -> None:
    with Job(leasing_job(harpd, mapped)) as job:
        assert job.receive() is not mapped
        with memory_of(job.pid) as kept:
            if way == "restarted":
                assert harpd.harpctl("restart").returncode == 0
            else:
                harpd.end(signal.SIGKILL if way == "killed" else signal.SIGTERM)
                harpd.start()
            assert len(harpd.query("instances")["instances"]) == 1
            assert held_bytes(kept) > 0
            job.kill()
            no_leases(harpd)
            wait_until(lambda: held_bytes(kept) == 0, "the memory is freed")


def hider(harpd: HostDaemon) -> Work:
    """A job of which only a child has the frame memory."""

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            _, fd, _ = leased(client, harpd.host.ifname)
            child = os.fork()
            if child == 0:
                leave_harpd(fd, wait_fd)
                paused(wait_fd)
                os._exit(0)
            os.close(fd)
            send(child)
            paused(wait_fd)
            os.waitpid(child, 0)

    return work


@pytest.mark.parametrize("way", ["killed", "restarted"])
def test_memory_that_is_hidden_in_another_process(harpd: HostDaemon, way: str) -> None:
    """`harpctl restart` hands the descriptor on. A harpd that was killed has lost it, and the lease
    of a job that hides its memory is over."""
    with Job(hider(harpd)) as job:
        child = job.receive()
        with memory_of(child) as kept:
            if way == "restarted":
                assert harpd.harpctl("restart").returncode == 0
                job.kill()
                no_leases(harpd)
                wait_until(lambda: held_bytes(kept) == 0, "the memory is freed")
                os.kill(child, signal.SIGKILL)
            else:
                harpd.end(signal.SIGKILL)
                harpd.start()
                assert harpd.query("instances")["instances"] == []
                log = harpd.log_text()
                assert "has neither open nor mapped what was its frame memory" in log
                job.go()
                job.go()
                assert job.join() == 0


def test_a_file_of_a_disk_is_not_emptied(tmp_path: Path) -> None:
    """The search opens memfds only, whatever state.json contains."""
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
            paused(wait_fd)

    job = Job(work)
    child = job.receive()
    job.kill()
    try:
        no_leases(harpd)
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
