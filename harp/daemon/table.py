# SPDX-License-Identifier: Apache-2.0
"""The table of queues, port blocks and leases. It decides and remembers, without system calls.

States of a queue: FREE -> RESERVED (a lease is in the making) -> LEASED -> RECOVERING (the lease is
over; the kernel may still hold the old socket, and a forked child keeps it as long as it likes) ->
FREE. Calls for a lease: reserve() -> activate() -> release(), or reserve() -> cancel() after a
failure.
"""

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from harp.daemon.ports import Block, PortBlocks

QUEUE_ANY = 0xFFFFFFFF
MISMATCHES_MIN, FLOWS_MIN = 64, 8  # evidence of one_queue()
REMOVED = "NIC was removed"  # a mark: the lease has no queue any more, whatever replaces the NIC


class RefusedError(Exception):
    """A refused request: an errno and one line for people. passes: a later try may succeed."""

    def __init__(self, error: int, why: str) -> None:
        super().__init__(why)
        self.error, self.why, self.passes = error, why, False

    def __str__(self) -> str:
        return f"{self.why} ({os.strerror(self.error)})"


class QueueState(Enum):
    FREE = "free"
    RESERVED = "reserved"
    LEASED = "leased"
    RECOVERING = "recovering"


@dataclass(frozen=True)
class Owner:
    """A process; the start time distinguishes it from a later one of the same number."""

    pid: int
    start_ticks: int
    uid: int


@dataclass
class Lease:
    """A leased instance, or a whole leased DPDK port. since_s: seconds of the epoch."""

    lease_id: int
    owner: Owner
    ifname: str
    ifindex: int
    queue: int
    ports: Block | None  # None: a DPDK port's, whose holder has all ports
    label: str
    since_s: float
    frame_count: int = 0
    frame_size: int = 0
    frames: tuple[int, int] = (0, 0)  # device and inode of its frame memory
    active: bool = False
    # A DPDK port's device, and its holder's number of queues; ifindex and queue are 0 then.
    device: str = ""
    queues: int = 1
    # Events of the NIC since the lease: "down", "removed" ... for status; empty: none.
    marks: list[str] = field(default_factory=list)

    @property
    def block(self) -> Block:
        assert self.ports is not None, "a DPDK port's lease has none of its own"
        return self.ports

    @property
    def what(self) -> str:
        return f"DPDK port {self.ifname}" if self.device else f"{self.ifname} queue {self.queue}"

    def mark(self, word: str) -> None:
        if word not in self.marks:
            self.marks.append(word)

    def unmark(self, word: str) -> None:
        if word in self.marks:
            self.marks.remove(word)


@dataclass
class NicTable:
    """The queues of one NIC and its ports."""

    ifname: str
    ifindex: int
    ports: PortBlocks
    queues: dict[int, QueueState]  # recovering ones: first the one that was not tried for longest
    # Queues that harp.toml removed: not leased again.
    withdrawn: set[int] = field(default_factory=set)
    # The only queue that packets reach, and the evidence; None: all, as far as is known.
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

    def choose(self, wanted: int) -> int:
        """Choose a queue for a new lease: the requested one, else a free one, else the recovering
        one that was not tried for longest.
        """
        if wanted != QUEUE_ANY:
            return self._wanted(wanted)
        free = [queue for queue in self._reachable if self.queues[queue] is QueueState.FREE]
        back = [
            queue
            for queue, state in self.queues.items()
            if state is QueueState.RECOVERING and queue in self._reachable
        ]
        if free or back:
            return (*free, *back)[0]
        if self.unreachable:
            raise RefusedError(errno.EBUSY, self.one_queue_why)
        raise RefusedError(
            errno.EBUSY,
            f"{self.ifname}: all {len(self.leasable)} queues are leased; `harpctl instances` names "
            "the owners; give the NIC more queues or run fewer instances",
        )

    def _wanted(self, queue: int) -> int:
        state = self.queues.get(queue)
        if state is None or queue in self.withdrawn:
            there = ", ".join(map(str, self.leasable)) or "none"
            raise RefusedError(
                errno.EINVAL, f"{self.ifname}: harpd may not lease queue {queue}; it has {there}"
            )
        if state in (QueueState.LEASED, QueueState.RESERVED):
            raise RefusedError(
                errno.EBUSY, f"{self.ifname}: queue {queue} is leased; ask for any queue"
            )
        if queue in self.unreachable:
            raise RefusedError(errno.EBUSY, self.one_queue_why)
        return queue


class LeaseTable:
    """All NICs and all leases. now_s is the caller's clock, which must be monotonic."""

    def __init__(self, per_uid_max: int, new_id: Callable[[], int]) -> None:
        self.per_uid_max = per_uid_max
        self.nics: dict[str, NicTable] = {}
        self.leases: dict[int, Lease] = {}
        self._new_id = new_id

    # ---- NICs ----

    def add_nic(self, nic: NicTable) -> None:
        self.nics[nic.ifname] = nic

    def remove_nic(self, ifname: str) -> None:
        """Remove a NIC. Its leases stay, without a queue, until their owners end."""
        self.nics.pop(ifname, None)

    def nic_of(self, lease: Lease) -> NicTable | None:
        """Return the NIC of a lease, if it is still the same one."""
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
        wanted: int,
        label: str,
        *,
        now_s: float,
        since_s: float,
        in_use: Iterable[int] = (),
        held: int = 0,
    ) -> Lease:
        """Reserve a queue and a block of ports; RefusedError with the reason.

        in_use: ports of the kernel's sockets. held: queues of the user's former leases that some
        process still holds.
        """
        nic, queue = self.choose(owner, ifname, wanted, now_s=now_s, held=held)
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
        self, owner: Owner, ifname: str, wanted: int, *, now_s: float, held: int = 0
    ) -> tuple[NicTable, int]:
        """Return the NIC and the queue that reserve() would take now; RefusedError. Reserves
        nothing, and does not ask the kernel.
        """
        nic = self.nics.get(ifname)
        if nic is None:
            there = ", ".join(sorted(self.nics)) or "none"
            raise RefusedError(
                errno.ENODEV, f"harpd has no interface {ifname}; it has: {there}; see harp.toml"
            )
        if owner.uid != 0:
            self._check_count(owner.uid, held)
            self._check_ports(owner.uid, nic, now_s)
        return nic, nic.choose(wanted)

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
        """Reserve a DPDK port, whole; RefusedError with the reason. held as above."""
        if owner.uid != 0:
            self._check_count(owner.uid, held)
        holder = self.holder(name, device)
        if holder is not None:
            raise RefusedError(
                errno.EBUSY,
                f"DPDK port {name} is leased to process {holder.owner.pid} ({holder.label}) of "
                f"user {holder.owner.uid}, and has one owner at a time; end that job, or name "
                "another port",
            )
        lease = Lease(self._fresh_id(), owner, name, 0, 0, None, label, since_s=since_s)
        lease.device, lease.queues = device, queues
        self.leases[lease.lease_id] = lease
        return lease

    def holder(self, name: str, device: str) -> Lease | None:
        """Return the holder of a DPDK port, by its name, or by its device under another name."""
        stem = device.partition(",")[0]
        for lease in self.leases.values():
            if lease.device and (lease.ifname == name or lease.device.partition(",")[0] == stem):
                return lease
        return None

    def _check_count(self, uid: int, held: int) -> None:
        mine = self.of_uid(uid)
        if mine + held >= self.per_uid_max:
            also = f" and {held} queues that forked processes still hold" if held else ""
            raise RefusedError(
                errno.EDQUOT,
                f"user {uid} has {mine} leases{also}, and {self.per_uid_max} is the limit; end a "
                "job or raise leases_per_uid in harp.toml",
            )

    def _check_ports(self, uid: int, nic: NicTable, now_s: float) -> None:
        if nic.ports.used_up(uid, len(nic.leasable), now_s):
            raise RefusedError(
                errno.EBUSY,
                f"user {uid} has had too many leases in a short time: "
                + self._no_ports(nic, now_s),
            )

    @staticmethod
    def _no_ports(nic: NicTable, now_s: float) -> str:
        soon = nic.ports.free_in_s(now_s)
        wait = f"; the next rests {soon:.0f} s more" if soon is not None else ""
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
        """The lease was made and handed over."""
        nic = self.nic_of(lease)
        lease.active = True
        if nic is not None:
            nic.queues[lease.queue] = QueueState.LEASED

    def cancel(self, lease: Lease, now_s: float) -> None:
        self._end(lease, now_s, quarantine=False)

    def release(self, lease: Lease, now_s: float) -> None:
        """The owner returned the lease or is dead: quarantine the ports, recover the queue."""
        self._end(lease, now_s, quarantine=True)

    def _end(self, lease: Lease, now_s: float, quarantine: bool) -> None:
        del self.leases[lease.lease_id]
        nic = self.nic_of(lease)
        if nic is not None:
            # At the end of the order in which choose() tries recovering queues.
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
        nic.queues[lease.queue] = QueueState.LEASED
        self.leases[lease.lease_id] = lease
        return True

    def recovered(self, ifname: str, queue: int) -> bool:
        """The kernel has released the queue; False if another lease has, or gets, it already."""
        nic = self.nics.get(ifname)
        if nic is None or nic.queues.get(queue) is not QueueState.RECOVERING:
            return False
        nic.queues[queue] = QueueState.FREE
        return True


# --------------------------------------------------------------------------------------------------
# Some NICs and clouds put all of HARP's packets on one queue, whatever ethtool says. A stack on
# another queue receives nothing, so its lease is useless. harpd concludes that from the XDP
# program's counters, conservatively: many packets of several flows were dropped because they were
# another queue's, they were replies, and no packet of HARP's came to a second queue. One such
# packet reverts the conclusion.
#
# Only TCP segments with the ACK bit count, because they answer what a stack here has sent. A SYN or
# a UDP packet, which any host can send to a listening port, is no evidence. The XDP program does
# not check sequence numbers: docs/security.md says what a host that forges replies can cause.
#
@dataclass(frozen=True)
class OneQueue:
    """All packets arrive on this queue; with the counters."""

    queue: int
    mismatches: int
    flows: int

    def line(self, ifname: str) -> str:
        """Return one line: evidence and remedy."""
        return (
            f"{ifname}: the NIC puts all of HARP's packets on queue {self.queue} "
            f"({self.mismatches} answers to {self.flows} flows or more of other queues were "
            "dropped there and none came elsewhere), so a stack on another queue receives nothing; "
            f"let it spread TCP (`ethtool -x {ifname}`, then -X or -L), or set "
            f'lease_queues = "{self.queue}" in harp.toml'
        )


def one_queue(arrivals: Sequence[tuple[int, int, int]]) -> OneQueue | None:
    """Evaluate the XDP program's arrivals() of all queues: None without enough evidence."""
    used = [queue for queue, (packets, _, _) in enumerate(arrivals) if packets]
    if len(arrivals) < 2 or len(used) != 1:
        return None
    _, mismatches, bits = arrivals[used[0]]
    flows = bits.bit_count()
    if mismatches < MISMATCHES_MIN or flows < FLOWS_MIN:
        return None
    return OneQueue(used[0], mismatches, flows)
