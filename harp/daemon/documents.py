# SPDX-License-Identifier: Apache-2.0
"""Answers of harpd as memfds, called documents.

A document's memory is charged to harpd, and clients may keep its descriptor. harpd empties the
document at the client's next request, when the client has read it. Seals prevent all other changes.
When harpd ends, documents keep their contents.

Another process (harp.stats.reader) reads the statistics of instances and jobs, because users may
slow this down and control the bytes that are parsed. One reading serves all requests that arrive
during it and for some time after, because it may be expensive.
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

# A document of statistics answers requests for AGE_S, a large one longer; after HELD_S more it is
# emptied.
AGE_S, HELD_S = 1.0, 10.0
READ_BYTES_PER_S = 8 << 20
READER = (sys.executable, "-P", "-m", "harp.stats.reader")
# One thread of numpy's library, not one for each processor.
READER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Document:
    """A memfd with a text. fd: harpd's descriptor."""

    def __init__(self, text: bytes = b"") -> None:
        self.fd = os.memfd_create("harp-answer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.fd, 0o600)  # a client can't open it for writing
            if text:
                with os.fdopen(self.fd, "wb", closefd=False) as file:
                    file.write(text)
                os.lseek(self.fd, 0, os.SEEK_SET)
                self.seal()
        except BaseException:
            os.close(self.fd)
            raise

    def seal(self) -> None:
        """Prevent changes of its text. OSError: another process has mapped it for writing."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def open_for_reader(self) -> int:
        """Return another descriptor, read-only, with its own offset."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self, empty: bool = True) -> None:
        """Close it. empty: free its memory, even if clients keep descriptors."""
        if empty:
            os.ftruncate(self.fd, 0)
        os.close(self.fd)


def read_statistics(alive: socket.socket, flows: bool, command: Sequence[str] = READER) -> Document:
    """Return a document of all instances and jobs. Runs in a worker. RefusedError.

    alive: the reader ends when the other end of this socket is closed.
    """
    document = Document()
    try:
        done = subprocess.run(
            [*command, *(["--flows"] if flows else [])],
            stdin=alive.fileno(),
            stdout=document.fd,
            stderr=subprocess.PIPE,
            env=os.environ | READER_ENVIRONMENT,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").splitlines()
            raise OSError(errno.EIO, lines[-1] if lines else f"status {done.returncode}")
        document.seal()
    except OSError as error:
        document.close()
        why = f"the reader of statistics failed: {error.strerror}"
        raise RefusedError(errno.EIO, why) from error
    return document


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
        return (await asyncio.shield(self._readings[flows])).open_for_reader()

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
        """Close all documents, which stay readable. After end_reading() and the workers' end."""
        self._readers.close()
        while self._held:
            self._held.pop().close(empty=False)
