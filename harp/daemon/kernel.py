# SPDX-License-Identifier: Apache-2.0
"""harpd's system calls. Tests without root replace this module only.

All sockets are made in harpd's own network namespace, which is also that of the NICs.
"""

import contextlib
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from harp import _host, _paths
from harp.config import DpdkConfig
from harp.daemon import netlink, sockets
from harp.daemon.limits import MemoryBudget
from harp.daemon.loop import close_all
from harp.daemon.messages import Request
from harp.daemon.netlink import Link
from harp.nicprep import Host, pci

PROBE_FRAMES = 64
BIND_WAIT_MS = 20
UNPINNED_S = 1.0
FRAME_BYTES_MAX = 4096
FD_FRAMES = 1  # index in LeaseFds.fds: HARP_LEASE_FD_FRAMES
_SYSFS = Path("/sys/class/net")


@dataclass
class LeaseFds:
    """harpd's descriptors of a new lease. fds: for a queue, in the order of enum harp_lease_fd; for
    a DPDK port (queue is None), a statistics page for each queue. page_bytes: size of a page.
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
    """This machine. Calls raise OSError whose strerror is a complete message."""

    def __init__(self) -> None:
        _host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))
        self.netns = Path("/proc/self/ns/net").stat().st_ino
        self._unpinned_s = -UNPINNED_S
        self._memory = MemoryBudget()

    links = staticmethod(netlink.links)
    addresses = staticmethod(netlink.addresses)
    ports_in_use = staticmethod(sockets.ports_in_use)
    monitor = staticmethod(netlink.NetworkMonitor)
    # For NETWORK and ROUTED. They wait for the kernel, so they run in a worker.
    network = staticmethod(_host.network)
    route = staticmethod(_host.route)

    # ---- properties of a NIC ----

    def hardware(self, link: Link, rss: str) -> Hardware:
        read = _host.rss_read(link.ifname)
        if rss:
            read = _host.rss_parse(rss, read.queues)
        sysfs = _SYSFS / link.ifname
        same = _is_sysfs_of(sysfs, link)
        speed = (Host().number(sysfs / "speed") or 0) if same else 0
        node = Host().number(sysfs / "device" / "numa_node") if same else None
        device = (sysfs / "device").resolve() if same and (sysfs / "device").exists() else None
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
                # The kernel detaches an unpinned program with a delay, and does not notify harpd.
                if error.errno != errno.EBUSY or time.monotonic() > self._unpinned_s + UNPINNED_S:
                    raise
            time.sleep(UNPINNED_S / 100)

    def _attach(self, ifname: str, mode: int, pins: Path | None) -> tuple[_host.Steering, str]:
        steering = _host.Steering.attach(ifname, mode)
        try:
            if pins is not None:
                steering.pin(str(pins))
        except BaseException:
            steering.close()
            raise
        return steering, steering.why

    def unpin(self, pins: Path) -> bool:
        """Remove harpd's pins; False if there are none."""
        self._unpinned_s = time.monotonic()
        return _host.unpin(str(pins))

    # ---- a lease's descriptors ----

    def make(self, request: Request, flows: int) -> LeaseFds:
        """Make the descriptors for LEASED. Waits for the queue for BIND_WAIT_MS only, so that
        workers stay available; EBUSY then. Runs in a worker. flows: records on the statistics page.
        """
        memory = self._memory.take(request.frame_count * FRAME_BYTES_MAX)
        with memory, contextlib.ExitStack() as undo:
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
        return LeaseFds(fds, page_bytes, queue)

    def is_queue_free(self, ifname: str, queue: int) -> bool:
        """Tell whether the queue can be bound, by binding a small socket once. Runs in a worker."""
        try:
            probe = _host.queue_make(
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
        close_all([probe.xsk_fd, probe.frames_fd])
        return True

    # ---- DPDK ports ----

    def port(self, port: DpdkConfig) -> PortFacts:
        """Read the properties of a port's device, and check that the host does not need it."""
        address = pci.canonical(port.device)
        device = pci.find(Host(), address) if address else None
        problem = pci.unbound(Host(), port.device)
        try:
            _host.port_take_check(port.text)
        except OSError as error:
            problem = error.strerror or str(error)
        if device is None:
            return PortFacts(problem)
        return PortFacts(problem, device.numa_node, str(device.folder.resolve()))

    def pages(self, count: int, flows: int) -> LeaseFds:
        pages = LeaseFds([])
        try:
            for _ in range(count):
                fd, pages.page_bytes = _host.page_create(flows)
                pages.fds.append(fd)
        except BaseException:
            pages.close()
            raise
        return pages


def _is_sysfs_of(sysfs: Path, link: Link) -> bool:
    """Tell whether the directory is the link's: /sys may show another network namespace."""
    identity = Host().number(sysfs / "ifindex"), Host().read(sysfs / "address")
    return identity == (link.ifindex, link.mac.hex(":"))
