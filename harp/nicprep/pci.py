# SPDX-License-Identifier: Apache-2.0
"""PCI devices in sysfs: their drivers, and whether DPDK can open them."""

import re
from dataclasses import dataclass
from pathlib import Path

from harp.nicprep.host import Host

# Drivers that give the device to a process; any other is the kernel's own.
USER_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")
# Drivers of the kernel that share the NIC with DPDK, so that it needs no other driver.
BIFURCATED = ("mlx4_core", "mlx5_core", "mana")
_ADDRESS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII
)


@dataclass(frozen=True)
class PciDevice:
    """One device. driver: empty without one; interfaces: those of this network namespace's /sys;
    iommu_group: None without an IOMMU for it.
    """

    address: str
    driver: str
    interfaces: tuple[str, ...]
    network: bool  # whether it is a NIC
    iommu_group: int | None
    numa_node: int
    folder: Path

    @property
    def is_dpdk_ready(self) -> bool:
        return self.driver in USER_DRIVERS or self.driver in BIFURCATED


def canonical(device: str) -> str | None:
    """Return the PCI address at the start of a port's device; None: a virtual device."""
    match = _ADDRESS.fullmatch(device.partition(",")[0])
    if match is None:
        return None
    domain, bus, slot, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def find(host: Host, address: str) -> PciDevice | None:
    """Return the device; None: there is none at that address."""
    folder = host.sys / "bus/pci/devices" / address
    if not folder.is_dir():
        return None
    group = _link(folder / "iommu_group")
    node = host.number(folder / "numa_node")
    return PciDevice(
        address=address,
        driver=_link(folder / "driver"),
        interfaces=tuple(host.names(folder / "net")),
        network=(host.read(folder / "class") or "0x02").startswith("0x02"),
        iommu_group=int(group) if group.isdecimal() else None,
        numa_node=-1 if node is None else node,
        folder=folder,
    )


def binding(device: PciDevice) -> str:
    return f"driverctl set-override {device.address} vfio-pci"


def unbound(host: Host, name: str) -> str:
    """Return why DPDK can't open a port's device, and the remedy; empty: only DPDK can tell."""
    address = canonical(name)
    if address is None:
        return ""
    device = find(host, address)
    if device is None:
        return f"there is no PCI device {address}; `lspci -D` lists the devices"
    if not device.network:
        return f"{address} is not a network device; `lspci -D` lists the devices"
    if device.is_dpdk_ready:
        return ""
    if device.driver:
        interfaces = f" ({', '.join(device.interfaces)})" if device.interfaces else ""
        return f"{address} belongs to the kernel's {device.driver}{interfaces}: {binding(device)}"
    return f"{address} has no driver: {binding(device)}"
