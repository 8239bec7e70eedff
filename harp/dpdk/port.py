# SPDX-License-Identifier: Apache-2.0
"""Ports: any Ethernet device of DPDK, owned by this process."""

import contextlib
import errno
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harp.closing import Closing
from harp.dpdk import eal
from harp.dpdk._binding import DpdkError, Why, check, ffi, lib, require_running
from harp.dpdk.packets import BURST_MAX, Burst
from harp.dpdk.pool import Pool

_PREFIX = "dpdk:"
_BUFFERS = 8191  # of a port's own pool
_NAP_S = 50e-6  # seconds between two polls for packets: a port has no descriptor to sleep on
_XSTATS_TRIES = 5
_MEMIF, _MEMIF_MORE_BYTES = "net_memif", 64
_NAME_BYTES_MAX = 63
_COPYING = frozenset(("net_memif", "net_tap", "net_tun", "net_af_packet", "net_pcap", "net_af_xdp"))
# What buses and drivers return for unknown names and arguments; EPERM is a plain -1.
_UNKNOWN = (errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EFAULT, errno.EPERM)
_STATS = {
    "rx_packets": "ipackets",
    "tx_packets": "opackets",
    "rx_bytes": "ibytes",
    "tx_bytes": "obytes",
    "rx_missed": "imissed",
    "rx_errors": "ierrors",
    "tx_errors": "oerrors",
    "rx_no_buffer": "rx_nombuf",
}


@dataclass(frozen=True)
class Link:
    """The link, as reported by the driver. speed_mbps 0: not known."""

    up: bool
    speed_mbps: int
    full_duplex: bool


@dataclass(frozen=True)
class PortInfo:
    """Properties of a port. Names are DPDK's."""

    name: str
    driver: str
    bus: str  # "pci", "vdev"
    mac: str
    numa_node: int  # -1: none
    link: Link
    started: bool
    promiscuous: bool
    driver_copies: bool  # the driver copies packets (memif, tap, af_packet, pcap, af_xdp)
    mtu_bytes: int
    mtu_bytes_max: int
    rx_queues: int
    tx_queues: int
    rx_queues_max: int
    tx_queues_max: int
    rss_table: int
    rx_offloads: tuple[str, ...]
    tx_offloads: tuple[str, ...]


def _spec(text: str) -> Any:
    """Parse a port's specification (host/port_spec.c)."""
    from harp._core import port_spec

    if not isinstance(text, str):
        kind = type(text).__name__
        raise TypeError(f"a port is named by text (net_memif0,role=client), not by {kind}")
    try:
        return port_spec(text.removeprefix(_PREFIX))
    except ValueError as error:
        raise DpdkError(str(error), errno.EINVAL) from None


def _with_buffers(device: str, pool: Pool) -> str:
    """Give memif buffers of the pool's size: its default, 2048 bytes, is too small for MTU 9000."""
    if not device.startswith(_MEMIF) or ",bsize=" in device:
        return device
    return f"{device},bsize={pool.buffer_bytes + _MEMIF_MORE_BYTES}"


def deadline(timeout: float) -> float:
    """Return the time at which a timeout ends; DpdkError: it is negative."""
    if not timeout >= 0:
        raise DpdkError(f"a timeout of {timeout} seconds: 0 or more are possible", errno.EINVAL)
    return time.monotonic() + timeout


def _text(field: Any) -> str:
    return str(ffi.string(field).decode(errors="replace"))


def _offloads(capabilities: int, name: Any) -> tuple[str, ...]:
    bits = (1 << bit for bit in range(64))
    return tuple(_text(name(bit)) for bit in bits if capabilities & bit)


def _refusal(device: str, error: int) -> DpdkError:
    """Return why a device could not be opened."""
    if error in (errno.EEXIST, errno.EBUSY):
        text = f"{device}: in use, by this process or another one; close it first"
        return DpdkError(text, errno.EBUSY)
    if error in _UNKNOWN:
        return DpdkError(
            f"{device}: no such device, or its driver refuses it or its arguments; names look like "
            "0000:00:05.0 (bound to vfio-pci) and net_memif0,role=client, and DPDK's log says more "
            "(harp.dpdk.start(log=sys.stderr))",
            errno.ENODEV,
        )
    return DpdkError(f"{device}: DPDK can't open it: {os.strerror(error)}", error)


def _find(device: str, name: bytes) -> int:
    """Return the port number of a device that was probed."""
    iterator, number = ffi.new("struct rte_dev_iterator *"), ffi.new("uint16_t *")
    if lib.rte_eth_iterator_init(iterator, device.encode()) == 0:
        port = lib.rte_eth_iterator_next(iterator)
        if port != lib.RTE_MAX_ETHPORTS:
            lib.rte_eth_iterator_cleanup(iterator)
            return int(port)
    if lib.rte_eth_dev_get_port_by_name(name, number) == 0:
        return int(number[0])
    raise DpdkError(f"{device}: it exists, but is not an Ethernet device", errno.ENODEV)


class Port(Closing):
    """An Ethernet device of DPDK. The constructor opens and configures it, and starts DPDK if
    needed. Any thread may call; each queue serves one thread at a time.

    Parameters
    ----------
    device
        PCI address or virtual device with its arguments, or a port specification
        ("net_memif0,role=client;mtu=9000;queues=2"), whose mtu and queues are the defaults of the
        arguments.
    rx_queues, tx_queues
        Queues; 0: those of the specification, else 1.
    descriptors
        Of each queue; adapted to the device.
    mtu
        Bytes of an IP packet; 0: that of the specification, else 1500, or the device's limit if
        that is smaller.
    pool
        Where packets are received; None: the port makes a pool.
    promiscuous
        Whether it accepts packets for other MAC addresses.
    start
        Whether to start it.

    Raises
    ------
    DpdkError
        ENODEV: no such device. EBUSY: it is in use. EINVAL: an argument is out of range. ENOMEM.
    """

    def __init__(
        self,
        device: str,
        *,
        rx_queues: int = 0,
        tx_queues: int = 0,
        descriptors: int = 1024,
        mtu: int = 0,
        pool: Pool | None = None,
        promiscuous: bool = True,
        start: bool = True,
    ) -> None:
        self._id: int | None = None
        self._memif = ffi.NULL
        spec = _spec(device)
        if not isinstance(pool, Pool | None):
            raise TypeError(f"pool must be a dpdk.Pool, not {type(pool).__name__}: {pool!r:.60}")
        numbers = {
            "rx_queues": rx_queues or spec.queues,
            "tx_queues": tx_queues or spec.queues,
            "descriptors": descriptors,
            "mtu": mtu or spec.mtu_bytes,
        }
        for name, value in numbers.items():
            if not 0 <= value <= BURST_MAX:
                raise DpdkError(f"{name}={value}: 0 to {BURST_MAX} are possible", errno.EINVAL)
        if not eal.running():
            eal.start()
        require_running()
        self._own_pool = pool is None
        self.pool = pool or Pool(spec.frame_count or _BUFFERS)
        self.name = spec.device.partition(",")[0]
        self._lock = threading.RLock()
        self._started = False
        self._rx_locks = [threading.Lock() for _ in range(numbers["rx_queues"])]
        self._tx_locks = [threading.Lock() for _ in range(numbers["tx_queues"])]
        try:
            self._probe(_with_buffers(spec.device, self.pool))
            self._configure(numbers, promiscuous)
            if start:
                self.start()
        except BaseException:
            self.close()
            self._close_pool()
            raise

    def _probe(self, device: str) -> None:
        name = self.name.encode()
        if not 0 < len(name) <= _NAME_BYTES_MAX:
            raise DpdkError(f"{device[:80]!r} names no device", errno.EINVAL)
        # rte_dev_probe() would succeed for a virtual device that is already open.
        if lib.rte_eth_dev_get_port_by_name(name, ffi.new("uint16_t *")) == 0:
            raise _refusal(device, errno.EBUSY)
        if device.startswith(_MEMIF):
            out, why = ffi.new("struct harp_dpdk_memif **"), Why()
            result = lib.dpdk_memif_probe(out, device.encode(), *why.arguments)
            why.check(-errno.ENODEV if result == -errno.EINVAL else result)
            self._memif = out[0]
        elif result := lib.rte_dev_probe(device.encode()):
            raise _refusal(device, -result)
        self._id = _find(device, name)
        with self.pool._lock:
            self.pool._ports += 1

    def _configure(self, numbers: dict[str, int], promiscuous: bool) -> None:
        options = ffi.new("struct dpdk_port_options *")
        options.rx_queues, options.tx_queues = numbers["rx_queues"], numbers["tx_queues"]
        options.rx_descriptors = options.tx_descriptors = numbers["descriptors"]
        options.mtu_bytes, options.promiscuous = numbers["mtu"], promiscuous
        why = Why()
        with self.pool._lock:
            options.pool = self.pool._open()
            why.check(lib.dpdk_port_configure(self._id, options, *why.arguments))

    @contextlib.contextmanager
    def _control(self) -> Iterator[int]:
        """Return the port's number, for calls other than bursts."""
        require_running()
        with self._lock:
            if self._id is None:
                raise DpdkError(f"{self.name}: use after the end: it was closed", errno.EBADF)
            yield self._id

    @contextlib.contextmanager
    def _all_queues(self) -> Iterator[None]:
        """Lock all queues, so that no thread sends or receives."""
        with contextlib.ExitStack() as stack:
            for lock in (*self._rx_locks, *self._tx_locks):
                stack.enter_context(lock)
            yield

    @contextlib.contextmanager
    def _queue(self, locks: list[threading.Lock], queue: int) -> Iterator[int]:
        """Return the port's number, for bursts of one queue."""
        if not 0 <= queue < len(locks):
            raise DpdkError(f"{self.name}: queue {queue}: it has {len(locks)}", errno.ERANGE)
        require_running()
        with locks[queue]:
            if self._id is None or not self._started:
                reason = "it was closed" if self._id is None else "it is stopped: start() it"
                raise DpdkError(f"{self.name}: {reason}", errno.EBADF)
            yield self._id

    # ----------------------------------------------------------------------------------------------
    # Starting and stopping.
    #
    def start(self) -> None:
        """Start to receive and send; does nothing on a started port."""
        with self._control() as port:
            if not self._started:
                result = lib.dpdk_port_start(port, self._memif)
                refused = result == -errno.ECONNREFUSED
                hint = ": its server does not run, start that first" if refused else ""
                check(result, f"{self.name}: starting it{hint}")
                self._started = True

    def stop(self) -> None:
        """Stop; start() continues. Does nothing on a stopped port."""
        with self._control() as port, self._all_queues():
            if self._started:
                check(lib.dpdk_port_stop(port, self._memif), f"{self.name}: stopping it")
                self._started = False

    def close(self) -> None:
        """Stop and remove the device, which can be opened again; a second call does nothing. The
        port's own pool is freed with its last burst.
        """
        if self._id is None:
            return
        if not eal.running():  # in a forked child the port is the parent's
            self._id = None
            return
        with self._lock, self._all_queues():
            if self._id is None:
                return
            port, self._id, self._started = self._id, None, False
            result = lib.dpdk_port_close(port, self._memif)
        with self.pool._lock:
            self.pool._ports -= 1
        self._close_pool()
        check(result, f"{self.name}: closing it")

    def _close_pool(self) -> None:
        """Close the pool if the port made it. If bursts use it, the last one frees it."""
        if self._own_pool:
            with contextlib.suppress(DpdkError):
                self.pool.close()

    def __del__(self) -> None:
        if getattr(self, "_id", None) is not None and eal.running():
            warnings.warn(f"{self.name}: collected while open", ResourceWarning, stacklevel=1)
            with contextlib.suppress(DpdkError):
                self.close()

    def __repr__(self) -> str:
        state = "closed" if self._id is None else "started" if self._started else "stopped"
        return f"<Port {self.name}, {state}>"

    # ----------------------------------------------------------------------------------------------
    # Properties and counters.
    #
    @property
    def info(self) -> PortInfo:
        """All properties that the driver reports now."""
        device, mtu = ffi.new("struct rte_eth_dev_info *"), ffi.new("uint16_t *")
        name = ffi.new("char[]", lib.RTE_ETH_NAME_MAX_LEN)
        mac = ffi.new("struct rte_ether_addr *")
        with self._control() as port:
            check(lib.rte_eth_dev_info_get(port, device), f"{self.name}: reading its properties")
            lib.rte_eth_dev_get_name_by_port(port, name)
            lib.rte_eth_macaddr_get(port, mac)
            lib.rte_eth_dev_get_mtu(port, mtu)
            driver = _text(device.driver_name)
            return PortInfo(
                name=_text(name),
                driver=driver,
                bus=_text(lib.rte_bus_name(lib.rte_dev_bus(device.device))),
                mac=bytes(mac.addr_bytes).hex(":"),
                numa_node=lib.rte_eth_dev_socket_id(port),
                link=self.link,
                started=self._started,
                promiscuous=lib.rte_eth_promiscuous_get(port) == 1,
                driver_copies=driver in _COPYING,
                mtu_bytes=mtu[0],
                mtu_bytes_max=device.max_mtu,
                rx_queues=device.nb_rx_queues,
                tx_queues=device.nb_tx_queues,
                rx_queues_max=device.max_rx_queues,
                tx_queues_max=device.max_tx_queues,
                rss_table=device.reta_size,
                rx_offloads=_offloads(device.rx_offload_capa, lib.rte_eth_dev_rx_offload_name),
                tx_offloads=_offloads(device.tx_offload_capa, lib.rte_eth_dev_tx_offload_name),
            )

    @property
    def link(self) -> Link:
        """Whether the link is up, and its speed."""
        link = ffi.new("struct dpdk_link *")
        with self._control() as port:
            check(lib.dpdk_port_link(port, link), f"{self.name}: reading its link")
        return Link(bool(link.up), link.speed_mbps, bool(link.full_duplex))

    def stats(self) -> dict[str, int]:
        """Return the counters that every driver has: rx_packets, tx_packets, rx_bytes, tx_bytes,
        rx_missed (no descriptor was free), rx_errors, tx_errors, rx_no_buffer (the pool was empty).
        """
        stats = ffi.new("struct rte_eth_stats *")
        with self._control() as port:
            check(lib.rte_eth_stats_get(port, stats), f"{self.name}: reading its counters")
        return {name: getattr(stats, field) for name, field in _STATS.items()}

    def xstats(self) -> dict[str, int]:
        """Return the driver's own counters, by DPDK's names (such as rx_good_packets)."""
        with self._control() as port:
            for _ in range(_XSTATS_TRIES):
                most = lib.rte_eth_xstats_get_names(port, ffi.NULL, 0)
                check(most, f"{self.name}: reading its counters")
                names = ffi.new("struct rte_eth_xstat_name[]", most + 1)
                values = ffi.new("struct rte_eth_xstat[]", most + 1)
                counts = {
                    lib.rte_eth_xstats_get_names(port, names, most),
                    lib.rte_eth_xstats_get(port, values, most),
                }
                if counts == {most}:
                    return {_text(names[v.id].name): v.value for v in values[0:most]}
        raise DpdkError(f"{self.name}: its counters change too often", errno.EAGAIN)

    # ----------------------------------------------------------------------------------------------
    # Packets.
    #
    def receive(self, most: int = 32, *, queue: int = 0, timeout: float = 0) -> Burst:
        """Return received packets.

        Parameters
        ----------
        most
            Limit of packets to return.
        queue
            The receive queue.
        timeout
            Seconds to wait for a packet.

        Returns
        -------
        Burst
            The packets; empty after the timeout.

        Raises
        ------
        DpdkError
            EBADF: the port is stopped or closed. ERANGE: there is no such queue.
        """
        if not 0 < most <= BURST_MAX:
            raise DpdkError(f"{self.name}: a burst of {most} packets", errno.ERANGE)
        burst = Burst(most, self.pool._handle)
        end = deadline(timeout)
        while True:
            with self._queue(self._rx_locks, queue) as port:
                lib.dpdk_receive(port, queue, burst._handle)
            if burst._handle.count or time.monotonic() >= end:
                return burst
            time.sleep(_NAP_S)

    def send(self, packets: Any, *, queue: int = 0, timeout: float = 1) -> int:
        """Send packets, which leave their burst and belong to the driver.

        Parameters
        ----------
        packets
            A burst, one packet, or several (bytes, or scapy's).
        queue
            The transmit queue.
        timeout
            Seconds without progress after which the call ends.

        Returns
        -------
        int
            The number of packets that the device accepted.

        Raises
        ------
        DpdkError
            EBADF: the port is stopped or closed. EBUSY: bytes of the burst are in use.
        """
        if isinstance(packets, Burst):
            return self._send_burst(packets, queue, timeout)
        is_sequence = isinstance(packets, list | tuple) or (
            isinstance(packets, Iterable)
            and not hasattr(packets, "__bytes__")
            and not isinstance(packets, bytes | bytearray | memoryview)
        )
        with self._control():
            burst = self.pool.build(packets if is_sequence else [packets])
        with burst:
            return self._send_burst(burst, queue, timeout)

    def _send_burst(self, burst: Burst, queue: int, timeout: float) -> int:
        end = deadline(timeout)
        with burst._held() as handle:
            count = int(handle.count)
            burst._release_views()
            burst._generation += 1
            while handle.count:
                with self._queue(self._tx_locks, queue) as port:
                    lib.dpdk_send(port, queue, handle)
                if handle.count:
                    if time.monotonic() >= end:
                        break
                    time.sleep(_NAP_S)
            return count - int(handle.count)
