# SPDX-License-Identifier: Apache-2.0
"""harpd's event loop: descriptors, timers, signals, and a few workers for slow jobs.

A callback that raises is a bug: it is logged and the loop continues, because all jobs depend on it.
Slow work (allocating frames, reading pages) runs in a worker thread, and its result comes back as a
callback. Only the loop's thread touches harpd's state.
"""

import contextlib
import heapq
import itertools
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

log = logging.getLogger("harpd")
T = TypeVar("T")
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
WORKERS = 4


class Timer:
    """A scheduled call."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call. Safe at any time."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, unless it was canceled or made before."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """The event loop. Only soon() and ask() may be called by other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = itertools.count()
        self._running = False
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="harpd-work")
        self._finished: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._signals: dict[int, Callable[[], None]] = {}
        self._came: set[int] = set()  # signals with a handler
        self._signal_fd_before = -1
        self.watch(self._wake_in.fileno(), READ, self._woken)

    @staticmethod
    def now_s() -> float:
        """Return the clock of timers."""
        return time.monotonic()

    # ---- descriptors ----

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call callback(events) whenever fd is ready; replaces the previous watch."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Stop watching; does nothing for an unwatched descriptor."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def watched(self, fd: int) -> int:
        """Return the watched events; 0: none."""
        key = self._selector.get_map().get(fd)
        return key.events if key is not None else 0

    # ---- time ----

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call once, after delay_s seconds."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now_s() + delay_s, next(self._serial), timer))
        return timer

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call repeatedly, for the life of the loop."""

        def again() -> None:
            self.after(period_s, again)
            callback()

        self.after(period_s, again)

    # ---- work ----

    def work(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run job() in a worker, then done(result, error) in the loop."""

        def body() -> None:
            result, failure = None, None
            try:
                result = job()
            except BaseException as error:
                failure = error
            self.soon(lambda: done(result, failure))

        with contextlib.suppress(RuntimeError):  # after finish_work(): harpd ends
            self._workers.submit(body)

    def soon(self, callback: Callable[[], None]) -> None:
        """Run callback() in the loop. Any thread may call this."""
        with self._lock:
            self._finished.append(callback)
        self._wake()

    def ask(self, question: Callable[[], T], limit_s: float) -> T:
        """Return question() evaluated by the loop, for another thread; TimeoutError if the loop is
        busy.
        """
        answer: Future[T] = Future()

        def body() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        self.soon(body)
        return answer.result(limit_s)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it wakes the loop anyway
            self._wake_out.send(b"\0")

    def _woken(self, _events: int) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            return
        came, self._came = self._came, set()
        for number in sorted(came):
            self._call(self._signals[number])
        while True:
            with self._lock:
                if not self._finished:
                    return
                callback = self._finished.popleft()
            self._call(callback)

    # ---- signals ----

    def on_signal(self, number: signal.Signals, callback: Callable[[], None]) -> None:
        """Run callback() in the loop when the signal arrives, or arrived while it was blocked. Main
        thread only.
        """
        if not self._signals:
            # The descriptor only wakes the loop, so that Python calls the handler. It does not
            # identify the signal: its buffer may be full when many signals arrive while the loop is
            # busy.
            self._signal_fd_before = signal.set_wakeup_fd(
                self._wake_out.fileno(), warn_on_full_buffer=False
            )
        self._signals[number] = callback
        signal.signal(number, self._signalled)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def _signalled(self, number: int, _frame: object) -> None:
        self._came.add(number)
        self._wake()

    # ---- running ----

    @staticmethod
    def _call(callback: Callable[..., None], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            log.error("internal error: %s: %s; please report it", type(error).__name__, error)
            log.debug("where", exc_info=True)

    def stop(self) -> None:
        """Make run() return after this turn."""
        self._running = False

    def turn(self, limit_s: float | None = None) -> None:
        """Wait at most limit_s seconds, and handle everything that is ready."""
        wait_s = limit_s
        if self._timers:
            until_s = max(0.0, self._timers[0][0] - self.now_s())
            wait_s = until_s if wait_s is None else min(wait_s, until_s)
        for key, events in self._selector.select(wait_s):
            # A callback may have closed or unwatched what another event belongs to.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:
                self._call(key.data, events)
        now_s = self.now_s()
        while self._timers and self._timers[0][0] <= now_s:
            self._call(heapq.heappop(self._timers)[2].fire)

    def run(self) -> None:
        """Run turns until stop()."""
        self._running = True
        while self._running:
            self.turn()

    def finish_work(self) -> None:
        """Wait for the workers and deliver their results; accept no more work."""
        self._workers.shutdown(wait=True)
        while self._finished:
            self._call(self._finished.popleft())

    def close(self) -> None:
        """Close the loop, after finish_work(); the callers close their descriptors. Signals are
        blocked from now on.
        """
        self._workers.shutdown(wait=True)
        if self._signals:
            # The rest of the shutdown is not interrupted; a harpd that is executed again gets the
            # signals.
            signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
            signal.set_wakeup_fd(self._signal_fd_before)
            for number in self._signals:
                signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for end in (self._wake_in, self._wake_out):
            end.close()


def close_all(fds: list[int]) -> None:
    """Close descriptors and forget them."""
    while fds:
        os.close(fds.pop())
