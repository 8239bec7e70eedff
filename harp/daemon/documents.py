# SPDX-License-Identifier: Apache-2.0
"""The documents that harpd answers with: memfds, which harpd empties HELD_S after their last use.

harpd pays for a document's memory, and clients may keep their descriptors. A client reads its
document at once, so emptying it later takes nothing from it and bounds what harpd pays. Documents
are sealed against all other changes, so that a reader can rely on the contents.

Another process reads the statistics of instances and jobs (harp.daemon.reader), since users'
processes may make that slow and write what is parsed. A reading serves all requests that arrive
meanwhile and for some time after, because it costs as much as it finds.
"""

import asyncio
import errno
import fcntl
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass

from harp.daemon.loop import Loop
from harp.daemon.reader import Reader, ReaderError
from harp.daemon.table import RefusedError

# A user gets at most a quarter of all documents in this time: 25 a second, or fewer where
# RLIMIT_NOFILE is small (documents_possible()). The rate limit of requests allows more.
HELD_S = 10.0
HELD_BYTES_MAX = 256 << 20  # of a user other than root
# A reading is used for AGE_S and, if it is large, so much longer that all of HELD_S fit in memory.
AGE_S = 1.0
READ_BYTES_PER_S = 8 << 20
COPY_BYTES = 1 << 20
_OF_ALL = -1  # in place of a user
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def written(pieces: Iterable[bytes]) -> int:
    """A document: the descriptor of its owner, for opened(). Any thread may use
    it.
    """
    fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)  # a reader of it can't open it for writing
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.writelines(pieces)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def opened(document: int) -> int:
    """Open a document for a reader: read-only, with an offset of its own."""
    return os.open(f"/proc/self/fd/{document}", os.O_RDONLY | os.O_CLOEXEC)


def copied(fd: int) -> int:
    """Copy a document of another process, which may change its own; closes the descriptor."""
    with os.fdopen(fd, "rb", buffering=0) as file:
        return written(iter(lambda: file.read(COPY_BYTES), b""))


def read_statistics(reader: Reader, flows: bool) -> int:
    """Return a document of all instances and jobs. Runs in a worker."""
    try:
        return copied(reader.ask({"kind": "document", "flows": flows}))
    except ReaderError as error:
        raise RefusedError(errno.EIO, str(error)) from error


@dataclass(eq=False)
class _Document:
    fd: int
    size: int


class Documents:
    """All documents that clients may read. Used by the loop's thread.

    Parameters
    ----------
    count_max
        Documents at a time; a user may have a quarter of them.
    """

    def __init__(self, loop: Loop, count_max: int) -> None:
        self._loop = loop
        self._each_max = max(1, count_max // 4)
        self._held: dict[int, list[_Document]] = {}  # by user, the oldest first
        self._readings: dict[bool, asyncio.Task[_Document]] = {}
        self.reader = Reader()

    def lend(self, uid: int, text: str) -> int:
        """Make a document of a user and return its descriptor; RefusedError if the user has too
        many.
        """
        data, held = text.encode(), self._held.get(uid, [])
        while uid == 0 and len(held) >= self._each_max:
            self._empty(uid, held[0])
        total = sum(each.size for each in held)
        if uid != 0 and (len(held) >= self._each_max or total + len(data) > HELD_BYTES_MAX):
            raise RefusedError(
                errno.EDQUOT,
                f"user {uid} got {len(held)} answers of {total >> 20} MiB within {HELD_S:.0f} s, "
                "which is the limit; ask less often",
            )
        document = _Document(written((data,)), len(data))
        self._hold(uid, document, HELD_S)
        return opened(document.fd)

    async def statistics(self, flows: bool) -> int:
        """Return a descriptor of the statistics of all instances; RefusedError."""
        if flows not in self._readings:
            self._readings[flows] = self._loop.spawn(self._read(flows))
        document = await asyncio.shield(self._readings[flows])
        return opened(document.fd)

    async def _read(self, flows: bool) -> _Document:
        try:
            fd = await self._loop.work(lambda: read_statistics(self.reader, flows))
        except BaseException:
            self._readings.pop(flows, None)
            raise
        document = _Document(fd, os.fstat(fd).st_size)
        age_s = AGE_S + document.size / READ_BYTES_PER_S
        self._loop.call_later(age_s, self._readings.pop, flows, None)
        self._hold(_OF_ALL, document, age_s + HELD_S)
        return document

    def _hold(self, uid: int, document: _Document, held_s: float) -> None:
        self._held.setdefault(uid, []).append(document)
        self._loop.call_later(held_s, self._empty, uid, document)

    def _empty(self, uid: int, document: _Document) -> None:
        """Free a document's memory, whatever readers keep. Root's may be emptied already."""
        held = self._held.get(uid, [])
        if document in held:
            held.remove(document)
            os.ftruncate(document.fd, 0)
            os.close(document.fd)
        if not held:
            self._held.pop(uid, None)

    def close(self) -> None:
        """Close all descriptors; readers keep theirs."""
        for document in itertools.chain(*self._held.values()):
            os.close(document.fd)
        self._held.clear()
