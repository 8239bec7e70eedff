# SPDX-License-Identifier: Apache-2.0
"""A DPDK port before it is opened: its device, its driver, and who else uses it.

These checks only read files, so that they also work for a device that must not be opened.
"""

from harp._core import PortSpec
from harp.doctor.finding import Answer, check, fail, ok, warn
from harp.doctor.view import View
from harp.nicprep import pci

# Arguments of virtual devices that name a kernel interface (dataplane/host/dpdk_take.c).
_INTERFACE_ARGUMENTS = ("iface", "rx_iface", "tx_iface", "rx_iface_in", "remote")
# Drivers of other devices of an IOMMU group with which a process can do no harm.
_HARMLESS = ("", "vfio-pci", "pci-stub", "pcieport")
_UNSAFE = "module/vfio/parameters/enable_unsafe_noiommu_mode"


def _address(view: View, spec: PortSpec) -> str | None:
    """Return the PCI address of the port's device, which may be named by its interface."""
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
    names = []
    for argument in spec.device.split(",")[1:]:
        name, _, value = argument.partition("=")
        if name in _INTERFACE_ARGUMENTS:
            names.append(value)
    device = _device(view, spec)
    names += device.interfaces if device else ()
    names.append(spec.device)
    return [name for name in dict.fromkeys(names) if name in view.links]


@check("dpdk-default-route", "port")
def _default_route(view: View, spec: PortSpec) -> Answer:
    """Whether the host's default route, or this SSH session, uses the port's interface: taking it
    cuts the host off.
    """
    for name in _interfaces(view, spec):
        if view.default_route(name):
            reason = f"the host's default route uses {name}"
        elif view.ssh_address and view.ssh_address in view.links[name].addresses:
            reason = f"this SSH session uses {name}"
        else:
            continue
        if spec.take_default_route:
            return warn(f"{reason}; it may be taken", "keep another way to the host")
        return fail(
            f"{reason}: taking it cuts the host off",
            "another NIC; or --take-default-route, default_route = true in harp.toml, "
            "take=default-route in a port's text",
        )
    return ok("the host is reached another way")


@check("dpdk-binding", "port")
def _binding(view: View, spec: PortSpec) -> Answer:
    """The driver that a PCI device is bound to (driverctl, dpdk-devbind): DPDK opens devices of
    vfio-pci; it shares mlx5 with the kernel's driver.
    """
    address = _address(view, spec)
    if address is None:
        if spec.device in view.links:
            return fail(
                f"{spec.device} is an interface without a PCI device",
                f"net_af_xdp0,iface={spec.device}, or HARP on {spec.device} itself (AF_XDP)",
            )
        return ok("a virtual device: nothing to bind")
    device = pci.find(view.host, address)
    if device is None or not device.network:
        return fail(pci.unbound(view.host, address), "the address of a NIC: lspci -D")
    hint = "" if pci.canonical(spec.device) else f"; name it by its address: dpdk:{address}"
    if device.driver in pci.BIFURCATED:
        if hint:
            return fail(f"{device.driver} shares {address}", f"dpdk:{address}; nothing to bind")
        return ok(f"{device.driver}, which shares its NIC with DPDK: nothing to bind")
    if device.is_dpdk_ready:
        return ok(f"{device.driver}")
    return fail(
        pci.unbound(view.host, address).partition(": ")[0],
        f"{pci.binding(device)} (it stays over a boot; dpdk-devbind.py -b vfio-pci {address} does "
        f"not). Its interface and addresses are gone then{hint}",
    )


@check("dpdk-vfio", "port")
def _vfio(view: View, spec: PortSpec) -> Answer:
    """VFIO in the kernel, an IOMMU, and the other devices of the IOMMU group: vfio-pci gives a
    device to a process, and the IOMMU limits it to that process's memory.
    """
    device = _device(view, spec)
    if device is None or not device.network or device.driver in pci.BIFURCATED:
        return None
    if device.driver in pci.USER_DRIVERS and device.driver != "vfio-pci":
        return warn(
            f"{device.driver}: any process that opens it reads and writes all memory",
            f"{pci.binding(device)}, with an IOMMU",
        )
    if not (view.host.sys / "bus/pci/drivers/vfio-pci").is_dir():
        return fail("no vfio-pci in this kernel", "modprobe vfio-pci (CONFIG_VFIO_PCI)")
    if device.iommu_group is None:
        return _without_iommu(view)
    others = []
    for name in view.host.names(device.folder / "iommu_group/devices"):
        other = pci.find(view.host, name)
        if other and other.address != device.address and other.driver not in _HARMLESS:
            others.append(f"{name} ({other.driver})")
    if others:
        return fail(
            f"its IOMMU group {device.iommu_group} also has {', '.join(others)}",
            "bind these to vfio-pci too, or put the card in another slot",
        )
    return ok(f"IOMMU group {device.iommu_group}")


def _without_iommu(view: View) -> Answer:
    path = view.host.sys / _UNSAFE
    if view.host.read(path) in ("Y", "1"):
        return warn(
            "no IOMMU, and VFIO works without: the device's holder reads and writes all memory",
            "boot with intel_iommu=on iommu=pt where the machine has one; give leases to root only",
        )
    return fail(
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
        return ok("without an IOMMU only root may open it (CAP_SYS_RAWIO)")
    path = f"/dev/vfio/{device.iommu_group}"
    can_open = view.can_open(path)
    if can_open is None:
        return fail(
            f"{path} does not exist", f"in a container: --device /dev/vfio/vfio --device {path}"
        )
    if not can_open:
        return fail(f"this user can't open {path}", f"chgrp harp {path}; chmod g+rw {path}")
    return ok(f"this user can open {path}")
