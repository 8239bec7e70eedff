# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a configuration: all of them, each in one line with its position."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harp.errors import Exit, HarpError


@dataclass(frozen=True)
class Problem:
    """One mistake. place: file:line:column or "environment"; key: tcp.ecn, HARP_ECN or ""."""

    place: str
    key: str
    message: str

    @property
    def position(self) -> tuple[bool, tuple[int, ...]]:
        """Sort key: a file's problems first, from top to bottom."""
        match = re.search(r":(\d+)(?::(\d+))?$", self.place)
        return match is None, tuple(int(number or 0) for number in match.groups()) if match else ()

    def __str__(self) -> str:
        return f"{self.place}: {self.key}{' ' if self.key else ''}{self.message}"


class ConfigError(HarpError):
    """An invalid configuration; problems lists every mistake, and so does the message."""

    def __init__(self, problems: Sequence[Problem], code: Exit = Exit.FAILURE) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), code)
        self.problems = tuple(problems)
