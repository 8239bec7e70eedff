# SPDX-License-Identifier: Apache-2.0
"""Who has a DPDK port that harpd has leased, and what its driver counts, by that job's own page."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harp.stats.source import Source


@dataclass(frozen=True)
class PortUse:
    """pid 0: this user can't see whose it is."""

    pid: int = 0
    label: str = ""
    xstats: Mapping[str, int] = field(default_factory=dict)


def use(name: str) -> PortUse:
    """Of the port of that name. The instance on queue 0 speaks for it."""
    for each in Source().look(flows=False).instances:
        identity, ended = each.snapshot.identity, each.snapshot.status.ended
        if (identity.ifname, identity.queue) == (name, 0) and identity.lease_id and not ended:
            return PortUse(each.pid, identity.label or each.comm, each.snapshot.xstats)
    return PortUse()
