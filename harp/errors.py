# SPDX-License-Identifier: Apache-2.0
"""Exit codes of harpctl, and the exception that carries them."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes for scripts; the numbers never change their meaning."""

    OK = 0
    FAILURE = 1  # it ran, and the result is wrong or misses a goal
    USAGE = 2  # bad usage (click's own code)
    PRIVILEGE = 3  # root is required
    MISSING = 4  # a program, library or interface is missing
    WARNING = 5  # harpctl check: works, but something costs performance
    RUNNING = 6  # harpctl start: another harpd runs; stop: leases exist
    NOT_RUNNING = 7  # no harpd runs
    REFUSED = 8  # harpd refuses: not allowed, no queue free
    NOT_EXECUTABLE = 126  # harpctl run: its command can't be executed (a shell's own code)
    NOT_FOUND = 127  # harpctl run: its command does not exist (a shell's own code)
    INTERRUPTED = 130  # Ctrl-C or SIGTERM


class HarpError(Exception):
    """An error in one line: what failed, why, and what to do."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code
