# SPDX-License-Identifier: Apache-2.0
"""Exit codes of harpctl, and the exception that carries them."""

import os
from enum import IntEnum
from typing import Self


class Exit(IntEnum):
    """Exit codes for scripts. The meaning of a number never changes."""

    meaning: str

    def __new__(cls, code: int, meaning: str = "") -> Self:
        """Create a code with its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = 0, "success"
    FAILURE = 1, "failure, or the result is wrong or misses a goal"
    USAGE = 2, "bad usage"  # click's own code
    PRIVILEGE = 3, "needs root"
    MISSING = 4, "a program, library, file or interface is missing"
    WARNING = 5, "check: works, but something costs performance"
    RUNNING = 6, "start: another harpd runs; stop: leases exist"
    NOT_RUNNING = 7, "no harpd runs; stop: and there is nothing to clean up"
    REFUSED = 8, "harpd refuses: not allowed, or no queue free"
    NOT_EXECUTABLE = 126, "run: the command can't be executed"  # a shell's own code, as 127
    NOT_FOUND = 127, "run: the command does not exist"
    INTERRUPTED = 130, "interrupted"

    @classmethod
    def _missing_(cls, value: object) -> "Exit":
        return cls.FAILURE  # another program's code


class HarpError(Exception):
    """An error in one line: what failed, why, and what to do."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code


def needs_root(error: OSError) -> bool:
    """Return whether root could do what failed for this user.

    Parameters
    ----------
    error
        The failure.

    Returns
    -------
    bool
        True for a missing permission of a user other than root.
    """
    return isinstance(error, PermissionError) and os.geteuid() != 0
