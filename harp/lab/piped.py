# SPDX-License-Identifier: Apache-2.0
"""A program controlled by a pipe: a line to it, a line back; it ends with its stdin."""

import contextlib
import subprocess
from typing import Any

from harp.closing import Closing
from harp.errors import HarpError
from harp.waiting import readable

_ANSWER_S = 20.0


class Piped(Closing):
    """A process that was started with pipes.

    Parameters
    ----------
    name
        Of the program, for error messages.
    process
        The process, which belongs to this object from here on.
    """

    limit_s = _ANSWER_S  # for an answer
    end_s = _ANSWER_S

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name, self.process = name, process

    def send(self, command: str) -> None:
        """Send a line without waiting for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def line(self, limit_s: float | None = None) -> str:
        """Return the next line; HarpError when there is none in time, or the process has ended."""
        limit_s = limit_s or self.limit_s
        stdout = self.process.stdout
        assert stdout is not None
        if not readable([stdout.fileno()], limit_s):
            raise self.late(limit_s)
        line = str(stdout.readline())
        if not line:
            raise self.ended()
        return line.rstrip("\n")

    def late(self, limit_s: float) -> HarpError:
        """Return the error of a process that does not answer."""
        return HarpError(f"{self.name}: no answer in {limit_s:.0f} s")

    def ended(self) -> HarpError:
        """Return the error of a process that has ended, with its last words."""
        _, words = self.process.communicate(timeout=self.end_s)
        lines = str(words or "").strip().splitlines() or [f"exit status {self.process.returncode}"]
        return HarpError(f"{self.name} ended: {lines[-1]}")

    def end(self) -> None:
        """Close its stdin, at which it ends. Does not wait."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        """End the process and wait for it. May be called twice."""
        self.end()
        try:
            self.process.wait(self.end_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class PipedTool(Piped):
    """One of HARP's test programs, which prints "ready" first. Its end undoes its changes."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        super().__init__(name, process)
        self._expect("ready")

    def ask(self, command: str) -> str:
        """Send a line and return the answer."""
        self.send(command)
        return self.line()

    def tell(self, command: str) -> None:
        """Send a line whose answer must be "ok"."""
        self.send(command)
        self._expect("ok")

    def _expect(self, wanted: str) -> None:
        line: Any = self.line()
        if line != wanted:
            raise HarpError(f"{self.name} said {line!r} instead of {wanted!r}")
