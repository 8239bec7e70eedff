# SPDX-License-Identifier: Apache-2.0
"""harpd in a thread of the test, and clients in forked processes."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel
from lease_client import LeaseClient

from harp._host import Kind
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.daemon import Daemon
from harp.daemon.loop import close_all
from harp.daemon.messages import Hello, pack, unpack
from harp.nicprep import Preparation, Record, Undo

NOBODY = 65534


class NoPreparation(Preparation):
    """A preparation that changes no NIC."""

    def prepare(self, _nics: object, _huge_pages: int, undo: Undo, record: Record) -> None:
        record(undo)

    def restore(self, _undo: Undo, _record: Record) -> None:
        """Nothing was changed."""


class Running:
    """harpd that serves in a thread of this process."""

    def __init__(self, daemon: Daemon, kernel: FakeKernel) -> None:
        self.daemon, self.kernel = daemon, kernel
        self._thread = threading.Thread(target=daemon.serve, name="harpd")
        self._thread.start()

    @property
    def path(self) -> Path:
        return self.daemon.settings.socket_path

    def client(self, timeout_s: float = 10) -> LeaseClient:
        return LeaseClient(self.path, "test", timeout_s)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in harpd's thread; return its result."""
        done, result = threading.Event(), []

        def body() -> None:
            try:
                result.append(function())
            finally:
                done.set()

        self.daemon.loop.call_soon_threadsafe(body)
        assert done.wait(10)
        return result[0]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition is true in harpd's thread."""
        for _ in range(500):
            if self.call(condition):
                return
            threading.Event().wait(0.01)
        pytest.fail(f"timeout while waiting for {what}")

    def end(self, remove: bool) -> None:
        """End harpd as SIGTERM does while leases exist, or (remove) as `harpctl stop` does."""
        self.daemon.loop.call_soon_threadsafe(lambda: self.daemon._end(remove=remove))
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


Start = Callable[..., Running]  # the fixture `start`


def close_inherited(*keep: int) -> None:
    """Close the descriptors of harpd, such as its lock, in a forked child."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


def connect(path: Path) -> socket.socket:
    """Return a connection without HELLO."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(10)
    sock.connect(str(path))
    return sock


def greet(path: Path) -> socket.socket:
    """Connect, send HELLO and read WELCOME."""
    sock = connect(path)
    sock.send(pack(Kind.HELLO, 1, Hello("test")))
    assert unpack(sock.recv(65536)).kind is Kind.WELCOME
    return sock


@contextlib.contextmanager
def listener(path: Path, backlog: int, uid: int = 0) -> Iterator[socket.socket]:
    """A socket at harpd's path from which no connection is accepted."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))
        path.chmod(0o666)
        os.seteuid(uid)  # SO_PEERCRED names the user that called listen()
        try:
            sock.listen(backlog)
        finally:
            os.seteuid(0)
        yield sock


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def lease_once(client: LeaseClient, ifname: str, **request: Any) -> None:
    """Lease an instance and return it."""
    client.release(client.take(ifname, **request).lease_id)


def refusal(
    request: Callable[..., object], *arguments: Any, **keywords: Any
) -> RefusedByDaemonError:
    """Return the error with which harpd refuses a request."""
    with pytest.raises(RefusedByDaemonError) as failure:
        request(*arguments, **keywords)
    return failure.value


def lease_queue(client: LeaseClient) -> None:
    """Lease a queue of eth0; the default of holder()."""
    client.lease("eth0", label="holder")


def holder(path: Path, lease: Callable[[LeaseClient], object] = lease_queue) -> tuple[int, int]:
    """Start a process that leases and waits; return its PID and the pipe that ends it."""
    (ready_fd, leased_fd), (wait_fd, end_fd) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            close_inherited(leased_fd, wait_fd)
            with LeaseClient(path, "holder") as client:
                lease(client)
                os.write(leased_fd, b"x")
                os.read(wait_fd, 1)
        finally:
            os._exit(0)
    close_all([leased_fd, wait_fd])
    assert os.read(ready_fd, 1) == b"x"
    os.close(ready_fd)
    return pid, end_fd


def kill(pid: int, end_fd: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(end_fd)


def in_child(work: Callable[[], Any], uid: int | None = None) -> Any:
    """Run work() in a forked process, as another user if given; return its result."""
    receiving, sending = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            close_inherited(sending.fileno())
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            try:
                result = (True, work())
            except BaseException as error:
                result = (False, f"{type(error).__name__}: {error}")
            sending.send(result)
        finally:
            os._exit(0)
    sending.close()
    with receiving:
        succeeded, value = receiving.recv()
    os.waitpid(pid, 0)
    assert succeeded, value
    return value
