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
    signal that is ignored (nohup) stays ignored, and only the main thread can handle signals.
    """

    def unwind(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    handled = [n for n in _SIGNALS if is_main and signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, unwind) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Closing:
    """A context manager by its close(), which may be called twice."""

    def close(self) -> None:
        """Release everything that the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
