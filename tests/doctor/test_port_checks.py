# SPDX-License-Identifier: Apache-2.0
"""Checks of a DPDK port's device before it is opened. A device with a fatal finding is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checked_host import CheckedHost

from harp.doctor.finding import Severity
from harp.doctor.view import Link
from harp.nicprep import pci

NIC = "0000:00:06.0"
GOOD, COSTS, NO = Severity.GOOD, Severity.COSTS, Severity.NO
Cause = Callable[[CheckedHost], object]


def card(
    checked: CheckedHost, driver: str = "vfio-pci", group: int | None = 7, address: str = NIC
) -> Path:
    """A card in /sys, with vfio-pci loaded."""
    return checked.card(address, driver, group)


def interface(checked: CheckedHost, folder: Path, ifname: str, *addresses: str) -> None:
    """Give the card an interface of the kernel."""
    (folder / "net" / ifname).mkdir(parents=True)
    checked.links[ifname] = Link(ifname, 9, addresses=addresses)


def finding(checked: CheckedHost, name: str, spec: str = f"dpdk:{NIC}") -> tuple[Severity, str]:
    result = checked.finding(name, spec)
    assert result.remedy or result.severity is GOOD
    return result.severity, f"{result.text} -> {result.remedy}"


def test_a_bound_card_is_opened(checked: CheckedHost) -> None:
    card(checked)
    examined = checked.examine(f"dpdk:{NIC}")
    assert checked.opened == [NIC]
    names = {item.name for item in examined.findings if item.name.startswith("dpdk-")}
    assert {"dpdk-binding", "dpdk-vfio", "dpdk-access", "dpdk-default-route"} <= names
    assert finding(checked, "dpdk-vfio")[1].startswith("IOMMU group 7")
    assert checked.examine(NIC).ifname == f"dpdk:{NIC}", "an address needs no dpdk:"


def test_a_card_may_be_named_by_its_interface(checked: CheckedHost) -> None:
    """The remedy names the PCI address."""
    checked.fake.nic.bus = NIC
    interface(checked, card(checked, "ena"), "eth1")
    severity, text = finding(checked, "dpdk-binding", "dpdk:eth1")
    assert severity is NO
    assert f"name it by its address: dpdk:{NIC}" in text
    assert checked.opened == []


def test_an_interface_without_a_pci_device_is_refused(checked: CheckedHost) -> None:
    checked.links["veth0"] = Link("veth0", 11, kind="veth")
    severity, text = finding(checked, "dpdk-binding", "dpdk:veth0")
    assert severity is NO
    assert "net_af_xdp0,iface=veth0" in text


@pytest.mark.parametrize("driver", pci.BIFURCATED)
def test_a_card_that_the_kernel_shares_is_not_bound(checked: CheckedHost, driver: str) -> None:
    interface(checked, card(checked, driver), "eth5")
    severity, text = finding(checked, "dpdk-binding")
    assert (severity, "nothing to bind" in text) == (GOOD, True)
    names = [item.name for item in checked.examine(f"dpdk:{NIC}").findings]
    assert "dpdk-vfio" not in names
    assert "dpdk-access" not in names


def no_vfio(checked: CheckedHost) -> None:
    card(checked, "ena")
    (checked.fake.host.sys / "bus/pci/drivers/vfio-pci").rmdir()


def no_iommu(checked: CheckedHost) -> None:
    card(checked, group=None)
    checked.fake.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")


def no_nic(checked: CheckedHost) -> None:
    (card(checked) / "class").write_text("0x010802\n")


def shared_group(checked: CheckedHost) -> None:
    card(checked)
    card(checked, "nvme", address="0000:00:07.0")


def vfio_file(may: bool | None) -> Cause:
    """Set whether this user may open the group's file; None: no such file."""

    def cause(checked: CheckedHost) -> None:
        card(checked)
        checked.files.pop("/dev/vfio/7")
        if may is not None:
            checked.files["/dev/vfio/7"] = may

    return cause


def ssh_session(checked: CheckedHost) -> None:
    interface(checked, card(checked, "mlx5_core"), "eth5", "10.0.0.5")
    checked.ssh_address = "10.0.0.5"


ADVICE = f"driverctl set-override {NIC} vfio-pci"
FAULTS: list[tuple[str, Cause, Severity, str]] = [
    ("dpdk-binding", lambda p: interface(p, card(p, "ena"), "eth5"), NO, "kernel's ena (eth5)"),
    ("dpdk-binding", lambda p: card(p, "ena"), NO, ADVICE),
    ("dpdk-binding", lambda p: card(p, "ena"), NO, f"dpdk-devbind.py -b vfio-pci {NIC}"),
    ("dpdk-binding", lambda _: None, NO, NIC),
    ("dpdk-binding", no_nic, NO, "is not a network device"),
    ("dpdk-binding", lambda p: card(p, ""), NO, "has no driver"),
    ("dpdk-vfio", no_vfio, NO, "modprobe vfio-pci"),
    ("dpdk-vfio", lambda p: card(p, group=None), NO, "intel_iommu=on"),
    ("dpdk-vfio", no_iommu, COSTS, "reads and writes all memory"),
    ("dpdk-access", no_iommu, GOOD, "CAP_SYS_RAWIO"),
    ("dpdk-vfio", shared_group, NO, "0000:00:07.0 (nvme)"),
    ("dpdk-vfio", lambda p: card(p, "uio_pci_generic"), COSTS, ""),
    ("dpdk-access", vfio_file(False), NO, "chgrp harp"),
    ("dpdk-access", vfio_file(None), NO, "--device"),
    ("dpdk-default-route", ssh_session, NO, "SSH session uses eth5"),
]


@pytest.mark.parametrize(
    ("name", "cause", "severity", "expected"), FAULTS, ids=[f"{i[0]}: {i[3]}" for i in FAULTS]
)
def test_each_check_finds_its_fault(
    checked: CheckedHost, name: str, cause: Cause, severity: Severity, expected: str
) -> None:
    """A card with a fatal fault is not opened."""
    cause(checked)
    actual, text = finding(checked, name)
    assert actual is severity
    assert expected in text
    assert severity is not NO or checked.opened == []


@pytest.mark.parametrize(
    "device", [NIC, "net_af_packet0,iface=eth5", "net_af_xdp0,iface=eth5,start_queue=0", "eth5"]
)
def test_the_interface_of_the_default_route_is_not_taken(checked: CheckedHost, device: str) -> None:
    interface(checked, card(checked, "mlx5_core"), "eth5", "10.0.0.5")
    assert finding(checked, "dpdk-default-route", f"dpdk:{device}")[0] is GOOD
    checked.opened.clear()
    checked.default_routes.add("eth5")
    severity, text = finding(checked, "dpdk-default-route", f"dpdk:{device}")
    assert (severity, "default route uses eth5" in text) == (NO, True)
    assert "--take-default-route" in text
    assert checked.opened == []
    allowed = finding(checked, "dpdk-default-route", f"dpdk:{device};take=default-route")
    assert allowed[0] is COSTS


def test_a_setting_allows_the_interface_of_the_default_route(checked: CheckedHost) -> None:
    from harp.doctor.examine import examine

    interface(checked, card(checked, "mlx5_core"), "eth5")
    checked.default_routes.add("eth5")
    examined = examine(checked.view, f"dpdk:{NIC}", 0, take=True)
    assert checked.opened == [f"{NIC};take=default-route"]
    (route,) = [item for item in examined.findings if item.name == "dpdk-default-route"]
    assert route.severity is COSTS


def test_a_port_of_harp_toml_is_found_by_name(checked: CheckedHost) -> None:
    card(checked)
    checked.toml = f'[[dpdk]]\ndevice = "{NIC}"\nname = "rail0"\ndefault_route = true\n'
    assert finding(checked, "dpdk-binding", "dpdk:rail0")[0] is GOOD
    assert checked.opened == [f"{NIC};name=rail0;take=default-route;queues=1"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:00:06.0", NIC),
        ("00:06.0", NIC),
        ("0:0:6.0,txq_inline=1", NIC),
        ("10000:e1:00.7", "10000:e1:00.7"),
        ("net_memif0", None),
        ("0000:00:06.8", None),
        ("0000:00:06", None),
        ("x0000:00:06.0", None),
    ],
)
def test_pci_addresses_are_recognized(text: str, address: str | None) -> None:
    assert pci.canonical(text) == address
