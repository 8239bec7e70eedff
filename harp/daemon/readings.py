# SPDX-License-Identifier: Apache-2.0
"""Statistics of all instances of the host, for clients of harpd.

Another process reads them (harp.daemon.reader), since users' processes may make that slow and write
what is parsed. A reading serves all requests that arrive meanwhile and for some time after, because
it costs as much as it finds. Its result is one document; each user who asks gets a copy.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from harp.daemon.documents import Lending, copied
from harp.daemon.loop import Loop
from harp.daemon.reader import Reader, ReaderError
from harp.daemon.table import RefusedError

AGE_S = 1.0
# Takes over a document's descriptor, or gets the error.
Then = Callable[[int | None, BaseException | None], None]


@dataclass
class _Reading:
    """A reading's document. waiting: requests by user, while the user's copy is made."""

    fd: int
    waiting: dict[int, list[Then]] = field(default_factory=dict)


def _read(reader: Reader, flows: bool) -> int:
    try:
        return reader.ask({"kind": "document", "flows": flows})
    except ReaderError as error:
        raise RefusedError(errno.EIO, str(error)) from error


class Readings:
    """The last reading of each kind, with and without connections. Used by the loop's thread."""

    def __init__(self, loop: Loop, lending: Lending) -> None:
        self._loop, self._lending = loop, lending
        self.reader = Reader()
        self._readings: dict[bool, _Reading] = {}
        # requests that wait for a reading in progress
        self._waiting: dict[bool, list[tuple[int, Then]]] = {}

    def ask(self, uid: int, flows: bool, then: Then) -> None:
        """Call then() with a descriptor, now or later, from the loop."""
        reading = self._readings.get(flows)
        if reading is not None:
            self._give(reading, uid, then)
            return
        waiting = self._waiting.setdefault(flows, [])
        waiting.append((uid, then))
        if len(waiting) == 1:
            self._loop.work(
                lambda: _read(self.reader, flows),
                lambda fd, error: self._read_done(flows, fd, error),
            )

    def _read_done(self, flows: bool, fd: int | None, error: BaseException | None) -> None:
        waiting = self._waiting.pop(flows)
        if fd is None:
            for _, then in waiting:
                then(None, error)
            return
        self._readings[flows] = reading = _Reading(fd)
        for uid, then in waiting:
            self._give(reading, uid, then)
        self._loop.call_later(AGE_S, lambda: self._forget(flows, reading))

    def _forget(self, flows: bool, reading: _Reading) -> None:
        if self._readings.get(flows) is reading:
            os.close(self._readings.pop(flows).fd)

    def _give(self, reading: _Reading, uid: int, then: Then) -> None:
        """Give the user a copy, which may exist already."""
        if uid in reading.waiting:
            reading.waiting[uid].append(then)
            return
        try:
            fd = self._lending.again(uid, reading)
            if fd is not None:
                then(fd, None)
                return
            self._lending.expect_room(uid, os.fstat(reading.fd).st_size)
            own = os.open(f"/proc/self/fd/{reading.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except (RefusedError, OSError) as error:
            then(None, error)
            return
        reading.waiting[uid] = [then]
        self._loop.work(lambda: copied(own), lambda fd, error: self._made(reading, uid, fd, error))

    def _made(
        self, reading: _Reading, uid: int, fd: int | None, error: BaseException | None
    ) -> None:
        for number, then in enumerate(reading.waiting.pop(uid)):
            try:
                if fd is None:
                    then(None, error)
                elif number == 0:
                    then(self._lending.lend(uid, fd, reading), None)
                else:
                    then(self._lending.again(uid, reading), None)
            except OSError as failed:
                then(None, failed)

    def close(self) -> None:
        """Drop the document: no request waits."""
        for flows, reading in list(self._readings.items()):
            self._forget(flows, reading)

    def end(self) -> None:
        """Abort a reading in progress: harpd ends."""
        self.reader.close()
