# SPDX-License-Identifier: Apache-2.0
"""Files by a path that somebody named, which may be anything: an error at once, never a wait."""

import errno
import os
import stat
from pathlib import Path
from typing import TextIO

# Of a FIFO without another end, a tape, a modem: open() must not wait for it, nor become its
# terminal.
_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
NOT_REGULAR = "is no regular file"


class NotRegularError(OSError):
    """There is something, and it is no file: a FIFO, a socket, a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, NOT_REGULAR, str(path))


def read(path: Path, bytes_max: int) -> tuple[bytes, os.stat_result]:
    """A regular file, up to one byte more than bytes_max, and what it is. OSError."""
    fd = os.open(path, os.O_RDONLY | _AT_ONCE)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(info.st_mode):
            raise NotRegularError(path)
        return file.read(bytes_max + 1), info


def open_output(path: Path, flags: int) -> int:
    """A descriptor to write to, made if need be: of a file, or of a device that takes what comes
    (/dev/null). OSError for what may keep who writes waiting."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags | _AT_ONCE, 0o666)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):
        os.close(fd)
        raise NotRegularError(path)
    os.set_blocking(fd, True)
    return fd


def opened(path: Path, newline: str | None = None) -> TextIO:
    """open_output() of a text that takes the place of what is there."""
    return os.fdopen(open_output(path, os.O_TRUNC), "w", encoding="utf-8", newline=newline)
