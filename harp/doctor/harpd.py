# SPDX-License-Identifier: Apache-2.0
"""Asks harpd whether it runs and what it leases to this user."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harp import _host
from harp.daemon.client import DaemonClient, RefusedByDaemonError
from harp.errors import HarpError

SOCKET = Path(_host.SOCKET)
TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Harpd:
    """The answer."""

    path: Path
    error: int = 0  # errno; 0: harpd answered
    why: str = ""
    version: str = ""
    devices: Mapping[str, _host.Device] = field(default_factory=dict)


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
