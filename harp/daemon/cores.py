# SPDX-License-Identifier: Apache-2.0
"""Chooses the core for a lease's dedicated thread: near the NIC, and not another lease's."""

from collections.abc import Collection, Iterable


def suggest(
    allowed: Collection[int], local: Collection[int], taken: Iterable[int], queue: int
) -> int | None:
    """Return a core that the job may use, NUMA-local if possible, and that no other lease has.

    When all such cores are taken, leases share them by queue number. None if the job may use no
    core.
    """
    near = sorted(set(allowed) & set(local)) or sorted(allowed)
    if not near:
        return None
    used = set(taken)
    fresh = [cpu for cpu in near if cpu not in used]
    return fresh[queue % len(fresh)] if fresh else near[queue % len(near)]
