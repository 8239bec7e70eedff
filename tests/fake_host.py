# SPDX-License-Identifier: Apache-2.0
"""A host made of files and dictionaries, with a NIC that has every feature."""

import copy
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp.config import NicConfig
from harp.nicprep import Host

BUS = "0000:41:00.0"


def nic(ifname: str = "eth1", **keys: Any) -> NicConfig:
    return NicConfig(ifname=ifname, **keys)


@dataclass
class FakeNic:
    """The state of a NIC. A part that is missing is not supported."""

    driver: str = "fakenic"
    bus: str = BUS
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    xdp: dict[str, Any] = field(default_factory=dict)
    xsk_queues: list[int] = field(default_factory=list)

    def spread(self) -> None:
        """Reset the RSS table, as drivers do when the number of queues changes."""
        table, queues = self.parts["rss"]["table"], self.parts["channels"]["combined"]
        table[:] = [entry % queues for entry in range(len(table))]


def full_nic() -> FakeNic:
    """Return a NIC with eight of sixteen queues, all of whose settings can be changed."""
    return FakeNic(
        parts={
            "channels": {"combined": 8, "combined_max": 16, "rx": 0, "rx_max": 0},
            "rings": {"rx": 512, "rx_max": 4096, "tx": 512, "tx_max": 4096},
            "coalesce": {
                "rx_usecs": 50,
                "tx_usecs": 50,
                "rx_frames": 0,
                "tx_frames": 0,
                "adaptive_rx": 1,
                "adaptive_tx": 1,
            },
            "features": {"rx-lro": True, "rx-gro": True, "tx-tcp-segmentation": True},
            "rss": {"table": [entry % 8 for entry in range(128)]},
        },
        xdp={"xdp_features": 0x6B, "zc_max_segs": 8, "xsk_features": 2},
    )


@dataclass
class FakeEthtool:
    """NICs by name, a log of set() calls, and faults to inject."""

    nics: dict[str, FakeNic] = field(default_factory=dict)
    log: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    refuse: dict[str, OSError] = field(default_factory=dict)  # part -> what set() raises
    deaf: set[str] = field(default_factory=set)  # parts whose set() has no effect
    fixed: set[str] = field(default_factory=set)  # features that cannot be changed
    limit: dict[str, int] = field(default_factory=dict)  # "rings.rx" -> the largest value

    def _nic(self, ifname: str) -> FakeNic:
        if ifname not in self.nics:
            raise OSError(errno.ENODEV, "no device matches name")
        return self.nics[ifname]

    def get(self, part: str, ifname: str) -> dict[str, Any]:
        parts = self._nic(ifname).parts
        if part == "changeable":
            features = self.get("features", ifname)
            return {name: on for name, on in features.items() if name not in self.fixed}
        if part not in parts:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return dict(parts[part])

    def set(self, part: str, ifname: str, values: Mapping[str, Any]) -> None:
        present = self._nic(ifname).parts[part]
        self.log.append((part, ifname, dict(values)))
        if part in self.refuse:
            raise self.refuse[part]
        if part in self.deaf:
            return
        for name, value in values.items():
            assert name in present, f"{part} has no {name}"
            present[name] = min(value, self.limit.get(f"{part}.{name}", value))
            if part == "channels":
                self.nics[ifname].spread()

    def driver(self, ifname: str) -> tuple[str, str]:
        nic = self._nic(ifname)
        return nic.driver, nic.bus

    def xdp(self, ifname: str) -> dict[str, Any]:
        if not self._nic(ifname).xdp:
            raise OSError(errno.EOPNOTSUPP, "this kernel has no netdev netlink")
        return dict(self._nic(ifname).xdp)

    def xsk_queues(self, ifname: str) -> list[int]:
        return list(self._nic(ifname).xsk_queues)


class FakeHost:
    """Folders for /sys and /proc, and a Host that reads them.

    It has two NUMA nodes of four processors (two cores with threads n and n + 2). eth1 is on node 1
    and has the interrupts 40 to 47 for its queues.
    """

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = root / "sys", root / "proc"
        self.ethtool = FakeEthtool({"eth1": full_nic()})
        self.ifindexes: dict[str, int] = {"eth1": 5}
        self.allowed = set(range(8))
        self.host = Host(
            self.sys, self.proc, self.ethtool, self.ifindexes.get, lambda: set(self.allowed)
        )
        self._make()

    @property
    def nic(self) -> FakeNic:
        return self.ethtool.nics["eth1"]

    def write(self, path: str, text: object) -> Path:
        file = self.sys.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def read(self, path: str) -> str:
        return (self.sys.parent / path).read_text().strip()

    def remove(self, path: str) -> None:
        (self.sys.parent / path).unlink()

    def snapshot(self) -> Any:
        """Return all that nicprep can change: NIC, interrupts, huge pages, reserved ports."""
        affinity = [self.read(f"proc/irq/{irq}/smp_affinity_list") for irq in range(38, 48)]
        pages = [
            self.read(f"sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
            for node in (0, 1)
        ]
        ports = self.read("proc/sys/net/ipv4/ip_local_reserved_ports")
        return copy.deepcopy([self.nic.parts, affinity, pages, ports])

    def _make(self) -> None:
        self.write("proc/sys/net/ipv4/ip_local_reserved_ports", "")
        nodes = "sys/devices/system/node"
        self.write(f"{nodes}/online", "0-1")
        self.write(f"{nodes}/has_memory", "0-1")
        for node, distances in enumerate(("10 21", "21 10")):
            self.write(f"{nodes}/node{node}/cpulist", f"{4 * node}-{4 * node + 3}")
            self.write(f"{nodes}/node{node}/distance", distances)
            self.write(f"{nodes}/node{node}/hugepages/hugepages-2048kB/nr_hugepages", 0)
            self.write(f"{nodes}/node{node}/hugepages/hugepages-2048kB/free_hugepages", 0)
        for cpu in range(8):
            low = cpu // 4 * 4 + cpu % 2
            siblings = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            self.write(siblings, f"{low},{low + 2}")
        device = f"sys/bus/pci/devices/{BUS}"
        self.write(f"{device}/numa_node", 1)
        (self.sys.parent / device / "net/eth1").mkdir(parents=True)
        lines = ["           CPU0       CPU1"]
        for irq in range(38, 48):
            self.write(f"{device}/msi_irqs/{irq}", "msix")
            self.write(f"proc/irq/{irq}/smp_affinity_list", "0-7")
            name = f"eth1-TxRx-{irq - 40}" if irq >= 40 else f"fakenic-async{irq}@pci:{BUS}"
            lines.append(f" {irq}:   1   2  PCI-MSIX-{BUS}  {irq - 38}-edge      {name}")
        lines += [" 60:   0   1  PCI-MSIX-0000:01:00.0  1-edge  nvme0q1", "NMI:  1  2  interrupts"]
        self.write("proc/interrupts", "\n".join(lines))
