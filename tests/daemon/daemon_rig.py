# SPDX-License-Identifier: Apache-2.0
"""A harpd in a thread of the test, and clients in processes of their own."""

import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel

from harp.daemon.client import DaemonClient
from harp.daemon.daemon import Daemon

NOBODY = 65534


class Running:
    """A harpd that serves in a thread of ours."""

    def __init__(self, daemon: Daemon, kernel: FakeKernel) -> None:
        self.daemon, self.kernel = daemon, kernel
        self._thread = threading.Thread(target=daemon.serve, name="harpd")
        self._thread.start()

    @property
    def path(self) -> Path:
        return self.daemon.settings.socket_path

    def client(self, timeout_s: float = 10) -> DaemonClient:
        return DaemonClient(self.path, "test", timeout_s)

    def call(self, what: Callable[[], Any]) -> Any:
        """Runs something in harpd's thread, and waits for it."""
        done, result = threading.Event(), []

        def body() -> None:
            try:
                result.append(what())
            finally:
                done.set()

        self.daemon.loop.call_soon_threadsafe(body)
        assert done.wait(10)
        return result[0]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits, turn by turn of harpd's loop, until something is so."""
        for _ in range(500):
            if self.call(condition):
                return
            threading.Event().wait(0.01)
        pytest.fail(f"{what}: never")

    def end(self, remove: bool) -> None:
        """As SIGTERM with leases (remove False), or as a stop."""
        self.daemon.loop.call_soon_threadsafe(lambda: self.daemon._end(remove=remove))
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


def leave_harpd(*keep: int) -> None:
    """In a forked child: harpd's own descriptors, its lock among them, are none of a client's."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2 and int(path.name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(path.name))


def in_child(work: Callable[[], Any], uid: int | None = None) -> Any:
    """Runs work() in a forked process, of another user if asked; what it returned or raised."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            leave_harpd(writing)
            if uid is not None and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            try:
                result = (True, work())
            except BaseException as error:
                result = (False, f"{type(error).__name__}: {error}")
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(pid, 0)
    good, value = pickle.loads(raw)
    assert good, value
    return value
