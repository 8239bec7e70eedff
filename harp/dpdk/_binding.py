# SPDX-License-Identifier: Apache-2.0
"""Imports the compiled module, and defines the errors of this package."""

import errno
import os
from typing import Any

from harp.errors import Exit, HarpError

__all__ = ["DpdkError", "MissingError", "Why", "check", "ffi", "lib", "require_running"]
_WHY_BYTES = 512


class DpdkError(HarpError):
    """An error of DPDK, or of its use. errno: the kind of error, such as errno.EBUSY."""

    def __init__(self, message: str, error: int) -> None:
        super().__init__(message)
        self.errno = error


class MissingError(HarpError, ImportError):
    """harp.dpdk is not available; the text names what to install."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.MISSING)


def _missing(error: ImportError) -> MissingError:
    if error.name == "harp._dpdk" and isinstance(error, ModuleNotFoundError):
        return MissingError("harp.dpdk: built without DPDK: install libdpdk-dev and rebuild")
    if error.name in ("_cffi_backend", "cffi"):
        return MissingError("harp.dpdk: cffi is not installed: pip install cffi")
    return MissingError(
        f"harp.dpdk: DPDK's libraries can't be loaded: {error}; install the package dpdk of the "
        "version that HARP was built with, or rebuild"
    )


try:
    from harp._dpdk import ffi, lib
except ImportError as _error:
    raise _missing(_error) from _error


class Why:
    """A buffer in which a C function explains its failure."""

    def __init__(self) -> None:
        self.buffer = ffi.new("char[]", _WHY_BYTES)

    @property
    def arguments(self) -> tuple[Any, int]:
        """Return the last two arguments of a call that explains its failure."""
        return self.buffer, _WHY_BYTES

    def check(self, result: int) -> int:
        """Raise DpdkError with the explanation if the result is an error."""
        if result < 0:
            raise DpdkError(ffi.string(self.buffer).decode(errors="replace"), -result)
        return result


def check(result: int, what: str) -> int:
    """Raise DpdkError if the result is an error. what: such as "net_memif0: setting its MTU"."""
    if result < 0:
        raise DpdkError(f"{what}: {os.strerror(-result)}", -result)
    return result


def require_running() -> None:
    """Raise DpdkError unless DPDK runs in this process, and not only in its parent."""
    state = lib.dpdk_running()
    if state == -errno.ECHILD:
        raise DpdkError(
            "DPDK was started before this process was forked: its memory and ports are the "
            "parent's; start it in the process that uses it (multiprocessing: spawn)",
            errno.ECHILD,
        )
    if not state:
        raise DpdkError("DPDK is not started: harp.dpdk.start()", errno.ENOTCONN)
