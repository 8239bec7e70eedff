# SPDX-License-Identifier: Apache-2.0
"""harpd's system calls on the machine: the only part that tests without root replace.

All sockets are made in harpd's own network namespace, which is the NICs'.
"""

import contextlib
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from harp import _host, _paths
from harp.config import DpdkConfig
from harp.daemon import netlink, sockets
from harp.daemon.limits import MemoryRoom
from harp.daemon.loop import close_all
from harp.daemon.messages import Request
from harp.daemon.netlink import Link
from harp.nicprep import Host, pci

PROBE_FRAMES = 64
BIND_WAIT_MS = 20
UNPINNED_S = 1.0
FRAME_BYTES_MAX = 4096
FD_FRAMES = 1  # index in Made.fds: HARP_LEASE_FD_FRAMES
_SYSFS = Path("/sys/class/net")


@dataclass
class Made:
    """The descriptors of a lease; ours until closed. fds: of a queue in the order of enum
    harp_lease_fd; of a DPDK port (queue is None) a statistics page for each queue. page_bytes: size
    of a page.
    """

    fds: list[int]
    page_bytes: int = 0
    queue: _host.Queue | None = None

    def close(self) -> None:
        close_all(self.fds)


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


class Kernel:
    """This machine. Calls raise OSError whose strerror is one line for people."""

    def __init__(self) -> None:
        _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
        self.netns = Path("/proc/self/ns/net").stat().st_ino
        self._unpinned_s = -UNPINNED_S
        self._room = MemoryRoom()

    links = staticmethod(netlink.links)
    addresses = staticmethod(netlink.addresses)
    ports_in_use = staticmethod(sockets.ports_in_use)
    monitor = staticmethod(netlink.NetworkMonitor)
    # For NETWORK and ROUTED; they wait for the kernel, in a worker.
    network = staticmethod(_host.network)
    route = staticmethod(_host.route)

    # ---- what a NIC is ----

    def hardware(self, link: Link, rss: str) -> Hardware:
        read = _host.rss_read(link.ifname)
        if rss:
            read = _host.rss_parse(rss, read.queues)
        sysfs = _SYSFS / link.ifname
        own = _sysfs_is(sysfs, link)
        speed = (Host().number(sysfs / "speed") or 0) if own else 0
        node = Host().number(sysfs / "device" / "numa_node") if own else None
        device = (sysfs / "device").resolve() if own and (sysfs / "device").exists() else None
        return Hardware(
            queues=max(1, read.queues),
            rss_kind=read.kind,
            rss_key=read.key,
            rss_table=read.table,
            speed_mbps=max(0, speed),
            numa_node=-1 if node is None else node,
            pci_path=str(device) if device and "/pci" in str(device) else "",
            guid=int.from_bytes(link.mac, "big") << 16 | (link.ifindex & 0xFFFF),
            default_route=_host.has_default_route(link.ifname),
        )

    # ---- the XDP program ----

    def adopt(self, pins: Path, ifname: str) -> _host.Steering:
        return _host.Steering.adopt(str(pins), ifname)

    def attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[_host.Steering, str]:
        """Attach the program, and pin it if possible; also return the reason for its mode."""
        while True:
            try:
                return self._attach(ifname, mode, pins)
            except OSError as error:
                # The kernel detaches an unpinned program a moment later, without notification.
                if error.errno != errno.EBUSY or time.monotonic() > self._unpinned_s + UNPINNED_S:
                    raise
            time.sleep(UNPINNED_S / 100)

    def _attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[_host.Steering, str]:
        steering = _host.Steering.attach(ifname, mode)
        _pin(steering, pins)
        return steering, steering.why

    def unpin(self, pins: Path) -> bool:
        """Remove our pins there; False without any."""
        self._unpinned_s = time.monotonic()
        return _host.unpin(str(pins))

    # ---- a lease's descriptors ----

    def make(self, request: Request, flows: int) -> Made:
        """Make the descriptors for LEASED. Waits only briefly for the queue, so that workers stay
        available: EBUSY. Runs in a worker. flows: records on the statistics page.
        """
        room = self._room.take(request.frame_count * FRAME_BYTES_MAX)
        with room, contextlib.ExitStack() as undo:
            queue = _host.queue_make(
                request.ifname,
                request.queue,
                frame_count=request.frame_count,
                copy_mode=request.copy_mode,
                bind_retry_ms=BIND_WAIT_MS,
            )
            fds = [queue.xsk_fd, queue.frames_fd]
            undo.callback(close_all, fds)
            page_fd, page_bytes = _host.page_create(flows)
            fds.append(page_fd)
            undo.pop_all()
        return Made(fds, page_bytes, queue)

    def queue_free(self, ifname: str, queue: int) -> bool:
        """Tell whether the queue can be bound, by binding a small socket once. Runs in a worker."""
        try:
            made = _host.queue_make(
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

    # ---- DPDK ports ----

    def port(self, port: DpdkConfig) -> PortFacts:
        """Read sysfs about a port's device, and whether the host's network depends on it."""
        address = pci.canonical(port.device)
        found = pci.find(Host(), address) if address else None
        problem = pci.unbound(Host(), port.device)
        try:
            _host.port_take_check(port.text)
        except OSError as error:
            problem = error.strerror or str(error)
        if found is None:
            return PortFacts(problem)
        return PortFacts(problem, found.numa_node, str(found.folder.resolve()))

    def pages(self, count: int, flows: int) -> Made:
        made = Made([])
        try:
            for _ in range(count):
                fd, made.page_bytes = _host.page_create(flows)
                made.fds.append(fd)
        except BaseException:
            made.close()
            raise
        return made


def _pin(steering: _host.Steering, pins: Path | None) -> None:
    """Close the descriptor after a failure."""
    try:
        if pins is not None:
            steering.pin(str(pins))
    except BaseException:
        steering.close()
        raise


def _sysfs_is(sysfs: Path, link: Link) -> bool:
    found = Host().number(sysfs / "ifindex"), Host().read(sysfs / "address")
    return found == (link.ifindex, link.mac.hex(":"))
