# SPDX-License-Identifier: Apache-2.0
"""Detects that a NIC puts all of HARP's packets on one queue.

Some NICs and clouds do so, whatever ethtool says. A stack on another queue receives nothing, so its
lease is useless. harpd concludes that from the XDP program's counters, conservatively: many packets
of several flows were dropped because they were another queue's, they were replies, and no packet of
HARP's came to a second queue. One such packet reverts the conclusion.

Only TCP segments with the ACK bit count, because they answer what a stack here has sent. A SYN or a
UDP packet, which any host can send to a listening port, is no evidence. The XDP program does not
check sequence numbers. So a host that forges replies of eight flows, all on one queue, before any
other packet of HARP's came to a second one, can still cause the conclusion.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MISMATCHES_MIN = 64
FLOWS_MIN = 8


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


def conclude(arrivals: Sequence[tuple[int, int, int]]) -> OneQueue | None:
    """Evaluate the XDP program's arrivals() of all queues: None without enough evidence."""
    used = [queue for queue, (packets, _, _) in enumerate(arrivals) if packets]
    if len(arrivals) < 2 or len(used) != 1:
        return None
    _, mismatches, bits = arrivals[used[0]]
    flows = bits.bit_count()
    if mismatches < MISMATCHES_MIN or flows < FLOWS_MIN:
        return None
    return OneQueue(used[0], mismatches, flows)
