# SPDX-License-Identifier: Apache-2.0
"""Traffic at full speed: a generator, a sink or echo, a ping.

Each loop runs in C without the GIL and returns at least every 20 ms, so that Ctrl-C, other threads
and other queues of the port continue.
"""

import errno
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from harp.dpdk._binding import DpdkError, check, ffi, lib
from harp.dpdk.packets import Burst
from harp.dpdk.port import Port, deadline

_SPAN_NS = 20_000_000
_PINGS = 64  # packets per call
_ROUNDS_MAX = 10_000_000
_FOREVER = float("inf")


@dataclass(frozen=True)
class Count:
    """Counts of a run. idle: how many of the calls moved no packet."""

    packets: int
    bytes: int  # Ethernet header included
    calls: int
    idle: int
    seconds: float  # from the first burst with packets to the last

    @property
    def packets_per_s(self) -> float:
        """Return the rate; 0 without a measurable time."""
        return self.packets / self.seconds if self.seconds else 0.0

    @property
    def gbit_per_s(self) -> float:
        """Return the rate of these bytes; 0 without a measurable time."""
        return self.bytes * 8e-9 / self.seconds if self.seconds else 0.0


def _count(raw: Any) -> Count:
    seconds = (raw.last_ns - raw.first_ns) * 1e-9
    return Count(raw.packets, raw.bytes, raw.calls, raw.idle, seconds)


def _is_set(stop: threading.Event | None) -> bool:
    return stop is not None and stop.is_set()


def generate(
    port: Port,
    burst: Burst,
    *,
    packets: int | None = None,
    seconds: float = _FOREVER,
    queue: int = 0,
    stop: threading.Event | None = None,
) -> Count:
    """Send a burst's packets repeatedly.

    HARP does not copy the packets: the same buffers are sent each time. Use a long burst (64 to
    1024 packets), because some drivers keep buffers for a while.

    Parameters
    ----------
    port, queue
        The port, and its transmit queue.
    burst
        The packets.
    packets, seconds, stop
        Limits: a number of packets (None: no limit), seconds, an event that is set.

    Returns
    -------
    Count
        The packets that were sent.

    Raises
    ------
    DpdkError
        EBADF: the port is stopped or closed, or the burst was freed. EINVAL: it is empty.
    """
    if packets is not None and packets < 0:
        raise DpdkError(f"{packets} packets: 0 or more are possible", errno.EINVAL)
    end, raw = deadline(seconds), ffi.new("struct dpdk_count *")
    most = (1 << 63) if packets is None else packets
    while raw.packets < most and time.monotonic() < end and not _is_set(stop):
        with burst._held() as handle, port._queue(port._tx_locks, queue) as number:
            left = most - raw.packets
            what = f"{port.name}: generating"
            check(lib.dpdk_generate(number, queue, handle, left, _SPAN_NS, raw), what)
    return _count(raw)


def sink(
    port: Port,
    *,
    packets: int | None = None,
    seconds: float = _FOREVER,
    queue: int = 0,
    stop: threading.Event | None = None,
    echo: bool = False,
) -> Count:
    """Receive packets and free them, or return them to their senders.

    Parameters
    ----------
    port, queue
        The port, and its queue.
    packets, seconds, stop
        Limits: a number of packets (None: no limit), seconds, an event that is set.
    echo
        Whether packets are sent back, with source and destination MAC exchanged.

    Returns
    -------
    Count
        The packets that were received.

    Raises
    ------
    DpdkError
        EBADF: the port is stopped or closed.
    """
    if packets is not None and packets < 1:
        raise DpdkError(f"{packets} packets: 1 or more are possible", errno.EINVAL)
    end, raw = deadline(seconds), ffi.new("struct dpdk_count *")
    while packets is None or raw.packets < packets:
        if time.monotonic() >= end or _is_set(stop):
            break
        with (
            port._queue(port._rx_locks, queue) as number,
            port._queue(port._tx_locks, queue) if echo else nullcontext(),
        ):
            left = 0 if packets is None else packets - raw.packets
            lib.dpdk_sink(number, queue, left, _SPAN_NS, echo, raw)
    return _count(raw)


def ping(
    port: Port, burst: Burst, *, rounds: int = 1000, wait: float = 0.1, queue: int = 0
) -> list[int]:
    """Measure round trips of a packet that a sink(echo=True) sends back.

    Parameters
    ----------
    port, queue
        The port, and its queue.
    burst
        Its first packet is sent; its bytes 14 to 21 are overwritten.
    rounds
        Round trips.
    wait
        Seconds to wait for each.

    Returns
    -------
    list of int
        The round trips in nanoseconds, without those that took longer than wait.

    Raises
    ------
    DpdkError
        EINVAL: the packet has fewer than 22 bytes, or a number is out of range. EBADF: the port is
        stopped or closed.
    """
    if not 0 < rounds <= _ROUNDS_MAX or not 0 < wait <= 60:
        raise DpdkError(f"rounds={rounds}, wait={wait}: out of range", errno.EINVAL)
    result: list[int] = []
    rtt = ffi.new("uint64_t[]", _PINGS)
    for left in range(rounds, 0, -_PINGS):
        with (
            burst._held() as handle,
            port._queue(port._rx_locks, queue) as number,
            port._queue(port._tx_locks, queue),
        ):
            count = min(left, _PINGS)
            answered = lib.dpdk_ping(number, queue, handle, count, int(wait * 1e9), rtt)
        check(answered, f"{port.name}: ping, with a packet of at least 22 bytes")
        result += [int(rtt[index]) for index in range(answered)]
    return result
