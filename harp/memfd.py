# SPDX-License-Identifier: Apache-2.0
"""Opens memory files (memfds) of other processes through /proc, and no other kind of file.

A process may replace a descriptor after its link was read and before it is opened. Opening a device
or a FIFO has side effects, so open_link() first takes a reference that opens nothing (O_PATH),
checks the file behind it, and opens that same file.
"""

import contextlib
import errno
import functools
import os
import stat
from pathlib import Path


class NotMemoryError(OSError):
    """The link leads to something that is not a memfd."""

    def __init__(self, link: Path) -> None:
        super().__init__(errno.EINVAL, "is not a memory file", str(link))


@functools.cache
def devices() -> frozenset[int]:
    """Return the device numbers of memfds: of ordinary pages, and of 2 MiB pages if the kernel has
    them.

    The kernel keeps each kind on one internal file system, so a memfd of this process has the same
    number as all others. No path leads to these file systems.
    """
    numbers = set()
    for flags in (0, os.MFD_HUGETLB | os.MFD_HUGE_2MB):
        with contextlib.suppress(OSError):
            fd = os.memfd_create("harp-device", os.MFD_CLOEXEC | flags)
            numbers.add(os.fstat(fd).st_dev)
            os.close(fd)
    return frozenset(numbers)


def open_link(link: Path, flags: int) -> tuple[int, os.stat_result]:
    """Open the memfd behind a link of /proc/PID/fd or /proc/PID/map_files.

    Returns a new descriptor, which the caller owns, and the file's status. NotMemoryError if the
    link leads to another kind of file, which is not opened; OSError.
    """
    reference = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(reference)
        if not stat.S_ISREG(status.st_mode) or status.st_dev not in devices():
            raise NotMemoryError(link)
        # O_NONBLOCK: open() would wait while the owner holds a lease on the file (fcntl(2)).
        flags |= os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(f"/proc/self/fd/{reference}", flags), status
    finally:
        os.close(reference)
