# SPDX-License-Identifier: Apache-2.0
"""Descriptors 0, 1 and 2, whoever starts a program of ours."""

import errno
import io
import os
import sys


def open_standard() -> None:
    """Makes stdin, stdout and stderr ones that can be used, whoever started us closed them or not.

    Were a number below 3 free, a socket of ours would get it, and be printed to.
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
