# SPDX-License-Identifier: Apache-2.0
"""harpd on real queues: jobs without privileges, deaths, restarts; the program under all of it."""

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Any

import pytest
from harpd_rig import HostDaemon, Job, echo_server, paused
from netns_tools import wait_until

import harp
import harp.stats
from harp import _host
from harp.daemon.kernel import FD_FRAMES
from harp.lab import Lab, LabOptions

PORT = 7000
Send = Callable[[Any], None]


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    """Two hosts, four queues each."""
    with Lab(LabOptions(queues=4)) as lab:
        yield lab


@pytest.fixture
def harpd(lab: Lab) -> Iterator[HostDaemon]:
    """harpd on the first host."""
    with HostDaemon(lab.hosts[0]) as daemon:
        yield daemon.start()


def holder(harpd: HostDaemon, **request: Any) -> Callable[[Send, int], None]:
    """A job that leases, sends its lease, and waits."""

    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fds = client.lease(harpd.host.ifname, **request)
            send((lease, fds))
            paused(wait_fd)

    return work


def echoing(harpd: HostDaemon, address: str) -> Callable[[Send, int], None]:
    """A job that leases an instance, connects, and echoes a number each time it may continue."""

    def work(send: Send, wait_fd: int) -> None:
        socket = str(harpd.socket)
        with harp.Instance(harpd.host.ifname, daemon="require", socket=socket, label="e") as own:
            with own.connect(address, PORT, timeout=20) as end:
                end.timeout = 20
                number = 0
                while True:
                    number += 1
                    end.send_all(struct.pack("Q", number))
                    got = b""
                    while len(got) < 8:
                        got += bytes(end.recv(8 - len(got)))
                    send(struct.unpack("Q", got)[0])
                    if os.read(wait_fd, 1) == b"q":
                        break

    return work


def echo(job: Job, number: int) -> None:
    """The next number came back: the connection lives."""
    job.go()
    assert job.receive() == number


def identity(stat: os.stat_result) -> tuple[int, int]:
    """Return what identifies an open file on this machine."""
    return stat.st_dev, stat.st_ino


def test_descriptors_of_a_job_are_unshared_and_sealed(
    harpd: HostDaemon, jobs: Callable[..., Job]
) -> None:
    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            one, first = client.lease(harpd.host.ifname)
            two, second = client.lease(harpd.host.ifname)
            send((one, two))
            seals = [fcntl.fcntl(fd, fcntl.F_GET_SEALS) for fd in (*first[1:3], *second[1:3])]
            inodes = [identity(os.fstat(fd)) for fd in (*first, *second)]
            frames = {identity(os.fstat(fds[FD_FRAMES])) for fds in (first, second)}
            with pytest.raises(PermissionError):
                os.ftruncate(first[1], 0)
            send((seals, inodes, frames))
            paused(wait_fd)

    job = jobs(work)
    one, two = job.receive()
    assert one.queue != two.queue
    assert one.port_max < two.port_min
    seals, inodes, frames = job.receive()
    assert len(set(inodes)) == 2 * _host.FDS, "nothing is shared"
    # harpd has kept none of it but the memory, which it frees at the end.
    assert harpd.process is not None
    fds = Path(f"/proc/{harpd.process.pid}/fd")

    def kept() -> set[tuple[int, int]]:
        found = set()
        for path in fds.iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                found.add(identity(path.stat()))
        return found & set(inodes)

    # harpd closes the last one after sending: the job may receive the message first.
    wait_until(lambda: kept() == frames, "harpd's duplicates")
    need = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert all(each & need == need for each in seals)


# --------------------------------------------------------------------------------------------------
# Deaths.
#
def queues(harpd: HostDaemon) -> dict[str, str]:
    found: dict[str, str] = harpd.query("status")["nics"][0]["queues"]
    return found


def test_a_forked_child_keeps_only_the_queue(
    lab: Lab, harpd: HostDaemon, jobs: Callable[..., Job]
) -> None:
    def work(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, _ = client.lease(harpd.host.ifname, queue=1)
            # No library's fork handler runs: the child has every descriptor.
            child = CDLL(None).syscall(57)
            if child == 0:
                signal.pause()
            send((lease, child))
            paused(wait_fd)

    job = jobs(work)
    _, child = job.receive()
    job.kill()
    try:
        wait_until(lambda: harpd.query("status")["leases"] == 0, "the lease's end")
        nic = harpd.query("status")["nics"][0]
        assert nic["queues"]["1"] == "recovering"
        assert nic["queues_waiting"]["1"]["pid"] == job.pid
        # Other leases are not delayed, and the queue is not leased.
        other = jobs(holder(harpd))
        assert other.receive()[0].queue == 0
        with harpd.client() as client, pytest.raises(harp.errors.HarpError, match="queue 1"):
            client.lease(harpd.host.ifname, queue=1)
        assert nic["queues"]["1"] == "recovering"
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: queues(harpd)["1"] == "free", "the queue")


# --------------------------------------------------------------------------------------------------
# harpd ends and begins.
#
def test_restart_loses_no_packet_and_refuses_no_client(
    lab: Lab, harpd: HostDaemon, jobs: Callable[..., Job]
) -> None:
    echo_server(lab.hosts[1], PORT)
    job = jobs(echoing(harpd, lab.hosts[1].address))
    number = 1
    assert job.receive() == number
    absent = harpd.query("status")["nics"][0]["verdicts"]["absent"]
    assert harpd.process is not None
    pid = harpd.process.pid
    restarting = subprocess.Popen(
        harpd.harpctl_command("restart"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while restarting.poll() is None:
        number += 1
        echo(job, number)
        # A client that connects during the restart waits and is served.
        with harpd.client() as client:
            assert client.devices
    out, err = restarting.communicate()
    assert restarting.returncode == 0, err
    assert "1 lease taken over" in out
    status = harpd.query("status")
    assert status["pid"] == pid, "the same process, executed anew"
    assert status["nics"][0]["verdicts"]["absent"] == absent, "no packet of the job's lost it"
    echo(job, number + 1)
