# SPDX-License-Identifier: Apache-2.0
"""The documents that harpd answers with: memfds, and who has them open.

A document's memory is harpd's, and who asks may keep what he gets. So harpd keeps a descriptor of
each that it lends, and looks whether others have it open still: a lease for writing is granted to
nobody but the only one (fcntl(2), F_SETLEASE). Then the document is emptied, for a mere path to it
(O_PATH), which is not seen so, would keep its memory. What a user has open is bounded. Each user
has documents of his own: what one keeps counts for no other.

They are sealed against everything but that, which only harpd does: who has one open can rely on it.
"""

import errno
import fcntl
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from harp.daemon.loop import Loop
from harp.daemon.table import RefusedError

HELD_BYTES_MAX = 512 << 20  # of a user but root: four that are as long as can be
SWEEP_S = 1.0
COPY_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def _opened(fd: int) -> int:
    """One more open of it: with an offset of its own, and only to read."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def written(pieces: Iterable[bytes]) -> int:
    """A document: a descriptor, only to read. By any thread."""
    fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)  # who has it to read can't open it to write
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.writelines(pieces)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return _opened(fd)
    finally:
        os.close(fd)


def document_fd(text: str) -> int:
    """written() of a text that is short."""
    return written((text.encode(),))


def copied(fd: int) -> int:
    """Another document that says the same. By any thread; the descriptor is closed."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        return written(iter(lambda: file.read(COPY_BYTES), b""))


@dataclass
class _Lent:
    fd: int
    size: int
    source: object

    def is_kept(self) -> bool:
        """Has anybody else it open?"""
        try:
            # Who opens it just then, as root may, has a signal sent to us: not SIGIO, which would
            # end us.
            fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return True
        except OSError:  # leases are switched off (fs.leases-enable)
            return False
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.truncate(f"/proc/self/fd/{self.fd}", 0)
        return False


class Lending:
    """All that are lent, to each user up to a quarter of so many. Used by the loop's thread."""

    def __init__(self, loop: Loop, count_max: int) -> None:
        self._loop = loop
        self._each_max = max(1, count_max // 4)
        self._lent: dict[int, list[_Lent]] = {}  # by user
        self._sweeps = False

    def expect_room(self, uid: int, size: int) -> None:
        """RefusedError when one more of that size is too much for the user."""
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
        """A descriptor for the user of a document, which is the caller's no more. source: what
        again() may ask for."""
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
        """One more descriptor of what the user was lent of that source; None when he was not."""
        for each in self._lent.get(uid, ()):
            if each.source is source:
                return _opened(each.fd)
        return None

    def _swept(self, uid: int) -> list[_Lent]:
        """Those of a user's that somebody has open; the others are gone."""
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
            self._loop.after(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeps = False
        for uid in list(self._lent):
            self._swept(uid)
        if self._lent:
            self._sweep_later()

    def close(self) -> None:
        """Lets go of all; who has one open keeps it."""
        for uid in list(self._lent):
            for each in self._swept(uid):
                os.close(each.fd)
        self._lent.clear()
