# SPDX-License-Identifier: Apache-2.0
"""A fake kernel for harpd, without root: NICs, queues and XDP maps are dictionaries."""

import errno
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harp import _host, _page
from harp.config import DpdkConfig
from harp.daemon.kernel import Hardware, Kernel, LeaseFds, PortFacts
from harp.daemon.messages import Request
from harp.daemon.netlink import Address, Changes, Link
from harp.daemon.ports import Block

V4 = b"\0" * 10 + b"\xff\xff"


@dataclass
class FakeSteering:
    """The maps of the XDP program. failing: the name of the method that raises."""

    native: bool = False
    why: str = "generic XDP: a fake"
    problem: str = ""  # the result of check()
    xsks: dict[int, int] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)
    addresses: set[bytes] = field(default_factory=set)
    sources: list[tuple[bytes, int]] = field(default_factory=list)
    closed: bool = False
    replaced: int = 0
    failing: str = ""
    # By queue: HARP packets, how many of them belong to other queues, and a bitmap of their flows.
    arrived: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def _may_fail(self, name: str) -> None:
        if self.failing == name:
            raise OSError(errno.E2BIG, f"fake: {name}: the map is full")

    def check(self) -> str:
        self._may_fail("check")
        return self.problem

    def replace(self) -> None:
        self._may_fail("replace")
        self.replaced += 1

    def xsk_set(self, queue: int, fd: int) -> None:
        if fd < 0:
            self.xsks.pop(queue, None)
            return
        self._may_fail("xsk_set")
        self.xsks[queue] = os.fstat(fd).st_ino

    def ports_set(self, first: int, last: int, rx_queue: int, ours: bool) -> None:
        for port in range(first, last + 1):
            if ours:
                self._may_fail("ports_set")
                self.ports[port] = rx_queue
            else:
                self.ports.pop(port, None)

    def address_set(self, address: bytes, ours: bool) -> None:
        self._may_fail("address_set")
        (self.addresses.add if ours else self.addresses.discard)(address)

    def sources_set(self, sources: Iterable[tuple[bytes, int]]) -> None:
        self._may_fail("sources_set")
        self.sources = list(sources)

    def verdicts(self) -> dict[str, int]:
        return {name: 0 for name, _ in _page.LISTS["verdict"]}

    def arrivals(self, count: int) -> list[tuple[int, int, int]]:
        self._may_fail("arrivals")
        return [self.arrived.get(queue, (0, 0, 0)) for queue in range(count)]

    def close(self) -> None:
        self.closed = True


def link(ifname: str = "eth0", ifindex: int = 2) -> Link:
    return Link(ifname, ifindex, True, 1500, b"\2\0\0\0\0\1", True, False)


def address(last: int, ifindex: int = 2) -> Address:
    return Address(V4 + bytes([10, 0, 0, last]), ifindex, 6)


NETWORK_BYTES, ROUTED_BYTES = 3096, 64  # payload of NETWORK and ROUTED after header and lease


class FakeMonitor:
    """A monitor whose changes a test announces. failing: read() raises."""

    def __init__(self) -> None:
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._network_changed: list[Changes] = []
        self.resolved: list[tuple[int, bytes]] = []
        self.confirmed: list[tuple[int, bytes]] = []
        self.failing = False
        self.closed = False

    def announce(self, changes: Changes) -> None:
        self._network_changed.append(changes)
        os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        return self._wake_fd

    def read(self) -> Changes:
        if self.failing:
            raise OSError(errno.EBADF, "fake: no monitor")
        os.eventfd_read(self._wake_fd)
        merged = Changes()
        while self._network_changed:
            changes = self._network_changed.pop(0)
            merged.interfaces |= changes.interfaces
            merged.routes |= changes.routes
            merged.lost |= changes.lost
            merged.neighbors += changes.neighbors
        return merged

    def resolve(self, neighbors: list[tuple[int, bytes]]) -> None:
        self.resolved += neighbors

    def confirm(self, ifindex: int, addr: bytes) -> None:
        self.confirmed.append((ifindex, addr))

    def close(self) -> None:
        self.closed = True
        os.close(self._wake_fd)


class FakeKernel(Kernel):
    """A queue stays busy after its lease, until the test frees it."""

    netns = 4711

    def __init__(self, queues: int = 4) -> None:
        self.present = {"eth0": link()}
        self.local_addresses = [address(1)]
        self.queues = queues
        self.pinned: dict[str, FakeSteering] = {}
        self.steerings: list[FakeSteering] = []
        self.busy_queues: set[tuple[str, int]] = set()
        self.queues_made: list[LeaseFds] = []
        self.ports: frozenset[int] = frozenset()  # local ports of the kernel's sockets
        self.port_reads = 0
        self.attach_error: OSError | None = None
        self.make_error: OSError | None = None
        self.unpinned: list[str] = []
        self.port_problems: dict[str, str] = {}  # of DPDK ports, by name
        self.pages_made: list[LeaseFds] = []
        self.monitors: list[FakeMonitor] = []
        self.network_byte = b"a"  # fills the answer of network()
        self.reads: list[int] = []
        self.routes: list[tuple[int, bytes]] = []
        self.network_error: OSError | None = None
        # While cleared, a worker that creates a lease waits.
        self.may_make = threading.Event()
        self.may_make.set()
        self.making = threading.Event()

    def links(self) -> dict[str, Link]:
        return dict(self.present)

    def addresses(self) -> list[Address]:
        return list(self.local_addresses)

    def change(self, **fields: object) -> None:
        """Change fields of the NIC: up, mtu_bytes, ifindex ..."""
        self.present["eth0"] = replace(self.present["eth0"], **fields)  # type: ignore[arg-type]

    def hardware(self, _link: Link, _rss: str) -> Hardware:
        return Hardware(queues=self.queues, rss_kind=1 if self.queues > 1 else 0)

    def adopt(self, pins: Path, ifname: str) -> FakeSteering:
        steering = self.pinned.get(str(pins))
        if steering is None:
            raise OSError(errno.ENOENT, f"{ifname}: nothing is pinned in {pins}")
        if steering.failing == "adopt":
            raise OSError(errno.ESTALE, f"{ifname}: pins of another layout")
        steering.closed = False
        return steering

    def attach(self, ifname: str, _mode: int, pins: Path | None) -> tuple[FakeSteering, str]:
        if self.attach_error is not None:
            raise self.attach_error
        steering = FakeSteering()
        self.steerings.append(steering)
        if pins is not None:
            pins.mkdir()
            self.pinned[str(pins)] = steering
        return steering, f"{ifname}: generic XDP: a fake"

    def unpin(self, pins: Path) -> bool:
        steering = self.pinned.pop(str(pins), None)
        if steering is not None:
            self.unpinned.append(str(pins))
            pins.rmdir()
        return steering is not None

    def ports_in_use(self, _span: Block) -> frozenset[int]:
        self.port_reads += 1
        return self.ports

    def make(self, request: Request, _flows: int) -> LeaseFds:
        self.making.set()
        assert self.may_make.wait(20)
        if self.make_error is not None:
            raise self.make_error
        ifname, key = request.ifname, (request.ifname, request.queue)
        if key in self.busy_queues:
            raise OSError(errno.EBUSY, f"{ifname} queue {request.queue}: another socket owns it")
        fds = [os.memfd_create(f"fake-{n}") for n in range(_host.FDS)]
        nic = self.present[ifname]
        queue = _host.Queue(
            -1, -1, nic.ifindex, request.queue, 2048, request.frame_count, 2048, nic.mtu_bytes, 0,
            17, False, nic.mac,
        )  # fmt: skip
        made = LeaseFds(fds, 4096, queue)
        self.queues_made.append(made)
        self.busy_queues.add(key)
        return made

    def port(self, port: DpdkConfig) -> PortFacts:
        return PortFacts(self.port_problems.get(port.port, ""), numa_node=1, pci_path="/sys/x")

    def pages(self, count: int, _flows: int) -> LeaseFds:
        self.making.set()
        assert self.may_make.wait(20)
        if self.make_error is not None:
            raise self.make_error
        made = LeaseFds([os.memfd_create(f"fake-page-{n}") for n in range(count)], 4096)
        self.pages_made.append(made)
        return made

    def network(self, ifindex: int) -> bytes:
        self.reads.append(ifindex)
        if self.network_error is not None:
            raise self.network_error
        return self.network_byte * NETWORK_BYTES

    def route(self, ifindex: int, dst: bytes) -> bytes:
        self.routes.append((ifindex, dst))
        return bytes(ROUTED_BYTES)

    def monitor(self) -> FakeMonitor:
        self.monitors.append(FakeMonitor())
        return self.monitors[-1]

    def is_queue_free(self, ifname: str, queue: int) -> bool:
        return (ifname, queue) not in self.busy_queues
