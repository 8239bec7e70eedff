# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration: all of it, each in one line with its place."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harp.errors import Exit, HarpError


@dataclass(frozen=True)
class Problem:
    """One thing wrong. place: file:line:column or "environment"; key: tcp.ecn, HARP_ECN or ""."""

    place: str
    key: str
    message: str

    @property
    def position(self) -> tuple[bool, tuple[int, ...]]:
        """To sort by: a file's problems first, from its top to its end."""
        match = re.search(r":(\d+)(?::(\d+))?$", self.place)
        return match is None, tuple(int(number or 0) for number in match.groups()) if match else ()

    def __str__(self) -> str:
        return f"{self.place}: {self.key}{' ' if self.key else ''}{self.message}"


class ConfigError(HarpError):
    """A configuration that can't be used; problems has everything found, the message too."""

    def __init__(self, problems: Sequence[Problem], code: Exit = Exit.FAILURE) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), code)
        self.problems = tuple(problems)
