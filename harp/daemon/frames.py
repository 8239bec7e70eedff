# SPDX-License-Identifier: Apache-2.0
"""The frame memory of leases: harpd keeps a descriptor of each, and frees the memory at the end.

The memory is a memfd that harpd makes, and that is charged to harpd's control group. Its lessee may
keep a descriptor or a mapping. So at the end of a lease harpd punches the memory out of the file.
Pages that the lessee writes after that are charged to its own control group. The seals of the file
(MEMFD_SEALS) prevent the lessee from adding a seal that would forbid this.

The descriptors survive `harpctl restart`. After any other end of harpd the next one finds the
memory among the descriptors and mappings of the owner.
"""

import contextlib
import ctypes
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from harp import memfd
from harp.procfs import PROC

LINKS_MAX = 65536  # limit of descriptors and mappings of one process that are examined
_KEEP_SIZE, _PUNCH_HOLE = 0x1, 0x2  # fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

Identity = tuple[int, int]  # st_dev, st_ino


def identity(status: os.stat_result) -> Identity:
    """Return what identifies a file on this host while it exists."""
    return status.st_dev, status.st_ino


def free_memory(fd: int) -> None:
    """Free all memory of a memfd and close the descriptor. Takes milliseconds. OSError."""
    try:
        size = os.fstat(fd).st_size
        if size and _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, 0, size) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


# ---- The memory of another process ----
def _descriptors(process: Path, _file: Identity) -> Iterator[Path]:
    """Yield the links of a process's descriptors to memfds. harpd neither opens nor examines other
    files: a file server that does not respond would block it.
    """
    with os.scandir(process / "fd") as entries:
        for entry in itertools.islice(entries, LINKS_MAX):
            link = process / "fd" / entry.name
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith("/memfd:"):
                    yield link


def _mappings(process: Path, file: Identity) -> Iterator[Path]:
    """Yield the links of a process's mappings of the file: a job closes its descriptor."""
    with (process / "maps").open("rb") as maps:
        for line in itertools.islice(maps, LINKS_MAX):
            # proc_pid_maps(5): addresses, permissions, offset, device, inode, path
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[4] == str(file[1]).encode():
                yield process / "map_files" / _without_zeros(fields[0].decode())


def _without_zeros(addresses: str) -> str:
    """Format a range of addresses as in map_files."""
    return "-".join(f"{int(address, 16):x}" for address in addresses.split("-"))


def search(pid: int, file: Identity, proc: Path = PROC) -> int:
    """Return a descriptor of a file that the process has opened or mapped; -1: it has not."""
    process = proc / str(pid)
    for links in (_descriptors, _mappings):
        with contextlib.suppress(OSError):
            for link in links(process, file):
                with contextlib.suppress(OSError):  # it is gone or read-only; try the next
                    fd, status = memfd.open_link(link, os.O_RDWR)
                    if identity(status) == file:
                        return fd
                    os.close(fd)
    return -1


# ---- All leases ----
class Frames:
    """The descriptors, by lease. inherited: descriptors that the previous harpd left open."""

    def __init__(self, inherited: Iterable[int] = ()) -> None:
        self._held: dict[int, int] = {}
        self._inherited: dict[Identity, int] = {}
        for fd in inherited:
            self._inherited[identity(os.fstat(fd))] = fd

    def keep(self, lease_id: int, fd: int) -> Identity:
        """Keep a duplicate during a lease. OSError: no descriptor is left."""
        self._held[lease_id] = os.dup(fd)
        return identity(os.fstat(fd))

    def adopt(self, lease_id: int, pid: int, file: Identity) -> bool:
        """Keep the descriptor of a lease of the previous harpd; False if it can't be found."""
        fd = self._inherited.pop(file, -1)
        if fd < 0:
            fd = search(pid, file)
        if fd >= 0:
            self._held[lease_id] = fd
        return fd >= 0

    def take(self, lease_id: int) -> int:
        """Transfer the descriptor of a lease to the caller; -1 without one."""
        return self._held.pop(lease_id, -1)

    def forget(self, lease_id: int) -> None:
        """Close the descriptor of a lease without freeing the memory."""
        fd = self.take(lease_id)
        if fd >= 0:
            os.close(fd)

    def leave(self, file: Identity) -> None:
        """Close an inherited descriptor without freeing the memory, which a process still uses."""
        fd = self._inherited.pop(file, -1)
        if fd >= 0:
            os.close(fd)

    def unclaimed(self) -> list[int]:
        """Transfer the inherited descriptors that were not adopted to the caller."""
        fds = list(self._inherited.values())
        self._inherited.clear()
        return fds

    @property
    def fds(self) -> list[int]:
        return list(self._held.values())

    def close(self) -> None:
        """Close all descriptors without freeing memory."""
        for lease_id in list(self._held):
            self.forget(lease_id)
        for fd in self.unclaimed():
            os.close(fd)
