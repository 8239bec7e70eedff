# SPDX-License-Identifier: Apache-2.0
"""Notifies jobs of other network namespaces of changes: link, addresses, routes and neighbors.

Such a job has no socket on which the kernel of the NIC's namespace would answer (docs/security.md).
It sends WATCH once for each lease and connection, and gets all changes from then on. It sends
NEIGHBORS for next hops, at most NEIGHBORS_LEASE_MAX per lease, and ROUTE for one destination.

Limits. Untaken changes are kept as the difference between what the client got and the present
state: one network and NEIGHBORS_LEASE_MAX neighbors. One worker asks the kernel, one request at a
time, so that leases find the other workers. An interface is read at most READS_PER_S times a
second, for all its watches together. New neighbors use entries of a table that the host shares: a
user may add NEIGHBORS_PER_S a second. Messages are limited as all are (server.py).
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
Place = tuple[int, bytes]  # an interface's index, and 16 bytes of a neighbor's address


@dataclass(eq=False)
class _Watch:
    """The watch of one lease. known: whether the interface was read, which WATCH waits for.
    neighbors: the MAC address that the job got, None: nothing yet; the latest requests are at the
    end.
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
    """A watched interface. found: its last state; wanted: it must be read again."""

    watches: set[_Watch] = field(default_factory=set)
    found: bytes = b""
    wanted: bool = False
    reading: bool = False  # or it was read a moment ago


class Watching:
    """All watches. Used by the loop's thread."""

    def __init__(self, loop: Loop, kernel: Kernel, leasing: Leasing) -> None:
        self._loop, self._kernel, self._leasing = loop, kernel, leasing
        self._worker = asyncio.Lock()  # its holder asks the kernel
        self._monitor: NetworkMonitor | None = None
        self._watches: dict[int, _Watch] = {}  # by lease
        self._of_client: dict[Client, _Watch] = {}
        self._networks: dict[int, _Network] = {}  # by interface
        self._of_neighbor: dict[Place, set[_Watch]] = {}
        self._resolve: dict[Place, None] = {}  # the kernel must be asked
        self._resolving: NetworkMonitor | None = None
        self._new_neighbors = Buckets(NEIGHBORS_PER_S, NEIGHBORS_BURST)
        leasing.ended = self._ended

    # ---- what jobs ask ----

    async def watch(self, client: Client, serial: int, lease_id: int) -> bytes:
        """Handle WATCH, which waits until the interface was read; RefusedError."""
        lease = self._lease(client, lease_id)
        elsewhere = self._watches.get(lease_id)
        self._client_closed(client)
        if elsewhere is not None and elsewhere.client is not client:
            elsewhere.client.close("")
        self._open()
        watch = _Watch(client, lease, lease.ifindex)
        self._watches[lease_id] = self._of_client[client] = watch
        self._networks.setdefault(watch.ifindex, _Network()).watches.add(watch)
        client.closed = lambda: self._client_closed(client)
        self._read(watch.ifindex)
        await watch.known.wait()
        if self._of_client.get(client) is not watch:
            raise RefusedError(errno.ENOENT, f"lease {lease_id:016x} has ended")
        watch.network = self._networks[watch.ifindex].found
        client.next_notification = lambda: self._next_notification(watch)
        return pack(Kind.NETWORK, serial, LeaseId(lease_id), watch.network)

    def neighbors(self, client: Client, entries: list[Neighbor]) -> None:
        """Handle NEIGHBORS of a job; RefusedError."""
        watch = self._of_client.get(client)
        if watch is None:
            raise RefusedError(errno.ENOENT, "neighbors are of a lease: WATCH comes first")
        for each in entries:
            if each.flags & WANTED and _is_unicast(each.addr):
                self._wanted(watch, each.addr)
            known = watch.neighbors.get(each.addr)
            if each.flags & CONFIRMED and known and self._monitor is not None:
                self._monitor.confirm(watch.lease.ifindex, each.addr)

    async def route(self, client: Client, lease_id: int, dst: bytes) -> bytes:
        """Handle ROUTE; RefusedError."""
        ifindex = self._lease(client, lease_id).ifindex
        try:
            return await self._ask_kernel(lambda: self._kernel.route(ifindex, dst))
        except OSError as error:
            why = f"the route can't be looked up: {error}"
            raise RefusedError(errno.EIO, why) from error

    async def _ask_kernel(self, request: Callable[[], T]) -> T:
        """Run a request in a worker, after the previous ones: they occupy at most one."""
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

    def _wanted(self, watch: _Watch, addr: bytes) -> None:
        neighbor = (watch.lease.ifindex, addr)
        if addr in watch.neighbors:
            del watch.neighbors[addr]
        else:
            # The job asks again, as for any neighbor that stays unknown.
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

    def _ended(self, lease: Lease) -> None:
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
        if self._resolving is not monitor:  # else _resolve_batch() closes it
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
            await self._ask_kernel(lambda: monitor.resolve(batch))
        except OSError as error:  # the jobs ask again
            log.debug("asking the kernel for neighbors: %s", error)
        finally:
            self._resolving = None
            # Not before: the worker must not find another descriptor under the monitor's number.
            if self._monitor is not monitor:
                monitor.close()
        self._resolve_next()

    # ---- networks ----

    def _read(self, ifindex: int) -> None:
        network = self._networks[ifindex]
        network.wanted = True
        if not network.reading:
            network.reading = True
            self._loop.spawn(self._read_network(ifindex, network))

    async def _read_network(self, ifindex: int, network: _Network) -> None:
        while network.wanted and self._networks.get(ifindex) is network:
            network.wanted = False
            try:
                network.found = await self._ask_kernel(lambda: self._kernel.network(ifindex))
            except OSError as error:  # the tables change faster than they can be read
                log.debug("interface %d: %s", ifindex, error)
                network.wanted = True
            for watch in list(network.watches) if network.found else ():
                watch.known.set()
                watch.client.notify()
            await asyncio.sleep(1 / READS_PER_S)
        network.reading = False

    def _next_notification(self, watch: _Watch) -> bytes | None:
        """Return the next message for a client that has taken all previous ones."""
        network = self._networks[watch.ifindex]
        if watch.network != network.found:
            watch.network = network.found
            return pack(Kind.NETWORK, 0, LeaseId(watch.lease.lease_id), watch.network)
        if not watch.changed:
            return None
        some = list(watch.changed.items())[:NEIGHBORS_MAX]
        for addr, mac in some:
            del watch.changed[addr]
            watch.neighbors[addr] = mac
        return pack_neighbors(0, [Neighbor(addr, mac, KNOWN if mac else 0) for addr, mac in some])


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
