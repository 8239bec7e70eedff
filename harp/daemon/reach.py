# SPDX-License-Identifier: Apache-2.0
"""Which queues of a NIC HARP's packets reach: the conclusion that all land on one.

Some NICs and clouds put everything on one receive queue, whatever ethtool says. A stack on another
queue hears nothing, so its lease is of no use. harpd concludes that from the XDP program's counts,
conservatively: many packets were dropped because they were another queue's, of several flows that
the other end answered, and not one packet of HARP's ever came to a second queue. One that does
takes it back.

Only TCP segments with the ACK bit count: the other end answers what a stack here has sent. A SYN or
a UDP packet, which any host can send to a listening port, is no evidence. The XDP program knows no
sequence numbers. So a host that forges answers of eight flows, all on one queue, before any other
packet of HARP's has come to a second one, can still cause the conclusion.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MISMATCHES_MIN = 64
FLOWS_MIN = 8


@dataclass(frozen=True)
class OneQueue:
    """Everything lands on this queue; what was seen."""

    queue: int
    mismatches: int
    flows: int

    def words(self, ifname: str) -> str:
        """One line: what was seen and what to do."""
        return (
            f"{ifname}: the NIC puts all of HARP's packets on queue {self.queue} "
            f"({self.mismatches} answers to {self.flows} flows or more of other queues were "
            "dropped there and none came elsewhere), so a stack on another queue hears nothing; "
            f"let it spread TCP (`ethtool -x {ifname}`, then -X or -L), or set "
            f'lease_queues = "{self.queue}" in harp.toml'
        )


def conclude(arrivals: Sequence[tuple[int, int, int]]) -> OneQueue | None:
    """Of the steering program's arrivals() of all queues: None while nothing can be said."""
    used = [queue for queue, (packets, _, _) in enumerate(arrivals) if packets]
    if len(arrivals) < 2 or len(used) != 1:
        return None
    _, mismatches, bits = arrivals[used[0]]
    flows = bits.bit_count()
    if mismatches < MISMATCHES_MIN or flows < FLOWS_MIN:
        return None
    return OneQueue(used[0], mismatches, flows)
