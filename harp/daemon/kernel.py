# SPDX-License-Identifier: Apache-2.0
"""harpd's system calls on the machine: the only part that tests without root replace.

All sockets are made in harpd's own network namespace, which is the NICs'.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harp.config import DpdkConfig
from harp.daemon import netlink, sockets
from harp.daemon.limits import MemoryRoom
from harp.daemon.loop import close_all
from harp.daemon.netlink import Address, Link, News
from harp.daemon.ports import Block
from harp.nicprep import Host, pci

if TYPE_CHECKING:
    from harp._host import Steering

PROBE_FRAMES = 64
BIND_WAIT_MS = 20
UNPINNED_S = 1.0
FRAME_BYTES_MAX = 4096
FD_FRAMES = 1  # index in Made.fds: HARP_LEASE_FD_FRAMES
_SYSFS = Path("/sys/class/net")


class SteeringLike(Protocol):
    """The XDP program of one NIC: harp._host.Steering, or a test's."""

    @property
    def native(self) -> bool: ...
    def check(self) -> str: ...
    def replace(self) -> None: ...
    def xsk_set(self, queue: int, fd: int) -> None: ...
    def ports_set(self, first: int, last: int, home_queue: int, ours: bool) -> None: ...
    def address_set(self, address: bytes, ours: bool) -> None: ...
    def sources_set(self, sources: Iterable[tuple[bytes, int]]) -> None: ...
    def verdicts(self) -> list[int]: ...
    def arrivals(self, count: int) -> list[tuple[int, int, int]]: ...
    def close(self) -> None: ...


class MonitorLike(Protocol):
    """Changes of the network: harp.daemon.netlink.NetworkMonitor, or a test's."""

    def fileno(self) -> int: ...
    def read(self) -> News: ...
    def resolve(self, neighbors: list[tuple[int, bytes]]) -> None: ...
    def confirm(self, ifindex: int, addr: bytes) -> None: ...
    def close(self) -> None: ...


@dataclass
class Made:
    """The descriptors of a lease, in the order of enum harp_lease_fd; ours until closed."""

    fds: list[int]
    frame_size: int
    frame_count: int
    ring_size: int
    features: int
    tx_frags_max: int
    mtu_bytes: int
    zero_copy: bool
    mac: bytes
    ifindex: int
    page_bytes: int

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        while self.fds:
            os.close(self.fds.pop())


@dataclass(frozen=True)
class Wish:
    """Parameters of a new queue. flows: records on the statistics page."""

    ifname: str
    queue: int
    frames: int
    copy_mode: int
    flows: int


@dataclass
class Pages:
    """The descriptors of a lease of a DPDK port: a statistics page for each queue."""

    fds: list[int]
    page_bytes: int

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        while self.fds:
            os.close(self.fds.pop())


@dataclass(frozen=True)
class PortFacts:
    """State of a DPDK port. problem: why it can't be opened now; empty: no known reason."""

    problem: str = ""
    numa_node: int = -1
    pci_path: str = ""


@dataclass(frozen=True)
class Hardware:
    """Constant properties of a NIC. numa_node -1, speed 0: not known."""

    queues: int = 1
    rss_kind: int = 0
    rss_key: bytes = b""
    rss_table: tuple[int, ...] = ()
    speed_mbps: int = 0
    numa_node: int = -1
    pci_path: str = ""
    guid: int = 0
    default_route: bool = False


class Kernel(Protocol):
    """The machine, as harpd uses it. Calls raise OSError whose strerror is one line for people."""

    netns: int

    def links(self) -> dict[str, Link]: ...
    def addresses(self) -> list[Address]: ...
    def hardware(self, link: Link, rss: str) -> Hardware: ...
    def adopt(self, pins: Path, ifname: str) -> SteeringLike: ...
    def attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[SteeringLike, str]: ...
    def unpin(self, pins: Path) -> bool: ...
    def ports_in_use(self, span: Block) -> frozenset[int]: ...
    def make(self, wish: Wish) -> Made: ...
    def queue_free(self, ifname: str, queue: int) -> bool: ...
    def port(self, port: DpdkConfig) -> PortFacts: ...
    def pages(self, count: int, flows: int) -> Pages: ...
    def network(self, ifindex: int) -> bytes: ...
    def route(self, ifindex: int, dst: bytes) -> bytes: ...
    def monitor(self) -> MonitorLike: ...


class HostKernel:
    """This machine."""

    def __init__(self) -> None:
        # Compiled; imported here so that the other modules can be tested without it.
        from harp import _host, _paths

        _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
        self._host = _host
        self.netns = Path("/proc/self/ns/net").stat().st_ino
        self._unpinned_s = -UNPINNED_S
        self._room = MemoryRoom()

    links = staticmethod(netlink.links)
    monitor = staticmethod(netlink.NetworkMonitor)
    addresses = staticmethod(netlink.addresses)
    ports_in_use = staticmethod(sockets.ports_in_use)

    # ---- what a NIC is ----

    def hardware(self, link: Link, rss: str) -> Hardware:
        """Read a NIC's properties; sysfs is used only if it shows this very interface."""
        read = self._host.rss_read(link.ifname)
        if rss:
            read = self._host.rss_parse(rss, read.queues)
        sysfs = _SYSFS / link.ifname
        own = _sysfs_is(sysfs, link)
        speed = _number(sysfs / "speed", 0) if own else 0
        device = (sysfs / "device").resolve() if own and (sysfs / "device").exists() else None
        return Hardware(
            queues=max(1, read.queues),
            rss_kind=read.kind,
            rss_key=read.key,
            rss_table=read.table,
            speed_mbps=max(0, speed),
            numa_node=_number(sysfs / "device" / "numa_node", -1) if own else -1,
            pci_path=str(device) if device and "/pci" in str(device) else "",
            guid=int.from_bytes(link.mac, "big") << 16 | (link.ifindex & 0xFFFF),
            default_route=self._host.has_default_route(link.ifname),
        )

    # ---- the XDP program ----

    def adopt(self, pins: Path, ifname: str) -> SteeringLike:
        """As Steering.adopt()."""
        return self._host.Steering.adopt(str(pins), ifname)

    def attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[SteeringLike, str]:
        """Attach the program, and pin it if possible; also return the reason for its mode."""
        while True:
            try:
                return self._attach(ifname, mode, pins)
            except OSError as error:
                # The kernel detaches an unpinned program a moment later, without notification.
                if error.errno != errno.EBUSY or time.monotonic() > self._unpinned_s + UNPINNED_S:
                    raise
            time.sleep(UNPINNED_S / 100)

    def _attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[SteeringLike, str]:
        steering = self._host.Steering.attach(ifname, mode)
        _pin(steering, pins)
        return steering, steering.why

    def unpin(self, pins: Path) -> bool:
        """Remove our pins there; False without any."""
        self._unpinned_s = time.monotonic()
        return self._host.unpin(str(pins))

    # ---- a lease's descriptors ----

    def make(self, wish: Wish) -> Made:
        """Make the descriptors for LEASED. Waits only briefly for the queue, so that workers stay
        available: EBUSY. Runs in a worker.
        """
        room = self._room.take(wish.frames * FRAME_BYTES_MAX)
        with room, contextlib.ExitStack() as undo:
            q = self._host.queue_make(
                wish.ifname,
                wish.queue,
                frame_count=wish.frames,
                copy_mode=wish.copy_mode,
                bind_retry_ms=BIND_WAIT_MS,
            )
            fds = [q.xsk_fd, q.frames_fd]
            undo.callback(close_all, fds)
            page_fd, page_bytes = self._host.page_create(wish.flows)
            fds.append(page_fd)
            undo.pop_all()
        return Made(
            fds, q.frame_size, q.frame_count, q.ring_size, q.features, q.tx_frags_max, q.mtu_bytes,
            q.zero_copy, q.mac, q.ifindex, page_bytes,
        )  # fmt: skip

    def queue_free(self, ifname: str, queue: int) -> bool:
        """Tell whether the queue can be bound, by binding a small socket once. Runs in a worker."""
        try:
            made = self._host.queue_make(
                ifname,
                queue,
                frame_count=PROBE_FRAMES,
                ring_size=64,
                huge_pages=1,
                bind_retry_ms=1,
            )
        except OSError as error:
            # Only EBUSY is a reason to wait; the next lease reports any other error.
            return error.errno != errno.EBUSY
        close_all([made.xsk_fd, made.frames_fd])
        return True

    # ---- the network, for jobs of other namespaces
    # ------------------------------------------------

    def network(self, ifindex: int) -> bytes:
        """As _host.network(): waits for the kernel. Runs in a worker."""
        return self._host.network(ifindex)

    def route(self, ifindex: int, dst: bytes) -> bytes:
        """As _host.route(): likewise."""
        return self._host.route(ifindex, dst)

    # ---- DPDK ports ----

    def port(self, port: DpdkConfig) -> PortFacts:
        """Read sysfs about a port's device, and whether the host would lose its network without
        it.
        """
        address = pci.canonical(port.device)
        found = pci.look(Host(), address) if address else None
        problem = pci.unbound(Host(), port.device)
        try:
            self._host.port_take_check(port.text)
        except OSError as error:
            problem = error.strerror or str(error)
        if found is None:
            return PortFacts(problem)
        return PortFacts(problem, found.numa_node, str(found.folder.resolve()))

    def pages(self, count: int, flows: int) -> Pages:
        """Make statistics pages."""
        made = Pages([], 0)
        try:
            for _ in range(count):
                fd, made.page_bytes = self._host.page_create(flows)
                made.fds.append(fd)
        except BaseException:
            made.close()
            raise
        return made


def _pin(steering: "Steering", pins: Path | None) -> None:
    """Close the descriptor after a failure."""
    try:
        if pins is not None:
            steering.pin(str(pins))
    except BaseException:
        steering.close()
        raise


def _number(path: Path, absent: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return absent


def _sysfs_is(sysfs: Path, link: Link) -> bool:
    try:
        address = (sysfs / "address").read_text().strip()
    except OSError:
        return False
    return _number(sysfs / "ifindex", -1) == link.ifindex and address == link.mac.hex(":")
