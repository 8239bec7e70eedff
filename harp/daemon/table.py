# SPDX-License-Identifier: Apache-2.0
"""The table of queues, port blocks and leases. It makes no system calls.

States of a queue: FREE -> RESERVED (harpd prepares a lease) -> LEASED -> RECOVERING (the lease has
ended, but the kernel or a forked child may still hold the AF_XDP socket) -> FREE. Calls for a
lease: reserve() -> activate() -> release(), or reserve() -> cancel() after a failure.
"""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from harp.daemon.ports import Block, PortBlocks

QUEUE_ANY = 0xFFFFFFFF
MISMATCHES_MIN, FLOWS_MIN = 64, 8  # evidence of one_queue()
REMOVED = "NIC was removed"  # a mark: the lease has no queue, even if the NIC's name returns


class RefusedError(Exception):
    """A refused request: an errno and one line of text. is_temporary: a retry may succeed."""

    def __init__(self, error: int, why: str) -> None:
        super().__init__(why)
        self.error, self.why, self.is_temporary = error, why, False

    def __str__(self) -> str:
        return f"{self.why} ({os.strerror(self.error)})"


class QueueState(Enum):
    FREE = "free"
    RESERVED = "reserved"
    LEASED = "leased"
    RECOVERING = "recovering"


@dataclass(frozen=True)
class Owner:
    """A process; the start time distinguishes it from a later one with the same pid."""

    pid: int
    start_ticks: int
    uid: int


@dataclass
class Lease:
    """A lease of a queue, or of a DPDK port. since_s: seconds since the epoch."""

    lease_id: int
    owner: Owner
    ifname: str
    ifindex: int
    queue: int
    ports: Block | None  # None: a DPDK port's lease, which has all TCP and UDP ports
    label: str
    since_s: float
    frame_count: int = 0
    frame_size: int = 0
    frames: tuple[int, int] = (0, 0)  # device and inode of its frame memory
    active: bool = False
    # For a DPDK port: its device and the number of queues. ifindex and queue are 0.
    device: str = ""
    queues: int = 1
    # Events of the NIC since the lease, for status: "NIC is down", REMOVED ...
    marks: list[str] = field(default_factory=list)

    @property
    def block(self) -> Block:
        assert self.ports is not None, "a DPDK port's lease has no block"
        return self.ports

    @property
    def what(self) -> str:
        return f"DPDK port {self.ifname}" if self.device else f"{self.ifname} queue {self.queue}"

    def mark(self, event: str) -> None:
        if event not in self.marks:
            self.marks.append(event)

    def unmark(self, event: str) -> None:
        if event in self.marks:
            self.marks.remove(event)


@dataclass
class NicTable:
    """The queues of one NIC and its ports."""

    ifname: str
    ifindex: int
    ports: PortBlocks
    queues: dict[int, QueueState]  # RECOVERING ones: the least recently tried first
    # Queues of adopted leases that harp.toml no longer allows: not leased again.
    withdrawn: set[int] = field(default_factory=set)
    # The only queue that packets reach, and the evidence; None: all queues may receive packets.
    one_queue: int | None = None
    one_queue_why: str = ""

    def count(self, state: QueueState) -> int:
        """Count the queues in a state that may be leased and that packets reach."""
        return sum(self.queues[queue] is state for queue in self._reachable)

    @property
    def leasable(self) -> list[int]:
        return sorted(set(self.queues) - self.withdrawn)

    @property
    def _reachable(self) -> list[int]:
        return [queue for queue in self.leasable if self.one_queue in (None, queue)]

    @property
    def unreachable(self) -> list[int]:
        """Return the queues that harp.toml allows and that receive no packets."""
        return sorted(set(self.leasable) - set(self._reachable))

    def choose(self, requested: int) -> int:
        """Choose a queue for a new lease: the requested one, else a free one, else the least
        recently tried recovering one.
        """
        if requested != QUEUE_ANY:
            return self._check_requested(requested)
        free = [queue for queue in self._reachable if self.queues[queue] is QueueState.FREE]
        recovering = [
            queue
            for queue, state in self.queues.items()
            if state is QueueState.RECOVERING and queue in self._reachable
        ]
        if free or recovering:
            return (*free, *recovering)[0]
        if self.unreachable:
            raise RefusedError(errno.EBUSY, self.one_queue_why)
        raise RefusedError(
            errno.EBUSY,
            f"{self.ifname}: all {len(self.leasable)} queues are leased; `harpctl instances` names "
            "the owners; give the NIC more queues or run fewer instances",
        )

    def _check_requested(self, queue: int) -> int:
        state = self.queues.get(queue)
        if state is None or queue in self.withdrawn:
            available = ", ".join(map(str, self.leasable)) or "none"
            raise RefusedError(
                errno.EINVAL,
                f"{self.ifname}: harpd may not lease queue {queue}; it has {available}",
            )
        if state in (QueueState.LEASED, QueueState.RESERVED):
            raise RefusedError(
                errno.EBUSY, f"{self.ifname}: queue {queue} is leased; request any queue"
            )
        if queue in self.unreachable:
            raise RefusedError(errno.EBUSY, self.one_queue_why)
        return queue


class LeaseTable:
    """All NICs and leases. now_s: the caller's monotonic clock, in seconds."""

    def __init__(self, per_uid_max: int, new_id: Callable[[], int]) -> None:
        self.per_uid_max = per_uid_max
        self.nics: dict[str, NicTable] = {}
        self.leases: dict[int, Lease] = {}
        self._new_id = new_id

    # ---- NICs ----

    def add_nic(self, nic: NicTable) -> None:
        self.nics[nic.ifname] = nic

    def remove_nic(self, ifname: str) -> None:
        """Remove a NIC. Its leases stay in the table until their owners end."""
        self.nics.pop(ifname, None)

    def nic_of(self, lease: Lease) -> NicTable | None:
        """Return the NIC of a lease; None if it was removed or replaced."""
        nic = self.nics.get(lease.ifname)
        same = nic is not None and nic.ifindex == lease.ifindex and REMOVED not in lease.marks
        return nic if same else None

    # ---- leases ----

    def of_uid(self, uid: int) -> int:
        return sum(lease.owner.uid == uid for lease in self.leases.values())

    def of_owner(self, owner: Owner) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.owner == owner]

    def reserve(
        self,
        owner: Owner,
        ifname: str,
        requested: int,
        label: str,
        *,
        now_s: float,
        since_s: float,
        in_use: Iterable[int] = (),
        held: int = 0,
    ) -> Lease:
        """Reserve a queue and a block of ports; RefusedError with the reason.

        in_use: ports of the kernel's sockets. held: queues of the user's ended leases that a
        process still holds.
        """
        nic, queue = self.choose(owner, ifname, requested, now_s=now_s, held=held)
        block = nic.ports.take(now_s, in_use)
        if block is None:
            raise RefusedError(errno.EBUSY, self._no_ports(nic, now_s))
        lease = Lease(
            self._fresh_id(), owner, ifname, nic.ifindex, queue, block, label, since_s=since_s
        )
        nic.queues[queue] = QueueState.RESERVED
        self.leases[lease.lease_id] = lease
        return lease

    def choose(
        self, owner: Owner, ifname: str, requested: int, *, now_s: float, held: int = 0
    ) -> tuple[NicTable, int]:
        """Return the NIC and the queue that reserve() would take now; RefusedError."""
        nic = self.nics.get(ifname)
        if nic is None:
            available = ", ".join(sorted(self.nics)) or "none"
            raise RefusedError(
                errno.ENODEV, f"harpd has no interface {ifname}; it has: {available}; see harp.toml"
            )
        if owner.uid != 0:
            self._check_count(owner.uid, held)
            self._check_ports(owner.uid, nic, now_s)
        return nic, nic.choose(requested)

    def reserve_port(
        self,
        owner: Owner,
        name: str,
        device: str,
        queues: int,
        label: str,
        *,
        since_s: float,
        held: int = 0,
    ) -> Lease:
        """Reserve a DPDK port; RefusedError with the reason. held: as for reserve()."""
        if owner.uid != 0:
            self._check_count(owner.uid, held)
        holder = self.holder(name, device)
        if holder is not None:
            raise RefusedError(
                errno.EBUSY,
                f"DPDK port {name} is leased to process {holder.owner.pid} ({holder.label}) of "
                f"user {holder.owner.uid}; a port has one owner at a time; end that job, or name "
                "another port",
            )
        lease = Lease(self._fresh_id(), owner, name, 0, 0, None, label, since_s=since_s)
        lease.device, lease.queues = device, queues
        self.leases[lease.lease_id] = lease
        return lease

    def holder(self, name: str, device: str) -> Lease | None:
        """Return the lease of a DPDK port with this name, or of its device under another name."""
        stem = device.partition(",")[0]
        for lease in self.leases.values():
            if lease.device and (lease.ifname == name or lease.device.partition(",")[0] == stem):
                return lease
        return None

    def _check_count(self, uid: int, held: int) -> None:
        count = self.of_uid(uid)
        if count + held >= self.per_uid_max:
            forked = f" and {held} queues that forked processes still hold" if held else ""
            raise RefusedError(
                errno.EDQUOT,
                f"user {uid} has {count} leases{forked}, and {self.per_uid_max} is the limit; end "
                "a job or raise leases_per_uid in harp.toml",
            )

    def _check_ports(self, uid: int, nic: NicTable, now_s: float) -> None:
        if nic.ports.is_exhausted_by(uid, len(nic.leasable), now_s):
            raise RefusedError(
                errno.EBUSY,
                f"user {uid} has had too many leases in a short time: "
                + self._no_ports(nic, now_s),
            )

    @staticmethod
    def _no_ports(nic: NicTable, now_s: float) -> str:
        free_s = nic.ports.free_in_s(now_s)
        wait = f"; the next quarantine ends in {free_s:.0f} s" if free_s is not None else ""
        return (
            f"{nic.ifname}: no free block of {nic.ports.size} ports in {nic.ports.span}{wait}; "
            "widen the port range in harp.toml"
        )

    def _fresh_id(self) -> int:
        while True:
            lease_id = self._new_id()
            if lease_id and lease_id not in self.leases:
                return lease_id

    def activate(self, lease: Lease) -> None:
        """Mark a lease as granted, and its queue as leased."""
        nic = self.nic_of(lease)
        lease.active = True
        if nic is not None:
            nic.queues[lease.queue] = QueueState.LEASED

    def cancel(self, lease: Lease, now_s: float) -> None:
        self._end(lease, now_s, quarantine=False)

    def release(self, lease: Lease, now_s: float) -> None:
        """End a lease: quarantine its ports, and recover its queue."""
        self._end(lease, now_s, quarantine=True)

    def _end(self, lease: Lease, now_s: float, quarantine: bool) -> None:
        del self.leases[lease.lease_id]
        nic = self.nic_of(lease)
        if nic is not None:
            # Reinsert it at the end, because choose() takes the first recovering queue.
            del nic.queues[lease.queue]
            nic.queues[lease.queue] = QueueState.RECOVERING
            nic.ports.give_back(lease.block, now_s, quarantine, lease.owner.uid)

    def adopt(self, lease: Lease) -> bool:
        """Adopt a lease of the previous harpd; False if another lease has its queue or ports."""
        if lease.device:
            if lease.lease_id in self.leases or self.holder(lease.ifname, lease.device):
                return False
            lease.active = True
            self.leases[lease.lease_id] = lease
            return True
        nic = self.nic_of(lease)
        if nic is None or lease.lease_id in self.leases:
            return False
        if nic.queues.get(lease.queue, QueueState.FREE) is not QueueState.FREE:
            return False
        if not nic.ports.claim(lease.block):
            return False
        lease.active = True
        if lease.queue not in nic.queues:
            nic.withdrawn.add(lease.queue)
        nic.queues[lease.queue] = QueueState.LEASED
        self.leases[lease.lease_id] = lease
        return True

    def recovered(self, ifname: str, queue: int) -> bool:
        """Mark a queue free that the kernel released; False if it has a lease again."""
        nic = self.nics.get(ifname)
        if nic is None or nic.queues.get(queue) is not QueueState.RECOVERING:
            return False
        nic.queues[queue] = QueueState.FREE
        return True


# --------------------------------------------------------------------------------------------------
# Some NICs and clouds deliver all of HARP's packets to one queue, although ethtool shows several. A
# stack on another queue then receives nothing, so its lease is useless. harpd concludes this from
# the XDP program's counters: many replies of several flows were dropped because their ports belong
# to another queue, and no packet for HARP arrived on a second queue. One such packet reverts the
# conclusion.
#
# Only TCP segments with the ACK bit count, because they answer what a stack here has sent. Any host
# can send a SYN or a UDP packet to a listening port. The XDP program does not check sequence
# numbers: docs/security.md says what a host that forges replies can cause.
#
@dataclass(frozen=True)
class OneQueue:
    """The only queue on which packets arrive, with the counters that show it."""

    queue: int
    mismatches: int
    flows: int

    def line(self, ifname: str) -> str:
        """Return one line: evidence and remedy."""
        return (
            f"{ifname}: the NIC puts all of HARP's packets on queue {self.queue} "
            f"({self.mismatches} replies to at least {self.flows} flows of other queues were "
            "dropped there, and no other queue had packets), so a stack on another queue receives "
            f"nothing; let it spread TCP (`ethtool -x {ifname}`, then -X or -L), or set "
            f'lease_queues = "{self.queue}" in harp.toml'
        )


def one_queue(arrivals: Sequence[tuple[int, int, int]]) -> OneQueue | None:
    """Evaluate the XDP program's arrivals() of all queues; None without enough evidence."""
    used = [queue for queue, (packets, _, _) in enumerate(arrivals) if packets]
    if len(arrivals) < 2 or len(used) != 1:
        return None
    _, mismatches, bits = arrivals[used[0]]
    flows = bits.bit_count()
    if mismatches < MISMATCHES_MIN or flows < FLOWS_MIN:
        return None
    return OneQueue(used[0], mismatches, flows)
