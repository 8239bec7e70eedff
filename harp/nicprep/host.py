# SPDX-License-Identifier: Apache-2.0
"""The host as NIC preparation sees it: /sys and /proc under roots that a test may choose, the NICs
through a transport that a test may replace.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harp.nicprep import ranges
from harp.nicprep.transport import Ethtool


def _ifindex(ifname: str) -> int | None:
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        return None


def _processors() -> set[int]:
    return os.sched_getaffinity(0)


@dataclass(frozen=True)
class Host:
    """The sources. Everything that is read may be absent."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    ethtool: Ethtool = field(default_factory=Ethtool)
    ifindex: Callable[[str], int | None] = _ifindex
    processors: Callable[[], set[int]] = _processors  # that this process may use

    def read(self, path: Path) -> str | None:
        """Return a small file's text without the last newline; None if it can't be read."""
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: Path) -> int | None:
        """Return the number in a file."""
        text = self.read(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def numbers(self, path: Path) -> set[int]:
        """Return the list in a file, such as "0-3,8"; empty if it can't be read."""
        try:
            return ranges.parse(self.read(path) or "")
        except ValueError:
            return set()

    def names(self, path: Path) -> list[str]:
        """Return the entries of a folder, in order; empty if it does not exist."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError:
            return []

    def device(self, ifname: str) -> Path | None:
        """Return the NIC's folder on the PCI bus; None if there is none (veth, bond).

        By the bus address that the driver reports, and not through /sys/class/net: that folder
        shows the network namespace in which /sys was mounted, where eth0 may be another interface.
        """
        try:
            _, address = self.ethtool.driver(ifname)
        except OSError:
            return None
        if not address or "/" in address or address.startswith("."):
            return None
        folder = self.sys / "bus/pci/devices" / address
        return folder if folder.is_dir() else None

    def node(self, ifname: str) -> int | None:
        """Return the NUMA node of the NIC; None if it has none or there is only one."""
        device = self.device(ifname)
        node = self.number(device / "numa_node") if device else None
        return node if node is not None and node >= 0 else None

    def nodes(self) -> list[int]:
        """Return the NUMA nodes that have memory; [] on a machine without NUMA information."""
        return sorted(self.numbers(self.sys / "devices/system/node/has_memory"))
