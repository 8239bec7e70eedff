# SPDX-License-Identifier: Apache-2.0
"""Pools of packet buffers (rte_mempool of mbufs)."""

import contextlib
import errno
import itertools
import threading
from collections.abc import Iterable
from typing import Any, Self

from harp.dpdk import eal
from harp.dpdk._binding import DpdkError, ffi, lib, require_running
from harp.dpdk.packets import BURST_MAX, Burst, allocation_error, copy_into

HEADROOM_BYTES = 128  # of a buffer, before its data (RTE_PKTMBUF_HEADROOM)
_COUNT_MAX = 1 << 22
_ANY_SOCKET = -1  # SOCKET_ID_ANY
_serial = itertools.count()


class Pool:
    """Packet buffers, for ports and bursts. Starts DPDK if needed.

    Parameters
    ----------
    count
        Buffers.
    buffer_bytes
        Bytes of each; longer packets use several.

    Raises
    ------
    DpdkError
        EINVAL: a number is out of range. ENOMEM: DPDK has not enough memory.
    """

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
        name, size = f"harp-py-{next(_serial)}".encode(), buffer_bytes + HEADROOM_BYTES
        handle = lib.rte_pktmbuf_pool_create(name, count, 0, 0, size, _ANY_SOCKET)
        if handle == ffi.NULL:
            raise DpdkError(
                f"no memory for {count} buffers of {buffer_bytes} bytes; use fewer, or start DPDK "
                "with more memory (memory_mib)",
                errno.ENOMEM,
            )
        self.count, self.buffer_bytes = count, buffer_bytes
        self._lock = threading.Lock()
        self._ports = 0  # ports that receive into it
        # Freed when the last user releases it, unless buffers are in use then.
        self._handle = ffi.gc(handle, lib.dpdk_pool_free)

    def _open(self) -> Any:
        """Return the handle. DpdkError: it was closed. The caller holds the lock."""
        if self._handle is None:
            raise DpdkError("use after the end: the pool was closed", errno.EBADF)
        require_running()
        return self._handle

    @property
    def in_use(self) -> int:
        """The number of buffers in bursts, in drivers' rings, or in flight."""
        with self._lock:
            return int(lib.rte_mempool_in_use_count(self._open()))

    def build(self, packets: Iterable[Any]) -> Burst:
        """Return a burst of packets with these bytes.

        Parameters
        ----------
        packets
            Bytes-like objects, or anything that bytes() accepts (scapy's).

        Returns
        -------
        Burst
            The packets.

        Raises
        ------
        DpdkError
            ENOBUFS: too few buffers are free. EMSGSIZE: a packet takes too many of them. EINVAL:
            a packet is empty, or not bytes.
        """
        contents = [_contents(packet) for packet in packets]
        with self._lock:
            burst = Burst(len(contents), self._open())
            for data in contents:
                result = lib.dpdk_burst_add(burst._handle, self._handle, len(data))
                if result < 0:
                    burst.free()
                    raise allocation_error(-result, len(data))
                copy_into(burst._handle.packets[burst._handle.count - 1], data)
        return burst

    def close(self) -> None:
        """Free its memory; a second call does nothing.

        Raises
        ------
        DpdkError
            EBUSY: a port or a burst uses it.
        """
        with self._lock:
            if self._handle is None:
                return
            require_running()
            used = int(lib.rte_mempool_in_use_count(self._handle))
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
            f"a packet must be bytes, or an object that bytes() accepts, not {kind}: "
            f"{repr(packet)[:60]}",
            errno.EINVAL,
        )
    if not data:
        raise DpdkError("a packet of 0 bytes: at least 1 is needed", errno.EINVAL)
    return data
