# SPDX-License-Identifier: Apache-2.0
"""Which core a dedicated thread of a lease should run on: near the NIC, and not another lease's."""

from collections.abc import Collection, Iterable


def suggest(
    allowed: Collection[int], local: Collection[int], taken: Iterable[int], queue: int
) -> int | None:
    """A core that the job may use, NUMA-local if it can be, that no other lease was told.

    When every such core is taken, leases share, by queue number; None where the job may use none.
    """
    near = sorted(set(allowed) & set(local)) or sorted(allowed)
    if not near:
        return None
    used = set(taken)
    fresh = [cpu for cpu in near if cpu not in used]
    return fresh[queue % len(fresh)] if fresh else near[queue % len(near)]
