# SPDX-License-Identifier: Apache-2.0
"""Grants, watches, adopts and ends leases.

A failure at any step undoes the previous ones. harpd reserves queue and ports; a worker makes the
descriptors; ports, then the socket are added to the XDP program's maps; harpd saves the state and
sends the answer. After that it closes its descriptors, so that the job's death frees the queue. It
keeps the descriptor of the frame memory, to free the memory at the end of the lease (frames.py).
"""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from harp import _host
from harp._host import Kind
from harp.daemon import peer
from harp.daemon.dpdk import Ports
from harp.daemon.frames import Frames, free_memory
from harp.daemon.kernel import FD_FRAMES, Kernel, LeaseFds
from harp.daemon.loop import Loop
from harp.daemon.messages import Device, Leased, Request, pack, pack_port
from harp.daemon.nics import Nic, Nics
from harp.daemon.peer import Peer
from harp.daemon.ports import Block
from harp.daemon.settings import Access, Settings
from harp.daemon.sockets import PortReadings
from harp.daemon.table import Lease, LeaseTable, Owner, QueueState, RefusedError
from harp.words import printable

log = logging.getLogger("harpd")
FRAMES_DEFAULT = 8192
FRAMES_MIN = 64
RECOVER_FIRST_S, RECOVER_MAX_S = 0.02, 1.0
RECOVER_LOG_S = 5.0
# By the error, how long a request is retried. EBUSY: the kernel closes a queue's AF_XDP socket,
# which takes seconds under load. EDQUOT: the user has just returned a queue. A job gives up after
# 10 s (host/daemon.c).
AGAIN_S = 0.05
WAITS_S = {errno.EBUSY: 8.0, errno.EDQUOT: 1.0}
STOPPING = "harpd is being stopped"

Make = Callable[[], LeaseFds]


@dataclass
class Granted:
    """A granted lease. The sender of the message then calls delivered(whether it arrived)."""

    message: Callable[[int], bytes]  # returns LEASED or PORT with this serial number
    descriptors: LeaseFds
    delivered: Callable[[bool], None]


@dataclass
class _Recovery:
    """A queue that the kernel still holds after its lease."""

    pid: int
    since_s: float
    uid: int | None  # the user of the ended lease; None: no lease was granted


class Leasing:
    """All leases and their state in the kernel. save() writes state.json."""

    def __init__(
        self,
        settings: Settings,
        loop: Loop,
        kernel: Kernel,
        table: LeaseTable,
        nics: Nics,
        save: Callable[[], None],
        frames: Frames | None = None,
    ) -> None:
        self.frames = frames or Frames()
        self.settings = settings
        self.access = Access.of(settings.users, settings.groups)
        self._loop, self._kernel, self.table, self.nics = loop, kernel, table, nics
        self.ports = Ports(settings, kernel, table)
        self._save = save
        self._watched: dict[Owner, int] = {}  # pidfds
        self.recovering: dict[tuple[str, int], _Recovery] = {}
        self._port_readings = PortReadings(loop, self._read_ports_in_use)
        self.closing = False
        self.on_end: Callable[[Lease], None] = lambda _lease: None
        # For the metrics: granted leases, and refused requests by errno's name.
        self.granted = 0
        self.refused: Counter[str] = Counter()

    def now_s(self) -> float:
        return self._loop.time()

    # ---- a request ----

    async def request(self, client: Peer, request: Request) -> Granted:
        """Handle LEASE; RefusedError. Waits for workers, and for a queue to become free."""
        begin_s = self._loop.time()
        while True:
            try:
                return await self._try(client, request)
            except RefusedError as refused:
                recovering = refused.error == errno.EDQUOT and self._held(client.owner.uid)
                retry = recovering or refused.is_temporary
                wait_s = WAITS_S[refused.error] if retry else 0.0
                if self.closing or self._loop.time() - begin_s >= wait_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _try(self, client: Peer, request: Request) -> Granted:
        self._check_client(client)
        in_use: frozenset[int] = frozenset()
        ifname = request.ifname
        is_port = ifname in self.ports.all
        if not is_port:
            self._check_nic(client, request)
            try:
                in_use = await self._port_readings.ports()
            except Exception as error:
                raise _refusal(error, ifname) from error
            self._check_client(client)
        with contextlib.ExitStack() as undo:
            try:
                pidfd = os.dup(client.pidfd)
            except OSError as error:
                raise _refusal(error, ifname) from error
            undo.callback(os.close, pidfd)
            try:
                if is_port:
                    lease, make = self._reserve_port(client, request)
                else:
                    lease, make = self._reserve(client, request, in_use)
            except OSError as error:
                raise _refusal(error, ifname) from error
            undo.callback(self._cancel, lease)
            descriptors = await self._run_make(lease, make)
            undo.callback(descriptors.close)
            self._check_owner(lease, pidfd)
            message = self._add_to_maps(lease, descriptors)
            undo.pop_all()
        self.table.activate(lease)
        self.recovering.pop((lease.ifname, lease.queue), None)
        self._watch(lease.owner, pidfd)
        self._save()
        return Granted(message, descriptors, functools.partial(self._delivered, lease, descriptors))

    async def _run_make(self, lease: Lease, make: Make) -> LeaseFds:
        try:
            return await self._loop.work(make)
        except Exception as error:
            refused = _refusal(error, lease.ifname)
            refused.is_temporary = refused.error == errno.EBUSY
            raise refused from error

    def _cancel(self, lease: Lease) -> None:
        self.frames.forget(lease.lease_id)
        self.table.cancel(lease, self._loop.time())
        self._recover(lease)

    def _read_ports_in_use(self) -> frozenset[int]:
        """Read the ports in use in all NICs' ranges. Runs in a worker."""
        ports = [port for nic in self.nics.all.values() for port in nic.settings.ports]
        return self._kernel.ports_in_use(Block(min(ports), max(ports)))

    def _check_client(self, client: Peer) -> None:
        if self.closing:
            raise RefusedError(errno.ESHUTDOWN, STOPPING)
        if client.pidfd < 0 or peer.has_ended(client.pidfd):  # -1: it was closed
            raise RefusedError(errno.ESRCH, f"process {client.owner.pid} has ended")
        if not self.access.allows(client.owner.uid, client.gids):
            raise RefusedError(
                errno.EACCES,
                f"user {client.owner.uid} may not have leases; root may add the user to `users`, "
                "or to one of `groups`, in harp.toml",
            )

    def _make_queue(self, request: Request, flows: int, owner: Owner, allowed: bool) -> LeaseFds:
        """Make a queue. Refuse a process that could change our network namespace through the AF_XDP
        socket, because it has CAP_NET_ADMIN over that. Runs in a worker.
        """
        why = "" if allowed else peer.network_admin_elsewhere(owner.pid)
        if why:
            raise OSError(
                errno.EPERM,
                f"process {owner.pid}: {why}, or set allow_net_admin_containers in harp.toml",
            )
        return self._kernel.make(request, flows)

    def _reserve_port(self, client: Peer, request: Request) -> tuple[Lease, Make]:
        lease = self.ports.reserve(
            client.owner,
            request.ifname,
            request.queues,
            _clean(request.label or client.name),
            since_s=time.time(),
            held=self._held(client.owner.uid),
        )
        flows = self.settings.page_flows
        return lease, lambda: self._kernel.pages(lease.queues, flows)

    def _check_nic(self, client: Peer, request: Request) -> None:
        """Check everything except the ports of the kernel's sockets. RefusedError."""
        ifname, frames, copy_mode = request.ifname, request.frame_count, request.copy_mode
        if copy_mode > 2 or (frames and frames < FRAMES_MIN):
            raise RefusedError(
                errno.EINVAL,
                f"{frames} frames, copy mode {copy_mode}: at least {FRAMES_MIN} frames and a mode "
                "of 0 to 2 are possible",
            )
        nic = self.nics.all.get(ifname)
        if nic is not None and nic.problem:
            raise RefusedError(nic.error, f"{ifname} can't be leased: {nic.problem}")
        if nic is not None and nic.link is not None and not nic.link.up:
            raise RefusedError(errno.ENETDOWN, f"{ifname} is down; `ip link set dev {ifname} up`")
        if nic is not None:
            self.nics.check_reachability(nic)
        held = self._held(client.owner.uid)
        self.table.choose(client.owner, ifname, request.queue, now_s=self._loop.time(), held=held)

    def _reserve(
        self, client: Peer, request: Request, in_use: frozenset[int]
    ) -> tuple[Lease, Make]:
        self._check_nic(client, request)  # it may have changed while a worker read the sockets
        lease = self.table.reserve(
            client.owner,
            request.ifname,
            request.queue,
            _clean(request.label or client.name),
            now_s=self._loop.time(),
            since_s=time.time(),
            in_use=in_use,
            held=self._held(client.owner.uid),
        )
        frames = min(request.frame_count or FRAMES_DEFAULT, self.settings.frames_max)
        flows, net_admin = self.settings.page_flows, self.settings.allow_net_admin_containers
        request = replace(request, queue=lease.queue, frame_count=frames)
        return lease, lambda: self._make_queue(request, flows, client.owner, net_admin)

    def _check_owner(self, lease: Lease, pidfd: int) -> None:
        """Check what may have changed while the worker ran."""
        if self.closing:
            raise RefusedError(errno.ESHUTDOWN, STOPPING)
        if peer.has_ended(pidfd):
            raise RefusedError(errno.ESRCH, f"process {lease.owner.pid} has ended")

    def _add_to_maps(self, lease: Lease, descriptors: LeaseFds) -> Callable[[int], bytes]:
        """Add the descriptors to the maps; return the job's message."""
        queue = descriptors.queue
        if queue is None:
            text, pages = self.ports.spec(lease), (lease.queues, descriptors.page_bytes)
            return lambda serial: pack_port(serial, lease.lease_id, *pages, text)
        nic = self.nics.all[lease.ifname]
        if nic.steering is None or self.table.nic_of(lease) is None:
            raise RefusedError(errno.ENODEV, f"{nic.ifname}: {nic.problem or 'it was removed'}")
        if queue.ifindex != lease.ifindex:
            raise RefusedError(
                errno.ENODEV, f"{nic.ifname}: this name belongs to another interface now"
            )
        try:
            lease.frames = self.frames.keep(lease.lease_id, descriptors.fds[FD_FRAMES])
        except OSError as error:
            raise _refusal(error, lease.ifname) from error
        self._steer(lease, nic, descriptors)
        lease.frame_count, lease.frame_size = queue.frame_count, queue.frame_size
        leased = self._leased(lease, nic, queue, descriptors.page_bytes)
        return lambda serial: pack(Kind.LEASED, serial, leased)

    def _steer(self, lease: Lease, nic: Nic, descriptors: LeaseFds) -> None:
        assert nic.steering is not None
        try:
            nic.steering.ports_set(lease.block.first, lease.block.last, lease.queue, True)
            nic.steering.xsk_set(lease.queue, descriptors.fds[0])
        except OSError as error:
            self._unsteer(lease)
            raise RefusedError(error.errno or errno.EIO, error.strerror or str(error)) from error

    def _leased(self, lease: Lease, nic: Nic, queue: _host.Queue, page_bytes: int) -> Leased:
        hardware = nic.hardware
        assert nic.steering is not None
        return Leased(
            lease_id=lease.lease_id,
            netns=self._kernel.netns,
            ifname=lease.ifname,
            ifindex=lease.ifindex,
            queue=lease.queue,
            queue_count=hardware.queues,
            frame_size=queue.frame_size,
            frame_count=queue.frame_count,
            ring_size=queue.ring_size,
            nic_features=queue.features,
            tx_frags_max=queue.tx_frags_max,
            mtu_bytes=queue.mtu_bytes,
            native=nic.steering.native,
            zero_copy=queue.zero_copy,
            port_min=lease.block.first,
            port_max=lease.block.last,
            mac=queue.mac,
            page_bytes=page_bytes,
            rss_kind=hardware.rss_kind,
            rss_key_bytes=len(hardware.rss_key),
            rss_table_count=len(hardware.rss_table),
            rss_key=hardware.rss_key,
            rss_table=hardware.rss_table,
        )

    def _delivered(self, lease: Lease, descriptors: LeaseFds, arrived: bool) -> None:
        descriptors.close()
        if arrived:
            self.granted += 1
            share = f"{lease.queues} queues" if lease.device else f"ports {lease.block}"
            log.info(
                "lease %016x: %s, %s, to process %d of user %d (%s)",
                lease.lease_id, lease.what, share, lease.owner.pid, lease.owner.uid, lease.label,
            )  # fmt: skip
        elif self.table.leases.get(lease.lease_id) is lease:
            self.end(lease, "it did not reach the process")

    # ---- the end of a lease ----

    def release(self, owner: Owner, lease_id: int) -> None:
        """Handle RELEASE; RefusedError if the lease is not the process's."""
        lease = self.table.leases.get(lease_id)
        if lease is None or lease.owner != owner or not lease.active:
            raise RefusedError(errno.ENOENT, f"process {owner.pid} has no lease {lease_id:016x}")
        self.end(lease, "given back")

    def end(self, lease: Lease, why: str) -> None:
        """End a lease. Its queue becomes free when the kernel releases the AF_XDP socket."""
        self._unsteer(lease)
        self.on_end(lease)
        self.table.release(lease, self._loop.time())
        log.info(
            "lease %016x: %s of process %d ended: %s",
            lease.lease_id, lease.what, lease.owner.pid, why,
        )  # fmt: skip
        self._recover(lease)
        self._free_frames(self.frames.take(lease.lease_id), lease.what)
        if not self.table.of_owner(lease.owner):
            self._unwatch(lease.owner)
        self._save()

    def _free_frames(self, fd: int, what: str) -> None:
        """Free the frame memory of an ended lease and close its descriptor, unless that is -1."""

        def body() -> None:
            try:
                free_memory(fd)
            except OSError as error:
                log.error("%s: the frame memory of a lease can't be freed: %s", what, error)

        if fd >= 0:
            body() if self.closing else self._loop.work(body)

    def _unsteer(self, lease: Lease) -> None:
        nic = self.nics.all.get(lease.ifname)
        steering = nic.steering if nic is not None else None
        if steering is None or self.table.nic_of(lease) is None:
            return  # the maps do not exist any more
        try:
            steering.xsk_set(lease.queue, -1)
            steering.ports_set(lease.block.first, lease.block.last, 0, False)
        except OSError as error:
            log.error(
                "%s; the program still redirects packets of lease %016x",
                error.strerror,
                lease.lease_id,
            )

    # ---- owners ----

    def _watch(self, owner: Owner, pidfd: int) -> None:
        """Watch an owner; takes over the pidfd."""
        if owner in self._watched:
            os.close(pidfd)
            return
        self._watched[owner] = pidfd
        self._loop.add_reader(pidfd, self._died, owner)

    def _unwatch(self, owner: Owner) -> None:
        pidfd = self._watched.pop(owner, -1)
        if pidfd >= 0:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def _died(self, owner: Owner) -> None:
        for lease in self.table.of_owner(owner):
            if lease.active:  # else _check_owner() refuses it
                self.end(lease, "the process ended")
        self._unwatch(owner)

    def adopt(self, lease: Lease) -> str:
        """Adopt a lease of the previous harpd; return "" or why that is impossible."""
        try:
            pidfd = peer.reopen(lease.owner)
        except peer.PeerGoneError as gone:
            return str(gone)
        if not lease.device and not self.frames.adopt(
            lease.lease_id, lease.owner.pid, lease.frames
        ):
            os.close(pidfd)
            return "the process has neither opened nor mapped the lease's frame memory"
        if not self.table.adopt(lease):
            os.close(pidfd)
            self._free_frames(self.frames.take(lease.lease_id), lease.what)
            return "its NIC was replaced, or another lease has its queue or its ports"
        self._watch(lease.owner, pidfd)
        if not lease.device:  # harpd can't tell whether a process has a DPDK port open
            self._loop.spawn(self._check_use(lease))
        return ""

    def finish_adoption(self) -> None:
        """Free the frame memory of leases of the previous harpd that were not adopted."""
        for fd in self.frames.unclaimed():
            self._free_frames(fd, "a lease that has ended")

    async def _check_use(self, lease: Lease) -> None:
        """End an adopted lease if its process closed the queue while no harpd ran."""
        free = await self._loop.work(lambda: self._kernel.is_queue_free(lease.ifname, lease.queue))
        if free and self.table.leases.get(lease.lease_id) is lease:
            self.end(lease, "the process closed the queue while no harpd ran")

    # ---- recovery of queues ----

    def _held(self, uid: int) -> int:
        """Count the queues that processes of the user hold without a lease: a job that passes its
        socket to another process and ends must not evade the limit.
        """
        return sum(recovery.uid == uid for recovery in self.recovering.values())

    def _recover(self, lease: Lease) -> None:
        """Ask the kernel, at growing intervals, whether the queue is free."""
        key = (lease.ifname, lease.queue)
        nic = self.table.nics.get(lease.ifname)
        if key in self.recovering or nic is None or nic.ifindex != lease.ifindex or self.closing:
            return
        uid = lease.owner.uid if lease.active else None
        self.recovering[key] = recovery = _Recovery(lease.owner.pid, self._loop.time(), uid)
        self._loop.spawn(self._probe(key, recovery))

    async def _probe(self, key: tuple[str, int], recovery: _Recovery) -> None:
        delay_s, logged = RECOVER_FIRST_S, False
        while True:
            await asyncio.sleep(delay_s)
            if self.recovering.get(key) is not recovery:
                return  # a lease has the queue; its end starts a new recovery
            nic = self.table.nics.get(key[0])
            state = nic.queues.get(key[1]) if nic is not None else None
            free = False
            if state is QueueState.RECOVERING and not self.closing:
                free = await self._loop.work(lambda: self._kernel.is_queue_free(*key))
                if self.recovering.get(key) is not recovery:
                    return
            elif state is not QueueState.RESERVED:  # which may end as RECOVERING again
                del self.recovering[key]
                return
            waited_s = self._loop.time() - recovery.since_s
            if free and self.table.recovered(*key):
                del self.recovering[key]
                if logged:
                    log.info("%s queue %d is free after %.0f s", *key, waited_s)
                return
            if waited_s > RECOVER_LOG_S and not logged:
                logged = True
                holder = (
                    "an AF_XDP socket without a lease of harpd owns the queue"
                    if recovery.uid is None
                    else f"process {recovery.pid} has ended, but a process that it forked still "
                    "holds the queue"
                )
                log.warning("%s queue %d: %s; it can be leased when that one ends", *key, holder)
            delay_s = min(RECOVER_MAX_S, delay_s * 2)

    # ---- for WELCOME ----

    def devices(self) -> list[Device]:
        nics = [self._device(nic) for nic in self.nics.all.values() if nic.link is not None]
        return nics + [self.ports.device(name) for name in self.ports.all]

    def _device(self, nic: Nic) -> Device:
        link, hardware = nic.link, nic.hardware
        assert link is not None
        table = None if nic.problem else self.table.nics.get(nic.ifname)
        free = (QueueState.FREE, QueueState.RECOVERING)
        return Device(
            ifname=nic.ifname,
            ifindex=link.ifindex,
            flags=(_host.DEVICE_UP if link.up else 0)
            | (_host.DEVICE_DEFAULT_ROUTE if hardware.default_route else 0)
            | (_host.DEVICE_ONE_QUEUE if table and table.unreachable else 0)
            | (_host.DEVICE_GENERIC if nic.is_generic else 0),
            mtu_bytes=link.mtu_bytes,
            speed_mbps=hardware.speed_mbps,
            queues=len(table.leasable) if table else 0,
            queues_free=sum(map(table.count, free)) if table else 0,
            numa_node=hardware.numa_node,
            mac=link.mac,
            netns=self._kernel.netns,
            guid=hardware.guid,
            addr_v4=nic.announced_address(v4=True),
            addr_v6=nic.announced_address(v4=False),
            pci_path=hardware.pci_path,
        )

    def close(self) -> None:
        """Close pidfds and frame memory; leases are not touched."""
        for owner in list(self._watched):
            self._unwatch(owner)
        self.frames.close()


def _refusal(error: BaseException | None, ifname: str) -> RefusedError:
    if isinstance(error, OSError):
        return RefusedError(error.errno or errno.EIO, error.strerror or str(error))
    log.error("internal error: %s: %s; please report it", type(error).__name__, error)
    return RefusedError(errno.EIO, f"{ifname}: harpd failed; its log says more")


def _clean(text: str) -> str:
    """Return a job's text as one line without escape sequences, for logs and terminals."""
    return printable(text)[:64]
