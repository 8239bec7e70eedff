# SPDX-License-Identifier: Apache-2.0
"""A tool controlled by a pipe: a line to it, a line back; it ends with its stdin."""

import subprocess

from harp.errors import HarpError
from harp.waiting import readable

_ANSWER_S = 20


class PipedTool:
    """A process that was started with pipes, and prints "ready" first."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process
        self._expect("ready")

    def close(self) -> None:
        """End the tool, which undoes its changes. May be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.wait(_ANSWER_S)

    def ask(self, command: str) -> str:
        """Send one line and return the answer; HarpError with the tool's own message after its
        end.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise HarpError(f"{self._name} is gone: {self._complaint()}") from None
        return self._line()

    def tell(self, command: str) -> None:
        """Send one line whose answer must be "ok"."""
        self._check("ok", self.ask(command))

    # ----------------------------------------------------------------------------------------------

    def _line(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        if not readable([stdout.fileno()], _ANSWER_S):
            raise HarpError(f"{self._name}: no answer in {_ANSWER_S} s")
        line = str(stdout.readline()).rstrip("\n")
        if not line:
            raise HarpError(f"{self._name} ended: {self._complaint()}")
        return line

    def _expect(self, wanted: str) -> None:
        self._check(wanted, self._line())

    def _check(self, wanted: str, line: str) -> None:
        if line != wanted:
            raise HarpError(f"{self._name} said {line!r} instead of {wanted!r}")

    def _complaint(self) -> str:
        _, words = self._process.communicate(timeout=_ANSWER_S)
        return str(words).strip() or f"exit status {self._process.returncode}"
