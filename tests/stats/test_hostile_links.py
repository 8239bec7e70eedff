# SPDX-License-Identifier: Apache-2.0
"""A process that swaps its descriptors while they are looked at: nothing but memfds is opened."""

import errno
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp import _page, memfd
from harp.procfs import PROC
from harp.stats import discover

LOOKS = 1500


@contextmanager
def child(body: object) -> Iterator[int]:
    """A forked process that runs body(); it is killed at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            assert callable(body)
            body()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def watched_fifo(path: Path) -> Iterator[int]:
    """A FIFO, and a pidfd that is readable once a process has opened it to read.

    The child's open() waits for a reader. It returns even if the reader has gone again.
    """
    os.mkfifo(path)
    with child(lambda: os.open(path, os.O_WRONLY)) as pid:
        pidfd = os.pidfd_open(pid)
        try:
            yield pidfd
        finally:
            os.close(pidfd)


def is_opened(pidfd: int, seconds: float = 0) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def test_a_swapped_descriptor_opens_no_fifo(tmp_path: Path) -> None:
    """The link says "harp-page" when it is read, and leads to a FIFO when it is opened."""
    fifo = tmp_path / "fifo"
    ready, begun = os.pipe()

    def swap() -> None:
        page = os.memfd_create(_page.LINK.removeprefix("/memfd:").split()[0])
        pipe = os.open(fifo, os.O_PATH)  # neither reads nor writes: opens nothing
        victim = os.dup(page)
        os.write(begun, b"x")
        while True:
            os.dup2(pipe, victim)
            os.dup2(page, victim)

    with watched_fifo(fifo) as pidfd, child(swap) as pid:
        os.read(ready, 1)
        seen = 0
        for _ in range(LOOKS):
            search = discover._Search(PROC)
            search.examine(pid)
            # The memfd is empty, so it is reported.
            seen += len(search.found.bad)
        assert seen > LOOKS // 10, "the search met the memfd"
        assert not is_opened(pidfd)
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
        assert is_opened(pidfd, 20), "an open would have been seen"
    for fd in (ready, begun):
        os.close(fd)


@pytest.mark.parametrize("kind", ["fifo", "terminal", "device", "file", "directory", "socket"])
def test_only_memory_is_opened(tmp_path: Path, kind: str) -> None:
    """Whatever a link leads to at the moment at which it is opened."""
    held = []
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
        held.append(os.open(path, os.O_PATH))
    elif kind == "terminal":
        held += os.openpty()
        held.reverse()
    elif kind == "device":
        held.append(os.open("/dev/null", os.O_RDONLY))
    elif kind == "file":
        path.write_text("x")
        held.append(os.open(path, os.O_RDONLY))
    elif kind == "directory":
        held.append(os.open(tmp_path, os.O_RDONLY))
    else:
        held += os.pipe()
    try:
        with pytest.raises(memfd.NotMemoryError) as raised:
            memfd.open_link(Path("/proc/self/fd", str(held[0])), os.O_RDONLY)
        assert raised.value.errno == errno.EINVAL
    finally:
        for fd in held:
            os.close(fd)
