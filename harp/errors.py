# SPDX-License-Identifier: Apache-2.0
"""Exit codes of harpctl, and the one exception that carries them."""

from enum import IntEnum


class Exit(IntEnum):
    """What a script can rely on; the numbers never change their meaning."""

    OK = 0
    FAILURE = 1  # it ran, and the result is wrong or worse than it must be
    USAGE = 2  # the command line is wrong (click's own code)
    PRIVILEGE = 3  # needs root
    MISSING = 4  # a program, library or interface is not there
    WARNING = 5  # harpctl check: works, but something costs performance
    RUNNING = 6  # harpctl start: another harpd runs; stop: leases exist
    NOT_RUNNING = 7  # there is no harpd to ask
    REFUSED = 8  # harpd refuses: not allowed, no queue free
    NOT_EXECUTABLE = 126  # harpctl run: its command can't be executed (a shell's own code)
    NOT_FOUND = 127  # harpctl run: its command isn't there (a shell's own code)
    INTERRUPTED = 130  # Ctrl-C or SIGTERM


class HarpError(Exception):
    """One line for people: what went wrong, where, and what to do about it."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.code = code
