# SPDX-License-Identifier: Apache-2.0
"""Objects that are closed at the end of a `with` block, and signals that end it."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise an exception like Ctrl-C, so that everything is removed. A
    signal that is ignored (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, unwind)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP at the end of the block, so that a process which starts in
    it is known before an exception unwinds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, *_SIGNALS)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)


class Closing:
    """A context manager by its close(), which may be called twice."""

    def close(self) -> None:
        """Release everything that the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
