# SPDX-License-Identifier: Apache-2.0
"""A DPDK port before it is opened: its device, its binding, and what taking it would cut off.

Everything here is read from files, so that it works for a device that must not be opened.
"""

from harp._core import PortSpec
from harp.doctor.finding import Answer, cannot, check, costs, good
from harp.doctor.view import View
from harp.nicprep import pci

# Arguments of virtual devices that name a kernel interface (dataplane/host/dpdk_take.c).
_INTERFACE_ARGUMENTS = ("iface", "rx_iface", "tx_iface", "rx_iface_in", "remote")
# Of an IOMMU group's other devices: with these drivers a process can't break anything.
_HARMLESS = ("", "vfio-pci", "pci-stub", "pcieport")
_UNSAFE = "module/vfio/parameters/enable_unsafe_noiommu_mode"


def _address(view: View, spec: PortSpec) -> str | None:
    """Return the PCI address of the port's device, which may be given by its interface's name."""
    address = pci.canonical(spec.device)
    if address is None and spec.device in view.links:
        folder = view.host.device(spec.device)
        address = folder.name if folder else None
    return address


def _device(view: View, spec: PortSpec) -> pci.PciDevice | None:
    address = _address(view, spec)
    return pci.find(view.host, address) if address else None


def _interfaces(view: View, spec: PortSpec) -> list[str]:
    """Return the kernel's interfaces that the port would take over, or share."""
    found = []
    for argument in spec.device.split(",")[1:]:
        name, _, value = argument.partition("=")
        if name in _INTERFACE_ARGUMENTS:
            found.append(value)
    device = _device(view, spec)
    found += device.interfaces if device else ()
    found += [spec.device] if spec.device in view.links else []
    return [name for name in dict.fromkeys(found) if name in view.links]


@check("dpdk-default-route", "port")
def _default_route(view: View, spec: PortSpec) -> Answer:
    """Whether the host's default route, or this SSH session, uses the port's interface: taking it
    cuts the host off.
    """
    for name in _interfaces(view, spec):
        if view.default_route(name):
            what = f"the host's default route leaves by {name}"
        elif view.ssh_address and view.ssh_address in view.links[name].addresses:
            what = f"this SSH session comes in by {name}"
        else:
            continue
        if spec.take_default_route:
            return costs(f"{what}; it may be taken", "have another way to the host at hand")
        return cannot(
            f"{what}: taking it cuts the host off",
            "another NIC; or --take-default-route, default_route = true in harp.toml, "
            "take=default-route in a port's text",
        )
    return good("the host is reached another way")


@check("dpdk-binding", "port")
def _binding(view: View, spec: PortSpec) -> Answer:
    """The driver that a PCI device is bound to (driverctl, dpdk-devbind): DPDK opens devices of
    vfio-pci; it shares mlx5 with the kernel's driver.
    """
    address = _address(view, spec)
    if address is None:
        if spec.device in view.links:
            return cannot(
                f"{spec.device} is an interface without a PCI device",
                f"net_af_xdp0,iface={spec.device}, or HARP on {spec.device} itself (AF_XDP)",
            )
        return good("a virtual device: nothing to bind")
    device = pci.find(view.host, address)
    if device is None or not device.network:
        return cannot(pci.unbound(view.host, address), "the address of a NIC: lspci -D")
    named = "" if pci.canonical(spec.device) else f"; name it by its address: dpdk:{address}"
    if device.driver in pci.BIFURCATED:
        if named:
            return cannot(f"{device.driver} shares {address}", f"dpdk:{address}; nothing to bind")
        return good(f"{device.driver}, which shares its NIC with DPDK: nothing to bind")
    if device.opens:
        return good(f"{device.driver}")
    return cannot(
        pci.unbound(view.host, address).partition(": ")[0],
        f"{pci.binding(device)} (it stays over a boot; dpdk-devbind.py -b vfio-pci {address} does "
        f"not). Its interface and addresses are gone then{named}",
    )


@check("dpdk-vfio", "port")
def _vfio(view: View, spec: PortSpec) -> Answer:
    """VFIO in the kernel, an IOMMU, and what else is in the device's group: vfio-pci gives a device
    to a process, and the IOMMU limits it to that process's memory.
    """
    device = _device(view, spec)
    if device is None or not device.network or device.driver in pci.BIFURCATED:
        return None
    if device.driver in pci.USER_DRIVERS and device.driver != "vfio-pci":
        return costs(
            f"{device.driver}: any process that opens it reads and writes all memory",
            f"{pci.binding(device)}, with an IOMMU",
        )
    if not (view.host.sys / "bus/pci/drivers/vfio-pci").is_dir():
        return cannot("no vfio-pci in this kernel", "modprobe vfio-pci (CONFIG_VFIO_PCI)")
    if device.iommu_group is None:
        return _without_iommu(view)
    others = []
    for name in view.host.names(device.folder / "iommu_group/devices"):
        other = pci.find(view.host, name)
        if other and other.address != device.address and other.driver not in _HARMLESS:
            others.append(f"{name} ({other.driver})")
    if others:
        return cannot(
            f"its IOMMU group {device.iommu_group} has also {', '.join(others)}",
            "bind these to vfio-pci too, or put the card in another slot",
        )
    return good(f"IOMMU group {device.iommu_group}")


def _without_iommu(view: View) -> Answer:
    path = view.host.sys / _UNSAFE
    if view.host.read(path) in ("Y", "1"):
        return costs(
            "no IOMMU, and VFIO works without: the device's holder reads and writes all memory",
            "boot with intel_iommu=on iommu=pt where the machine has one; give leases to root only",
        )
    return cannot(
        "no IOMMU for it",
        "boot with intel_iommu=on iommu=pt (AMD: amd_iommu=on); on a virtual machine that has "
        f"none: echo Y > {path}, which lets the holder reach all memory",
    )


@check("dpdk-access", "port")
def _access(view: View, spec: PortSpec) -> Answer:
    """Whether this user may open the device's file (/dev/vfio/GROUP): the job opens the port, not
    harpd.
    """
    device = _device(view, spec)
    if device is None or device.driver != "vfio-pci":
        return None
    if device.iommu_group is None:
        return good("without an IOMMU root alone may open it (CAP_SYS_RAWIO)")
    path = f"/dev/vfio/{device.iommu_group}"
    may = view.may_open(path)
    if may is None:
        return cannot(f"{path} is not there", "in a container: --device /dev/vfio/vfio and it")
    if not may:
        return cannot(f"{path} is not for this user", f"chgrp harp {path}; chmod g+rw {path}")
    return good(f"{path} may be opened")
