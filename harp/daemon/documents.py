# SPDX-License-Identifier: Apache-2.0
"""The documents that harpd answers with: memfds, which harpd empties after their use, except when
it ends.

harpd pays for a document's memory, and clients may keep their descriptors. A client reads its
document at once, so emptying it at the client's next question takes nothing from it and bounds what
harpd pays. Documents are sealed against all other changes, so that a reader can rely on the
contents.

Another process writes the statistics of instances and jobs (harp.stats.reader), since users'
processes may make that slow and write what is parsed. A reading serves all requests that arrive
meanwhile and for some time after, because it costs as much as it finds.
"""

import asyncio
import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from harp.daemon.loop import Loop
from harp.daemon.table import RefusedError

# A reading is used for AGE_S and, if it is large, longer. Clients may read it for HELD_S then.
AGE_S, HELD_S = 1.0, 10.0
READ_BYTES_PER_S = 8 << 20
READER = (sys.executable, "-P", "-m", "harp.stats.reader")
# One thread of numpy's library, not one for each processor.
READER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Document:
    """A memfd with a text. fd: its owner's descriptor."""

    def __init__(self, text: bytes = b"") -> None:
        self.fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.fd, 0o600)  # a reader of it can't open it for writing
            if text:
                with os.fdopen(self.fd, "wb", closefd=False) as file:
                    file.write(text)
                os.lseek(self.fd, 0, os.SEEK_SET)
                self.seal()
        except BaseException:
            os.close(self.fd)
            raise

    def seal(self) -> None:
        """Prevent changes of its text. OSError: another process can write it."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def opened(self) -> int:
        """Open it for a reader: read-only, with an offset of its own."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self, empty: bool = True) -> None:
        """Close it. empty: free its memory, whatever readers keep."""
        if empty:
            os.ftruncate(self.fd, 0)
        os.close(self.fd)


def read_statistics(alive: socket.socket, flows: bool, command: Sequence[str] = READER) -> Document:
    """Return a document of all instances and jobs. Runs in a worker. RefusedError.

    alive: the process ends when the other end of this socket is closed.
    """
    made = Document()
    try:
        done = subprocess.run(
            [*command, *(["--flows"] if flows else [])],
            stdin=alive.fileno(),
            stdout=made.fd,
            stderr=subprocess.PIPE,
            env=os.environ | READER_ENVIRONMENT,
            check=False,
        )
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").splitlines()
            raise OSError(errno.EIO, words[-1] if words else f"status {done.returncode}")
        made.seal()
    except OSError as error:
        made.close()
        why = f"the reader of statistics failed: {error.strerror}"
        raise RefusedError(errno.EIO, why) from error
    return made


class Statistics:
    """The documents of statistics. Used by the loop's thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._readings: dict[bool, asyncio.Task[Document]] = {}
        self._held: set[Document] = set()
        self._alive, self._readers = socket.socketpair()

    async def read(self, flows: bool) -> int:
        """Return a descriptor of the statistics of all instances; RefusedError."""
        if flows not in self._readings:
            self._readings[flows] = self._loop.spawn(self._read(flows))
        return (await asyncio.shield(self._readings[flows])).opened()

    async def _read(self, flows: bool) -> Document:
        try:
            document = await self._loop.work(lambda: read_statistics(self._readers, flows))
        except BaseException:
            self._readings.pop(flows, None)
            raise
        age_s = AGE_S + os.fstat(document.fd).st_size / READ_BYTES_PER_S
        self._loop.call_later(age_s, self._readings.pop, flows, None)
        self._held.add(document)
        self._loop.call_later(age_s + HELD_S, self._empty, document)
        return document

    def _empty(self, document: Document) -> None:
        document.close()
        self._held.discard(document)

    def end_reading(self) -> None:
        self._alive.close()

    def close(self) -> None:
        """Close all, after end_reading() and the workers' end. Clients may still read them."""
        self._readers.close()
        while self._held:
            self._held.pop().close(empty=False)
