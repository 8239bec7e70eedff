# SPDX-License-Identifier: Apache-2.0
"""Blocks of ports: cut, taken, rested, never two at once."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harp.daemon.ports import Block, PortBlocks, block_size


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


class Life(RuleBasedStateMachine):
    """Takes, returns, restarts with another size: nothing overlaps, nothing is lost for ever."""

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
                rested = self.now_s >= at_s + self.ports.quarantine_s
                assert rested or not block.overlaps(other)

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
        again = PortBlocks(self.span, size, self.ports.quarantine_s)
        for block in self.ports.held:
            assert again.claim(block)
        for block, (until_s, _) in self.ports.quarantined.items():
            again.continue_quarantine(block, until_s)
        self.ports = again

    @invariant()
    def no_two_overlap(self) -> None:
        if hasattr(self, "ports"):
            held = sorted(self.ports.held)
            assert all(a.last < b.first for a, b in itertools.pairwise(held))


TestLife = Life.TestCase
