# SPDX-License-Identifier: Apache-2.0
"""A NIC's ports, in blocks: one block per lease, and a quarantine after it.

A returned block is quarantined, because the previous owner's peers may still be sending. Their
packets must get the kernel's RST, and must not reach another stack.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

BLOCK_MAX = 256
PORTS = 65536


@dataclass(frozen=True, order=True)
class Block:
    """Ports first..last, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last <= 65535:
            raise ValueError(f"{self.first}-{self.last} is not a range of ports")

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def overlaps(self, other: "Block") -> bool:
        return self.first <= other.last and other.first <= self.last


def block_size(ports: int, queues: int) -> int:
    """Return the default number of ports of a lease: two blocks for each queue, so that all queues
    can be leased again during the quarantine of the previous blocks.
    """
    return max(1, min(BLOCK_MAX, ports // (2 * max(1, queues))))


class PortBlocks:
    """The blocks of a NIC that are held, and those in quarantine."""

    def __init__(self, span: Block, size: int, quarantine_s: float) -> None:
        if size < 1:
            raise ValueError(f"a block of {size} ports")
        self.span = span
        self.size = min(size, span.last - span.first + 1)
        self.quarantine_s = quarantine_s
        self.held: set[Block] = set()
        # The end of the quarantine, and the user; None for blocks from before a restart.
        self.quarantined: dict[Block, tuple[float, int | None]] = {}
        self._next = span.first

    def _blocks(self) -> Iterator[Block]:
        """Yield all blocks, beginning after the last one that was taken."""
        starts = range(self.span.first, self.span.last - self.size + 2, self.size)
        later = [start for start in starts if start >= self._next]
        earlier = [start for start in starts if start < self._next]
        for start in (*later, *earlier):
            yield Block(start, start + self.size - 1)

    def expire(self, now_s: float) -> None:
        """Remove quarantines that have ended."""
        self.quarantined = {
            block: entry for block, entry in self.quarantined.items() if entry[0] > now_s
        }

    def take(self, now_s: float, in_use: Iterable[int] = ()) -> Block | None:
        """Take a block for a new lease; None if none is free. in_use: ports of the kernel's
        sockets.

        The cost is linear in the number of ports plus the number of blocks.
        """
        self.expire(now_s)
        taken = bytearray(PORTS)
        for port in in_use:
            taken[port] = 1
        for held in (*self.held, *self.quarantined):
            taken[held.first : held.last + 1] = b"\1" * (held.last + 1 - held.first)
        for block in self._blocks():
            if taken.find(1, block.first, block.last + 1) >= 0:
                continue
            self.held.add(block)
            self._next = block.last + 1
            return block
        return None

    def claim(self, block: Block) -> bool:
        """Hold the block of an existing lease; False if another one overlaps it.

        After a restart with other settings its size may differ from this table's.
        """
        if any(block.overlaps(other) for other in self.held):
            return False
        self.held.add(block)
        return True

    def give_back(self, block: Block, now_s: float, quarantine: bool = True, uid: int = 0) -> None:
        """Return the block of a user's lease; an unused block needs no quarantine."""
        self.held.remove(block)
        if quarantine and self.quarantine_s > 0:
            self.quarantined[block] = now_s + self.quarantine_s, uid

    def is_exhausted_by(self, uid: int, queues: int, now_s: float) -> bool:
        """Tell whether too many blocks are in quarantine because of this user."""
        self.expire(now_s)
        count = (self.span.last - self.span.first + 1) // self.size
        share = max(count - queues, (count + 1) // 2)
        return sum(owner == uid for _, owner in self.quarantined.values()) >= share

    def continue_quarantine(self, block: Block, until_s: float) -> None:
        """Continue a quarantine from before a restart."""
        if not any(block.overlaps(other) for other in self.held):
            self.quarantined[block] = until_s, None

    def free_in_s(self, now_s: float) -> float | None:
        """Return when the first quarantine ends; None without any."""
        self.expire(now_s)
        return min((until_s - now_s for until_s, _ in self.quarantined.values()), default=None)
