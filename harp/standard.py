# SPDX-License-Identifier: Apache-2.0
"""Makes descriptors 0, 1 and 2 usable at the start of a program."""

import errno
import io
import os
import sys


def open_standard() -> None:
    """Open stdin, stdout and stderr if the parent closed them.

    Otherwise a socket could get a number below 3, and messages would be printed to it.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
        if getattr(sys, name) is None:
            stream = os.fdopen(fd, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without the characters
