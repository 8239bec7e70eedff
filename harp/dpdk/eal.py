# SPDX-License-Identifier: Apache-2.0
"""DPDK's environment (EAL). A process has one, which HARP's stacks share, and which never stops."""

import errno
import os
from typing import IO, Any, Literal

from harp import _paths
from harp.dpdk._binding import DpdkError, Why, ffi, lib

_HUGE_PAGES = {"auto": 0, "never": 1, "require": 2}
_MEMORY_MIB_MAX = 1 << 20
HugePages = Literal["auto", "never", "require"]


def start(
    *,
    huge_pages: HugePages = "auto",
    memory_mib: int = 0,
    args: str = "",
    log: IO[Any] | None = None,
) -> None:
    """Start DPDK in this process, unless it runs. It can't be stopped: its memory belongs to the
    process until the end.

    Parameters
    ----------
    huge_pages
        "auto" uses them if there are enough, "require" fails otherwise, "never" does not.
    memory_mib
        For all ports and pools of the process, in MiB; 0: 256.
    args
        More arguments of EAL ("--iova-mode=va").
    log
        A file with a descriptor for EAL's own messages, such as sys.stderr; None: no messages.

    Raises
    ------
    DpdkError
        With EAL's message: EALREADY if it runs with other options, ENOMEM, EINVAL, EIO.
    """
    if huge_pages not in _HUGE_PAGES:
        names = ", ".join(_HUGE_PAGES)
        raise DpdkError(f"huge_pages={huge_pages!r}: it must be one of {names}", errno.EINVAL)
    if not 0 <= memory_mib <= _MEMORY_MIB_MAX:
        raise DpdkError(
            f"memory_mib={memory_mib}: 0 to {_MEMORY_MIB_MAX} are possible", errno.EINVAL
        )
    if "\0" in args:
        raise DpdkError("args: they contain a NUL", errno.EINVAL)
    library = ffi.new("char[]", os.fsencode(_paths.find(_paths.DPDK_LIBRARY)))
    eal_args = ffi.new("char[]", args.encode()) if args else ffi.NULL
    options = ffi.new("struct dpdk_eal_options *")
    options.library, options.args = library, eal_args
    options.huge_pages, options.memory_mib = _HUGE_PAGES[huge_pages], memory_mib
    # Duplicate it, because the caller may close its descriptor.
    options.log_fd = -1 if log is None else os.dup(log.fileno())
    why = Why()
    why.check(lib.dpdk_start(options, *why.arguments))


def running() -> bool:
    """Return whether DPDK runs in this process. False in a forked child of such a process."""
    return bool(lib.dpdk_running() == 1)


def version() -> str:
    """Return "DPDK 22.11.11", or another version."""
    return str(ffi.string(lib.rte_version()).decode())


def huge_pages() -> bool:
    """Return whether its memory is in huge pages."""
    return running() and bool(lib.rte_eal_has_hugepages())
