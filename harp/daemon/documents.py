# SPDX-License-Identifier: Apache-2.0
"""The documents that harpd answers with: memfds, and who has them open.

harpd pays for a document's memory, and clients may keep their descriptors. So harpd keeps a
descriptor of each lent document and checks whether others have it open: a lease for writing is
granted only to the sole holder (fcntl(2), F_SETLEASE). Then harpd empties the document, because a
path reference (O_PATH) does not count as open and would keep the memory. The memory of open
documents is limited per user. Users do not share documents, so that each pays only for its own.

Documents are sealed against all other changes, so that a reader can rely on the contents.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from harp.daemon.loop import Loop
from harp.daemon.table import RefusedError

HELD_BYTES_MAX = 512 << 20  # of a user other than root: four of the largest documents
SWEEP_S = 1.0
COPY_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def _opened(fd: int) -> int:
    """Open it once more, read-only, with an offset of its own."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def written(pieces: Iterable[bytes]) -> int:
    """A document: a read-only descriptor. Any thread may use it."""
    fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)  # a reader of it can't open it for writing
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.writelines(pieces)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return _opened(fd)
    finally:
        os.close(fd)


def document_fd(text: str) -> int:
    """Return written() of a short text."""
    return written((text.encode(),))


def copied(fd: int) -> int:
    """Copy a document. Any thread may call it; it closes the descriptor."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        return written(iter(lambda: file.read(COPY_BYTES), b""))


@dataclass
class _Lent:
    fd: int
    size: int
    source: object

    def is_kept(self) -> bool:
        """Tell whether another process has it open."""
        try:
            # If a process opens it at this moment, as root may, the kernel sends a signal. The
            # default signal, SIGIO, would end harpd.
            fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return True
        except OSError:  # leases are disabled (fs.leases-enable)
            return False
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.truncate(f"/proc/self/fd/{self.fd}", 0)
        return False


class Lending:
    """All lent documents; a user may have a quarter of the total. Used by the loop's thread."""

    def __init__(self, loop: Loop, count_max: int) -> None:
        self._loop = loop
        self._each_max = max(1, count_max // 4)
        self._lent: dict[int, list[_Lent]] = {}  # by user
        self._sweeps = False

    def expect_room(self, uid: int, size: int) -> None:
        """Raise RefusedError if one more document of that size exceeds the user's limit."""
        lent = self._swept(uid)
        total = sum(each.size for each in lent)
        if uid == 0:
            while len(lent) >= self._each_max:
                os.close(lent.pop(0).fd)
        elif len(lent) >= self._each_max or total + size > HELD_BYTES_MAX:
            raise RefusedError(
                errno.EDQUOT,
                f"user {uid} keeps {len(lent)} of harpd's answers open, {total >> 20} MiB in all, "
                "which is the limit; close some",
            )

    def lend(self, uid: int, fd: int, source: object = None) -> int:
        """Lend a document to a user and return a descriptor; takes over the document. source: what
        again() may ask for.
        """
        try:
            lent = _opened(fd)
            size = os.fstat(fd).st_size
        except BaseException:
            os.close(fd)
            raise
        self._lent.setdefault(uid, []).append(_Lent(fd, size, source))
        self._sweep_later()
        return lent

    def again(self, uid: int, source: object) -> int | None:
        """Return another descriptor of the user's document of that source; None without one."""
        for each in self._lent.get(uid, ()):
            if each.source is source:
                return _opened(each.fd)
        return None

    def _swept(self, uid: int) -> list[_Lent]:
        """Drop the user's documents that no process has open; return the others."""
        kept = []
        for each in self._lent.pop(uid, ()):
            if each.is_kept():
                kept.append(each)
            else:
                os.close(each.fd)
        if kept:
            self._lent[uid] = kept
        return kept

    def _sweep_later(self) -> None:
        if not self._sweeps:
            self._sweeps = True
            self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeps = False
        for uid in list(self._lent):
            self._swept(uid)
        if self._lent:
            self._sweep_later()

    def close(self) -> None:
        """Close all; clients keep theirs."""
        for uid in list(self._lent):
            for each in self._swept(uid):
                os.close(each.fd)
        self._lent.clear()
