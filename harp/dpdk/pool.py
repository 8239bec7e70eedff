# SPDX-License-Identifier: Apache-2.0
"""Pools of packet buffers (rte_mempool of mbufs)."""

import contextlib
import errno
import threading
from collections.abc import Iterable
from typing import Any, Self

from harp.dpdk import eal
from harp.dpdk._binding import DpdkError, Why, ffi, lib, require_running
from harp.dpdk.packets import BURST_MAX, Burst, no_room

HEADROOM_BYTES = 128  # of a buffer, before its data (RTE_PKTMBUF_HEADROOM)
_COUNT_MAX = 1 << 22
_PACKET_BYTES_MAX = 1 << 22


class Pool:
    """count buffers of buffer_bytes each; longer packets use several. Starts DPDK if needed."""

    def __init__(self, count: int = 8191, buffer_bytes: int = 2048) -> None:
        self._handle: Any = None
        if not 0 < count <= _COUNT_MAX:
            raise DpdkError(
                f"pool of {count} buffers: 1 to {_COUNT_MAX} are possible", errno.EINVAL
            )
        if not 64 <= buffer_bytes <= BURST_MAX - HEADROOM_BYTES:
            raise DpdkError(
                f"buffers of {buffer_bytes} bytes: 64 to {BURST_MAX - HEADROOM_BYTES} are possible",
                errno.EINVAL,
            )
        if not eal.running():
            eal.start()
        out, why = ffi.new("struct rte_mempool **"), Why()
        why.check(lib.dpdk_pool_create(out, count, buffer_bytes + HEADROOM_BYTES, *why.arguments))
        self.count, self.buffer_bytes = count, buffer_bytes
        self._lock = threading.Lock()
        self._ports = 0  # ports that receive into it
        # Freed with its last user, but not while it has buffers in use (-EBUSY: it stays).
        self._handle = ffi.gc(out[0], lib.dpdk_pool_free)

    def _open(self) -> Any:
        """Under the lock."""
        if self._handle is None:
            raise DpdkError("use after the end: the pool was closed", errno.EBADF)
        require_running()
        return self._handle

    @property
    def in_use(self) -> int:
        """Return the number of buffers in bursts, in drivers' rings, or in flight."""
        with self._lock:
            return int(lib.dpdk_pool_in_use(self._open()))

    def allocate(self, count: int, size: int) -> Burst:
        """Return count packets of size bytes with undefined contents. ENOBUFS, EMSGSIZE."""
        if not 0 <= size <= _PACKET_BYTES_MAX:
            raise no_room(errno.EMSGSIZE, count, size)
        with self._lock:
            handle = self._open()
            burst = Burst(count, handle)
            result = lib.dpdk_burst_allocate(burst._handle, handle, count, size)
        if result < 0:
            raise no_room(-result, count, size)
        return burst

    def build(self, packets: Iterable[Any]) -> Burst:
        """Return packets with these bytes: bytes-like, or anything that bytes() accepts
        (scapy's).
        """
        contents = [_contents(each) for each in packets]
        with self._lock:
            handle = self._open()
            burst = Burst(len(contents), handle)
            for data in contents:
                view = ffi.from_buffer(data)
                result = lib.dpdk_burst_append(burst._handle, handle, view, len(data))
                if result < 0:
                    raise no_room(-result, 1, len(data))
        return burst

    def close(self) -> None:
        """Free its memory; a second call does nothing. EBUSY: a port or a burst has buffers of
        it.
        """
        with self._lock:
            if self._handle is None:
                return
            used = int(lib.dpdk_pool_in_use(self._handle))
            if self._ports or used or lib.dpdk_pool_free(self._handle) == -errno.EBUSY:
                raise DpdkError(
                    f"the pool is in use, by {self._ports} ports and with {used} buffers: close "
                    "the ports and free the bursts first",
                    errno.EBUSY,
                )
            ffi.gc(self._handle, None)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except DpdkError:
            if kind is None:
                raise


def _contents(packet: Any) -> bytes:
    data = None
    if not isinstance(packet, int | str | list | tuple):
        with contextlib.suppress(TypeError):
            data = bytes(packet)
    if data is None:
        kind = type(packet).__name__
        raise DpdkError(
            f"a packet is bytes, or something that bytes() makes some of, not {kind}:"
            f" {repr(packet)[:60]}",
            errno.EINVAL,
        )
    if not data:
        raise DpdkError("a packet of no bytes: it has 1 at least", errno.EINVAL)
    return data
