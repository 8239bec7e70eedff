# SPDX-License-Identifier: Apache-2.0
"""The holder of a leased DPDK port, and its driver's counters from that job's page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harp.daemon.client import DaemonClient
from harp.errors import HarpError
from harp.stats.source import Source, understood


@dataclass(frozen=True)
class PortUse:
    """pid 0: this user can't see the holder."""

    pid: int = 0
    label: str = ""
    xstats: Mapping[str, int] = field(default_factory=dict)


def use(name: str, harpd: Path) -> PortUse:
    """Find the port of that name of the harpd on that socket: another harpd of this machine may
    lease a port of the same name. The instance on queue 0 has the counters.
    """
    try:
        with DaemonClient(harpd) as client:
            leases = {each["lease_id"] for each in client.query("instances")["instances"]}
    except HarpError:
        return PortUse()
    with understood():
        for each in Source().look(flows=False)["instances"]:
            identity, ended = each["identity"], each["status"]["ended"]
            leased = f"{identity['lease_id']:016x}" in leases
            if (identity["ifname"], identity["queue"]) == (name, 0) and leased and not ended:
                return PortUse(each["pid"], identity["label"] or each["comm"], each["xstats"])
    return PortUse()
