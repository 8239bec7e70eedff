# SPDX-License-Identifier: Apache-2.0
"""Asks harpd whether it runs, what it leases to this user, and who holds a port."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harp import _host
from harp.daemon.client import DaemonClient, RefusedByDaemonError, understood
from harp.daemon.messages import Device
from harp.errors import HarpError
from harp.stats.source import Source

SOCKET = Path(_host.SOCKET)
TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Harpd:
    """The answer."""

    path: Path
    error: int = 0  # errno; 0: harpd answered
    why: str = ""
    version: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)


def ask(path: Path = SOCKET) -> Harpd:
    """Ask harpd; never raises."""
    try:
        with DaemonClient(path, "harpctl check", TIMEOUT_S) as client:
            devices = {each.ifname: each for each in client.devices}
            return Harpd(path, version=client.daemon, devices=devices)
    except RefusedByDaemonError as error:
        return Harpd(path, error.error or errno.EACCES, error.why)
    except HarpError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        return Harpd(path, number or errno.EPROTO, str(error))


@dataclass(frozen=True)
class PortUse:
    """The holder of a leased DPDK port, and its driver's counters from that job's page. pid 0: this
    user can't see the holder.
    """

    pid: int = 0
    label: str = ""
    xstats: Mapping[str, int] = field(default_factory=dict)


def port_use(name: str, harpd: Path) -> PortUse:
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
