# SPDX-License-Identifier: Apache-2.0
"""Tables of queues, leases and port blocks: no queue and no port is ever leased twice."""

import errno
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from harp.daemon.ports import Block, PortBlocks, block_size
from harp.daemon.table import (
    QUEUE_ANY,
    Lease,
    LeaseTable,
    NicTable,
    Owner,
    QueueState,
    RefusedError,
    one_queue,
)

JOB = Owner(100, 1, 1000)


def table(queues: int = 2, blocks: int = 8, per_uid: int = 4) -> LeaseTable:
    leases = LeaseTable(per_uid, itertools.count(1).__next__)
    ports = PortBlocks(Block(61000, 61000 + 10 * blocks - 1), 10, 60)
    leases.add_nic(NicTable("eth0", 7, ports, dict.fromkeys(range(queues), QueueState.FREE)))
    return leases


def reserve(
    leases: LeaseTable, owner: Owner = JOB, queue: int = QUEUE_ANY, ifname: str = "eth0"
) -> Lease:
    return leases.reserve(owner, ifname, queue, "job", now_s=0, since_s=0)


def refusal(leases: LeaseTable, *arguments: object, **keywords: object) -> RefusedError:
    with pytest.raises(RefusedError) as failure:
        reserve(leases, *arguments, **keywords)  # type: ignore[arg-type]
    return failure.value


FEW, MANY = 0x7F, 0xFF  # bits of seven flows, and of eight


@pytest.mark.parametrize(
    ("arrivals", "queue"),
    [
        ([], None),
        ([(900, 900, MANY)], None),  # the only queue
        ([(64, 64, MANY), (0, 0, 0)], 0),
        ([(0, 0, 0), (99, 64, MANY), (0, 0, 0)], 1),
        ([(64, 63, MANY), (0, 0, 0)], None),
        ([(900, 900, FEW), (0, 0, 0)], None),
        ([(900, 900, MANY), (0, 0, 0), (1, 0, 0)], None),
        ([(900, 900, MANY), (900, 900, MANY)], None),
        ([(900, 0, 0), (0, 0, 0)], None),  # all belong to this queue
    ],
)
def test_a_nic_that_uses_one_queue_is_detected(
    arrivals: list[tuple[int, int, int]], queue: int | None
) -> None:
    finding = one_queue(arrivals)
    assert (finding and finding.queue) == queue
    assert finding is None or f'lease_queues = "{queue}"' in finding.line("eth0")


def test_a_refusal_names_the_end_of_the_quarantine() -> None:
    leases = table(queues=2, blocks=1)
    lease = reserve(leases)
    leases.activate(lease)
    leases.release(lease, 0)
    why = refusal(leases)
    assert why.error == errno.EBUSY
    assert "the next quarantine ends in 60 s" in why.why


def test_a_lease_is_adopted_once_and_only_if_its_queue_is_free() -> None:
    old = table()
    lease = reserve(old)
    new = table()
    assert new.adopt(lease)
    assert not new.adopt(lease)
    assert reserve(new).queue != lease.queue
    other = table()
    squatter = reserve(other)
    assert squatter.queue == lease.queue
    lease.lease_id = 99
    assert not other.adopt(lease)


class Life(RuleBasedStateMachine):
    """Requests, failures, releases and recoveries in any order."""

    reserved: Bundle[Lease] = Bundle("reserved")
    active: Bundle[Lease] = Bundle("active")

    def __init__(self) -> None:
        super().__init__()
        self.leases = table(queues=4, blocks=6, per_uid=3)
        self.now_s = 0.0

    @rule(
        target=reserved, uid=st.integers(0, 2), pid=st.integers(1, 3), requested=st.integers(-1, 5)
    )
    def reserve(self, uid: int, pid: int, requested: int) -> object:
        queue = QUEUE_ANY if requested < 0 else requested
        before = dict(self.leases.nics["eth0"].queues)
        try:
            return self.leases.reserve(
                Owner(pid, 1, uid), "eth0", queue, "", now_s=self.now_s, since_s=0,
            )  # fmt: skip
        except RefusedError:
            assert before == self.leases.nics["eth0"].queues, "a refusal changes nothing"
            return multiple()

    @rule(target=active, lease=consumes(reserved))
    def activate(self, lease: Lease) -> Lease:
        self.leases.activate(lease)
        return lease

    @rule(lease=consumes(reserved))
    def cancel(self, lease: Lease) -> None:
        self.leases.cancel(lease, self.now_s)

    @rule(lease=consumes(active))
    def release(self, lease: Lease) -> None:
        self.leases.release(lease, self.now_s)

    @rule(queue=st.integers(0, 3))
    def recover(self, queue: int) -> None:
        state = self.leases.nics["eth0"].queues[queue]
        assert self.leases.recovered("eth0", queue) is (state is QueueState.RECOVERING)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def each_queue_has_at_most_one_lease_and_its_state_fits(self) -> None:
        nic = self.leases.nics["eth0"]
        of_queue = {lease.queue: lease for lease in self.leases.leases.values()}
        assert len(of_queue) == len(self.leases.leases)
        for queue, state in nic.queues.items():
            lease = of_queue.get(queue)
            if lease is None:
                assert state in (QueueState.FREE, QueueState.RECOVERING)
            else:
                assert state is (QueueState.LEASED if lease.active else QueueState.RESERVED)
        assert nic.ports.held == {lease.ports for lease in self.leases.leases.values()}

    @invariant()
    def no_user_exceeds_its_limit(self) -> None:
        assert all(self.leases.of_uid(uid) <= 3 for uid in (1, 2))


TestLife = Life.TestCase


# --------------------------------------------------------------------------------------------------
# Blocks of ports.
#
def test_two_blocks_for_each_queue_and_no_more_than_256_ports() -> None:
    assert block_size(4536, 1) == 256
    assert block_size(4536, 8) == 256
    assert block_size(4536, 64) == 35
    assert block_size(4, 256) == 1


@given(st.integers(1, 1000), st.integers(20, 300))
def test_no_block_leaves_the_range(ports: int, size: int) -> None:
    span = Block(60000, 60000 + ports - 1)
    blocks = PortBlocks(span, size, 60)
    while (block := blocks.take(0)) is not None:
        assert span.first <= block.first <= block.last <= span.last
    assert blocks.held or size > ports


class PortsLife(RuleBasedStateMachine):
    """Blocks are taken and returned, also across restarts with another block size; none overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.returned: dict[Block, float] = {}

    @initialize(size=st.integers(1, 40), quarantine_s=st.sampled_from([0.0, 5.0, 60.0]))
    def begin(self, size: int, quarantine_s: float) -> None:
        self.span = Block(61000, 61099)
        self.ports = PortBlocks(self.span, size, quarantine_s)

    @rule()
    def take(self) -> None:
        block = self.ports.take(self.now_s)
        if block is not None:
            for other, at_s in self.returned.items():
                is_over = self.now_s >= at_s + self.ports.quarantine_s
                assert is_over or not block.overlaps(other)

    @precondition(lambda self: self.ports.held)
    @rule(data=st.data(), quarantine=st.booleans())
    def give_back(self, data: st.DataObject, quarantine: bool) -> None:
        block = data.draw(st.sampled_from(sorted(self.ports.held)))
        self.ports.give_back(block, self.now_s, quarantine)
        if quarantine:
            self.returned[block] = self.now_s

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(size=st.integers(1, 40))
    def restart_with_another_size(self, size: int) -> None:
        resized = PortBlocks(self.span, size, self.ports.quarantine_s)
        for block in self.ports.held:
            assert resized.claim(block)
        for block, (until_s, _) in self.ports.quarantined.items():
            resized.continue_quarantine(block, until_s)
        self.ports = resized

    @invariant()
    def no_two_blocks_overlap(self) -> None:
        if hasattr(self, "ports"):
            held = sorted(self.ports.held)
            assert all(a.last < b.first for a, b in itertools.pairwise(held))


TestPortsLife = PortsLife.TestCase
