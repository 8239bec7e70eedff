# SPDX-License-Identifier: Apache-2.0
"""harpd's event loop: asyncio's, with worker threads for slow work.

An exception in a callback or a task is a bug. The loop logs it and continues, because all jobs
depend on harpd. Slow work (allocating frames, reading pages) runs in a worker thread. Only the
loop's thread uses harpd's state.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from harp.errors import HarpError

log = logging.getLogger("harpd")
T = TypeVar("T")
WORKERS = 4
LAST_ITERATIONS = 6  # a worker's result passes a chain of up to 4 futures and tasks


class Loop(asyncio.SelectorEventLoop):
    """The event loop. Only call_soon_threadsafe() is thread-safe. HarpError: no workers."""

    def __init__(self) -> None:
        super().__init__()
        try:
            self._workers = _start_workers()
        except HarpError:
            super().close()
            raise
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends = False
        self._signals: set[signal.Signals] = set()
        self.set_exception_handler(_log_bug)

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call callback() periodically, until the loop is closed."""

        def call() -> None:
            self.call_later(period_s, call)
            callback()

        self.call_later(period_s, call)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a task, which finish_work() cancels."""
        task = self.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)
        return task

    def work(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        """Run job() in a worker; the future is canceled after finish_work()."""
        if self._ends:
            canceled: asyncio.Future[T] = self.create_future()
            canceled.cancel()
            return canceled
        return self.run_in_executor(self._workers, job)

    async def wait_ready(self, sock: socket.socket, write: bool = False) -> None:
        """Wait until a socket can be read, or written. At most one task may wait for each."""
        add, remove = self.add_reader, self.remove_reader
        if write:
            add, remove = self.add_writer, self.remove_writer
        ready: asyncio.Future[None] = self.create_future()

        def on_ready() -> None:
            if not ready.done():
                ready.set_result(None)

        add(sock, on_ready)
        try:
            await ready
        finally:
            if sock.fileno() >= 0:
                remove(sock)

    def on_signal(self, number: signal.Signals, callback: Callable[[], object]) -> None:
        """Run callback() in the loop at the signal, which is unblocked. Main thread only."""
        self._signals.add(number)
        self.add_signal_handler(number, callback)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def finish_work(self) -> None:
        """Wait for the workers, let tasks process the results, and cancel all other tasks. The loop
        must not be running.
        """
        self._ends = True
        self._workers.shutdown(wait=True)
        for _ in range(LAST_ITERATIONS):
            self._iterate()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            self._iterate()

    def _iterate(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()

    def close(self) -> None:
        """Close the loop, after finish_work(); signals stay blocked after it."""
        self._workers.shutdown(wait=True)
        # Signals do not interrupt the rest of the shutdown; after a restart the next harpd gets
        # them.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        super().close()


def _start_workers() -> ThreadPoolExecutor:
    """Start all workers now. If submit() failed to start one later, it would raise, but another
    worker would run the job, and its descriptors would leak.
    """
    workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="harpd-work")
    # submit() starts a thread only if no thread is idle.
    occupied = threading.Barrier(WORKERS + 1)
    try:
        for _ in range(WORKERS):
            workers.submit(occupied.wait)
    except RuntimeError as error:
        occupied.abort()
        workers.shutdown(wait=True)
        raise HarpError(
            f"harpd's worker threads: {error}; raise TasksMax= or RLIMIT_NPROC"
        ) from error
    occupied.wait()
    return workers


def _log_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    reason = f"{type(error).__name__}: {error}" if error is not None else context["message"]
    log.error("internal error: %s; please report it", reason)
    log.debug("where", exc_info=error)


def close_all(fds: list[int]) -> None:
    """Close descriptors and forget them."""
    while fds:
        os.close(fds.pop())
