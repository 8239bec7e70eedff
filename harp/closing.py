# SPDX-License-Identifier: Apache-2.0
"""Objects that are closed at the end of a `with` block, and signals that end it."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals with this handler inside the block; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, so that `with` blocks clean up. An ignored
    signal (nohup) stays ignored.
    """

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled([n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN], unwind):
        yield


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP to the end of the block, so that a process which the block
    starts is recorded before an exception unwinds.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    numbers = [n for n in (signal.SIGINT, *_SIGNALS) if callable(signal.getsignal(n))]
    try:
        with _handled(numbers, note):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)


class Closing:
    """A context manager that calls close() at the end; close() may be called twice."""

    def close(self) -> None:
        """Release all resources of the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
