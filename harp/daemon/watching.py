# SPDX-License-Identifier: Apache-2.0
"""Notifies jobs of other network namespaces of changes: link, addresses, routes and neighbors.

Such a job can't ask the kernel about the NIC's network namespace (docs/security.md). It sends WATCH
once for each lease and connection, and then gets all changes. It sends NEIGHBORS for next hops, at
most NEIGHBORS_LEASE_MAX per lease, and ROUTE for one destination.

Limits:

- Pending changes are stored as the difference between the state that the client has and the current
  one: one network and NEIGHBORS_LEASE_MAX neighbors.
- One worker queries the kernel, one request at a time, so that other workers are free for leases.
- harpd reads an interface at most READS_PER_S times a second, for all its watches together.
- A user may add NEIGHBORS_PER_S neighbors a second, because the host's table is shared.
- The rate of messages is limited for all clients (server.py).
"""

import asyncio
import errno
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from harp._host import CONFIRMED, KNOWN, NEIGHBORS_LEASE_MAX, NEIGHBORS_MAX, WANTED, Kind
from harp.daemon.kernel import Kernel
from harp.daemon.leasing import Leasing
from harp.daemon.limits import Buckets
from harp.daemon.loop import Loop
from harp.daemon.messages import LeaseId, Neighbor, pack, pack_neighbors
from harp.daemon.netlink import NetworkMonitor
from harp.daemon.server import Client
from harp.daemon.table import Lease, RefusedError

log = logging.getLogger("harpd")
T = TypeVar("T")
READS_PER_S = 10.0
NEIGHBORS_PER_S, NEIGHBORS_BURST = 50.0, 512.0
RESOLVE_BATCH = 128
NeighborKey = tuple[int, bytes]  # an interface's index, and a neighbor's address in 16 bytes


@dataclass(eq=False)
class _Watch:
    """The watch of one lease. known: set when the interface was read, for which WATCH waits.
    neighbors: the MAC address that the job has, None: not known; in the order of its requests.
    """

    client: Client
    lease: Lease
    ifindex: int
    known: asyncio.Event = field(default_factory=asyncio.Event)
    network: bytes = b""
    neighbors: dict[bytes, bytes | None] = field(default_factory=dict)
    changed: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(eq=False)
class _Network:
    """A watched interface. state: when it was last read; stale: it must be read again."""

    watches: set[_Watch] = field(default_factory=set)
    state: bytes = b""
    stale: bool = False
    reading: bool = False  # a task reads it, or waits for READS_PER_S


class Watching:
    """All watches. Used by the loop's thread."""

    def __init__(self, loop: Loop, kernel: Kernel, leasing: Leasing) -> None:
        self._loop, self._kernel, self._leasing = loop, kernel, leasing
        self._worker = asyncio.Lock()  # its holder queries the kernel
        self._monitor: NetworkMonitor | None = None
        self._watches: dict[int, _Watch] = {}  # by lease
        self._of_client: dict[Client, _Watch] = {}
        self._networks: dict[int, _Network] = {}  # by interface
        self._of_neighbor: dict[NeighborKey, set[_Watch]] = {}
        self._resolve: dict[NeighborKey, None] = {}  # to request from the kernel
        self._resolving: NetworkMonitor | None = None
        self._new_neighbors = Buckets(NEIGHBORS_PER_S, NEIGHBORS_BURST)
        leasing.on_end = self._lease_ended

    # ---- requests of jobs ----

    async def watch(self, client: Client, serial: int, lease_id: int) -> bytes:
        """Handle WATCH, which waits until the interface was read; RefusedError."""
        lease = self._lease(client, lease_id)
        previous = self._watches.get(lease_id)
        self._client_closed(client)
        if previous is not None and previous.client is not client:
            previous.client.close("")
        self._open()
        watch = _Watch(client, lease, lease.ifindex)
        self._watches[lease_id] = self._of_client[client] = watch
        self._networks.setdefault(watch.ifindex, _Network()).watches.add(watch)
        client.closed = lambda: self._client_closed(client)
        self._read(watch.ifindex)
        await watch.known.wait()
        if self._of_client.get(client) is not watch:
            raise RefusedError(errno.ENOENT, f"lease {lease_id:016x} has ended")
        watch.network = self._networks[watch.ifindex].state
        client.next_notification = lambda: self._next_notification(watch)
        return pack(Kind.NETWORK, serial, LeaseId(lease_id), watch.network)

    def neighbors(self, client: Client, entries: list[Neighbor]) -> None:
        """Handle NEIGHBORS of a job; RefusedError."""
        watch = self._of_client.get(client)
        if watch is None:
            raise RefusedError(errno.ENOENT, "NEIGHBORS needs a watched lease; send WATCH first")
        for neighbor in entries:
            if neighbor.flags & WANTED and _is_unicast(neighbor.addr):
                self._request_neighbor(watch, neighbor.addr)
            known = watch.neighbors.get(neighbor.addr)
            if neighbor.flags & CONFIRMED and known and self._monitor is not None:
                self._monitor.confirm(watch.lease.ifindex, neighbor.addr)

    async def route(self, client: Client, lease_id: int, dst: bytes) -> bytes:
        """Handle ROUTE; RefusedError."""
        ifindex = self._lease(client, lease_id).ifindex
        try:
            return await self._query_kernel(lambda: self._kernel.route(ifindex, dst))
        except OSError as error:
            why = f"the route can't be looked up: {error}"
            raise RefusedError(errno.EIO, why) from error

    async def _query_kernel(self, request: Callable[[], T]) -> T:
        """Run a request in a worker, one at a time."""
        async with self._worker:
            return await self._loop.work(request)

    def _lease(self, client: Client, lease_id: int) -> Lease:
        owner = client.peer.owner
        lease = self._leasing.table.leases.get(lease_id)
        if lease is None or lease.owner != owner or not lease.active or lease.device:
            raise RefusedError(
                errno.ENOENT, f"process {owner.pid} has no lease {lease_id:016x} of a queue"
            )
        return lease

    def _request_neighbor(self, watch: _Watch, addr: bytes) -> None:
        neighbor = (watch.lease.ifindex, addr)
        if addr in watch.neighbors:
            del watch.neighbors[addr]
        else:
            # Over the limit do nothing: the job repeats the request.
            if self._new_neighbors.take(watch.lease.owner.uid, self._loop.time()) > 0:
                return
            if len(watch.neighbors) >= NEIGHBORS_LEASE_MAX:
                self._forget(watch, next(iter(watch.neighbors)))
        watch.neighbors[addr] = None
        self._of_neighbor.setdefault(neighbor, set()).add(watch)
        self._resolve[neighbor] = None
        self._resolve_next()

    # ---- the end of a watch ----

    def _forget(self, watch: _Watch, addr: bytes) -> None:
        neighbor = (watch.lease.ifindex, addr)
        del watch.neighbors[addr]
        watch.changed.pop(addr, None)
        others = self._of_neighbor[neighbor]
        others.discard(watch)
        if not others:
            del self._of_neighbor[neighbor]
            self._resolve.pop(neighbor, None)

    def _drop(self, watch: _Watch) -> None:
        for addr in list(watch.neighbors):
            self._forget(watch, addr)
        watch.client.next_notification = None
        watch.known.set()
        del self._watches[watch.lease.lease_id]
        del self._of_client[watch.client]
        network = self._networks[watch.ifindex]
        network.watches.discard(watch)
        if not network.watches:
            del self._networks[watch.ifindex]

    def _client_closed(self, client: Client) -> None:
        watch = self._of_client.get(client)
        if watch is not None:
            self._drop(watch)
        if not self._watches:
            self.close()

    def _lease_ended(self, lease: Lease) -> None:
        watch = self._watches.get(lease.lease_id)
        if watch is not None:
            self._drop(watch)

    # ---- the kernel ----

    def _open(self) -> None:
        if self._monitor is not None:
            return
        try:
            self._monitor = self._kernel.monitor()
        except OSError as error:
            raise RefusedError(error.errno or errno.EIO, f"rtnetlink: {error.strerror}") from error
        self._loop.add_reader(self._monitor, self._readable)

    def close(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is None:
            return
        self._loop.remove_reader(monitor)
        if self._resolving is not monitor:  # _resolve_batch() closes that one
            monitor.close()

    def _readable(self) -> None:
        assert self._monitor is not None
        try:
            changes = self._monitor.read()
        except OSError as error:
            log.warning("monitoring the network: %s; jobs must connect again", error.strerror)
            for client in list(self._of_client):
                client.close("")
            return
        everything = changes.routes or changes.lost
        for ifindex in list(self._networks):
            if everything or ifindex in changes.interfaces:
                self._read(ifindex)
        if changes.lost:
            self._resolve |= dict.fromkeys(self._of_neighbor)
            self._resolve_next()
        affected = set()
        for ifindex, addr, mac in changes.neighbors:
            for watch in self._of_neighbor.get((ifindex, addr), ()):
                if watch.neighbors[addr] == mac:
                    watch.changed.pop(addr, None)
                else:
                    watch.changed[addr] = mac
                    affected.add(watch)
        for watch in affected:
            watch.client.notify()

    def _resolve_next(self) -> None:
        if self._resolving is None and self._resolve and self._monitor is not None:
            self._resolving = self._monitor
            self._loop.spawn(self._resolve_batch(self._monitor))

    async def _resolve_batch(self, monitor: NetworkMonitor) -> None:
        batch = list(self._resolve)[:RESOLVE_BATCH]
        for neighbor in batch:
            del self._resolve[neighbor]
        try:
            await self._query_kernel(lambda: monitor.resolve(batch))
        except OSError as error:  # the jobs repeat their requests
            log.debug("asking the kernel for neighbors: %s", error)
        finally:
            self._resolving = None
            # The worker used the descriptor until now.
            if self._monitor is not monitor:
                monitor.close()
        self._resolve_next()

    # ---- networks ----

    def _read(self, ifindex: int) -> None:
        network = self._networks[ifindex]
        network.stale = True
        if not network.reading:
            network.reading = True
            self._loop.spawn(self._read_network(ifindex, network))

    async def _read_network(self, ifindex: int, network: _Network) -> None:
        while network.stale and self._networks.get(ifindex) is network:
            network.stale = False
            try:
                network.state = await self._query_kernel(lambda: self._kernel.network(ifindex))
            except OSError as error:  # the tables change while they are read
                log.debug("interface %d: %s", ifindex, error)
                network.stale = True
            for watch in list(network.watches) if network.state else ():
                watch.known.set()
                watch.client.notify()
            await asyncio.sleep(1 / READS_PER_S)
        network.reading = False

    def _next_notification(self, watch: _Watch) -> bytes | None:
        """Return the next notification; None if the client has the current state."""
        network = self._networks[watch.ifindex]
        if watch.network != network.state:
            watch.network = network.state
            return pack(Kind.NETWORK, 0, LeaseId(watch.lease.lease_id), watch.network)
        if not watch.changed:
            return None
        batch = list(watch.changed.items())[:NEIGHBORS_MAX]
        for addr, mac in batch:
            del watch.changed[addr]
            watch.neighbors[addr] = mac
        return pack_neighbors(0, [Neighbor(addr, mac, KNOWN if mac else 0) for addr, mac in batch])


def _is_unicast(raw: bytes) -> bool:
    """Tell whether it can be another host's address."""
    v6 = ipaddress.IPv6Address(raw)
    address = v6.ipv4_mapped or v6
    return not (
        address.is_multicast
        or address.is_loopback
        or address.is_unspecified
        or raw[12:] == b"\xff" * 4
    )
