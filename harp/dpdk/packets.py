# SPDX-License-Identifier: Apache-2.0
"""Bursts of packets in DPDK's memory, and views of their bytes.

A burst owns its packets, and frees them when it is freed or collected. Memoryviews give access to
the bytes, and are released with the packets: the use of a released view raises ValueError. While a
slice of a view or a numpy array over it exists, free() and send() fail with EBUSY, because Python
can't release those.
"""

import contextlib
import errno
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Self

from harp.dpdk._binding import DpdkError, ffi, lib

BURST_MAX = 65535


def _buffers(packet: Any) -> Iterator[tuple[Any, int]]:
    """Yield the address and length of the bytes in each buffer of a packet."""
    while packet != ffi.NULL:
        yield ffi.cast("char *", packet.buf_addr) + packet.data_off, packet.data_len
        packet = packet.next


def copy_into(packet: Any, data: bytes) -> None:
    """Copy data, which has the packet's length, into it."""
    source, offset = ffi.from_buffer(data), 0
    for address, length in _buffers(packet):
        ffi.memmove(address, source + offset, length)
        offset += length


class Packet:
    """One packet of a burst, in one or more buffers (segments). Valid while the burst owns it."""

    __slots__ = ("_burst", "_generation", "_index")

    def __init__(self, burst: "Burst", index: int, generation: int) -> None:
        self._burst, self._index, self._generation = burst, index, generation

    def __len__(self) -> int:
        with self._burst._held(self._generation) as handle:
            return int(handle.packets[self._index].pkt_len)

    def __bytes__(self) -> bytes:
        """Return a copy of all bytes."""
        with self._burst._held(self._generation) as handle:
            buffers = _buffers(handle.packets[self._index])
            return b"".join(bytes(ffi.buffer(address, length)) for address, length in buffers)

    def __repr__(self) -> str:
        try:
            return f"<Packet of {len(self)} bytes>"
        except DpdkError:
            return "<Packet, gone>"

    @property
    def segments(self) -> tuple[memoryview, ...]:
        """Writable views of its bytes, one for each buffer. DpdkError EBADF: sent or freed."""
        with self._burst._held(self._generation):
            return self._burst._views_of(self._index)

    @property
    def data(self) -> memoryview:
        """The writable view of a packet in one buffer. DpdkError EMSGSIZE: several buffers."""
        views = self.segments
        if len(views) != 1:
            raise DpdkError(
                f"a packet of {len(views)} segments has no single view of its bytes: use "
                "segments, or bytes(packet)",
                errno.EMSGSIZE,
            )
        return views[0]


def _destroy(pool: object, handle: Any) -> None:
    """Destroy a burst. The argument keeps its pool alive until now."""
    lib.dpdk_burst_destroy(handle)


class Burst:
    """Packets, in order. Port.receive() and Pool.build() return bursts. Threads may share a burst;
    its calls are serialized.
    """

    def __init__(self, size: int, pool: object = None) -> None:
        if not 0 < size <= BURST_MAX:
            raise DpdkError(
                f"a burst of {size} packets: 1 to {BURST_MAX} are possible", errno.ERANGE
            )
        handle = lib.dpdk_burst_create(size)
        if handle == ffi.NULL:
            raise DpdkError(f"no memory for a burst of {size} packets", errno.ENOMEM)
        # The packets are freed when neither this object nor a view can reach them.
        self._handle = ffi.gc(handle, lambda it: _destroy(pool, it))
        self._lock = threading.Lock()
        self._freed = False
        self._generation = 0
        self._views: dict[int, tuple[memoryview, ...]] = {}
        self._exported: list[weakref.ref[Any]] = []

    @contextlib.contextmanager
    def _held(self, generation: int | None = None) -> Iterator[Any]:
        """Lock the burst. DpdkError: it was freed, or its packets of this generation were sent."""
        with self._lock:
            why = ""
            if self._freed:
                why = "the burst was freed"
            elif generation not in (None, self._generation):
                why = "the packet was sent"
            elif lib.dpdk_running() != 1:
                why = "the burst belongs to the process that this one was forked from"
            if why:
                raise DpdkError(f"use after the end: {why}", errno.EBADF)
            yield self._handle

    def _views_of(self, index: int) -> tuple[memoryview, ...]:
        """Return the views of a packet. The caller holds the lock."""
        if index not in self._views:
            buffers = _buffers(self._handle.packets[index])
            self._views[index] = tuple(self._view(*buffer) for buffer in buffers)
        return self._views[index]

    def _view(self, address: Any, length: int) -> memoryview:
        # A view keeps its buffer alive, the buffer the pointer, and the pointer the handle.
        handle = self._handle
        pointer = ffi.gc(address, lambda _: handle)
        buffer = ffi.buffer(pointer, length)
        self._exported.append(weakref.ref(buffer))
        return memoryview(buffer)

    def _release_views(self) -> None:
        """Release all views. DpdkError EBUSY: bytes are in use. The caller holds the lock."""
        while self._views:
            index, views = self._views.popitem()
            for view in views:
                try:
                    view.release()
                except BufferError:
                    raise self._in_use(index) from None
            del view, views
        self._exported = [ref for ref in self._exported if ref() is not None]
        if self._exported:
            raise self._in_use(None)

    def _in_use(self, index: int | None) -> DpdkError:
        which = "a packet" if index is None else f"packet {index}"
        return DpdkError(
            f"the bytes of {which} are in use, by a slice or an array of its view: delete that "
            "first",
            errno.EBUSY,
        )

    def __len__(self) -> int:
        with self._held() as handle:
            return int(handle.count)

    def __getitem__(self, index: int) -> Packet:
        with self._held() as handle:
            count = handle.count
            if not -count <= index < count:
                raise IndexError(f"packet {index} of a burst of {count}")
            return Packet(self, index % count, self._generation)

    def __iter__(self) -> Iterator[Packet]:
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        return "<Burst, freed>" if self._freed else f"<Burst of {self._handle.count} packets>"

    def free(self) -> None:
        """Return the packets to their pool; a second call does nothing.

        Raises
        ------
        DpdkError
            EBUSY: their bytes are in use.
        """
        with self._lock:
            if self._freed:
                return
            self._release_views()
            self._freed = True
            lib.dpdk_burst_clear(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.free()
        except DpdkError:
            # The traceback of an error may refer to views; the burst is freed when collected.
            if kind is None:
                raise


def allocation_error(error: int, size: int) -> DpdkError:
    """Return the error for a packet that could not be allocated."""
    if error == errno.ENOBUFS:
        text = f"the pool has not enough free buffers for a packet of {size} bytes"
        return DpdkError(f"{text}: free some, or make a larger pool", error)
    return DpdkError(f"a packet of {size} bytes takes more than 64 of the pool's buffers", error)
