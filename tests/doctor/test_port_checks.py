# SPDX-License-Identifier: Apache-2.0
"""Checks of a DPDK port's device before it is opened; a device with a finding is not opened."""

from pathlib import Path

import pytest
from checked_host import CheckedHost

from harp.doctor.finding import Severity
from harp.doctor.view import Link
from harp.nicprep import pci

NIC = "0000:00:06.0"
GOOD, COSTS, NO = Severity.GOOD, Severity.COSTS, Severity.NO


def card(
    checked: CheckedHost, driver: str = "vfio-pci", group: int | None = 7, address: str = NIC
) -> Path:
    """A card in /sys, with vfio-pci loaded."""
    return checked.card(address, driver, group)


def interface(checked: CheckedHost, folder: Path, ifname: str, *addresses: str) -> None:
    """The card has one, of the kernel's."""
    (folder / "net" / ifname).mkdir(parents=True)
    checked.links[ifname] = Link(ifname, 9, addresses=addresses)


def said(checked: CheckedHost, name: str, spec: str = f"dpdk:{NIC}") -> tuple[Severity, str]:
    """Severity, and text with remedy."""
    found = checked.finding(name, spec)
    assert found.remedy or found.severity is GOOD
    return found.severity, f"{found.text} -> {found.remedy}"


def test_a_bound_card_is_opened(checked: CheckedHost) -> None:
    card(checked)
    examined = checked.examine(f"dpdk:{NIC}")
    assert checked.opened == [NIC]
    names = {each.name for each in examined.findings if each.name.startswith("dpdk-")}
    assert {"dpdk-binding", "dpdk-vfio", "dpdk-access", "dpdk-default-route"} <= names
    assert said(checked, "dpdk-vfio")[1].startswith("IOMMU group 7")
    assert checked.examine(NIC).ifname == f"dpdk:{NIC}", "an address is a port without saying so"


def test_a_card_with_a_kernel_driver_is_not_opened(checked: CheckedHost) -> None:
    interface(checked, card(checked, "ena"), "eth5", "10.0.0.5")
    severity, text = said(checked, "dpdk-binding")
    assert severity is NO
    assert f"{NIC} belongs to the kernel's ena (eth5)" in text
    assert f"driverctl set-override {NIC} vfio-pci" in text
    assert f"dpdk-devbind.py -b vfio-pci {NIC}" in text
    assert checked.opened == []


def test_a_card_may_be_named_by_its_interface(checked: CheckedHost) -> None:
    """The advice names the address."""
    checked.fake.nic.bus = NIC
    interface(checked, card(checked, "ena"), "eth1")
    severity, text = said(checked, "dpdk-binding", "dpdk:eth1")
    assert severity is NO
    assert f"name it by its address: dpdk:{NIC}" in text
    assert checked.opened == []


def test_an_interface_without_a_pci_device_is_refused(checked: CheckedHost) -> None:
    checked.links["veth0"] = Link("veth0", 11, kind="veth")
    severity, text = said(checked, "dpdk-binding", "dpdk:veth0")
    assert severity is NO
    assert "net_af_xdp0,iface=veth0" in text


@pytest.mark.parametrize("driver", pci.BIFURCATED)
def test_a_card_that_the_kernel_shares_is_not_bound(checked: CheckedHost, driver: str) -> None:
    interface(checked, card(checked, driver), "eth5")
    severity, text = said(checked, "dpdk-binding")
    assert (severity, "nothing to bind" in text) == (GOOD, True)
    names = [each.name for each in checked.examine(f"dpdk:{NIC}").findings]
    assert "dpdk-vfio" not in names
    assert "dpdk-access" not in names


def test_an_unknown_card_and_a_missing_nic_are_reported(checked: CheckedHost) -> None:
    assert said(checked, "dpdk-binding")[0] is NO
    (card(checked) / "class").write_text("0x010802\n")
    severity, text = said(checked, "dpdk-binding")
    assert (severity, "is no network device" in text) == (NO, True)
    assert checked.opened == []


def test_a_card_without_a_driver(checked: CheckedHost) -> None:
    card(checked, "")
    assert "has no driver" in said(checked, "dpdk-binding")[1]


def test_a_missing_vfio_is_reported(checked: CheckedHost) -> None:
    card(checked, "ena")
    (checked.fake.host.sys / "bus/pci/drivers/vfio-pci").rmdir()
    severity, text = said(checked, "dpdk-vfio")
    assert (severity, "modprobe vfio-pci" in text) == (NO, True)


def test_a_missing_iommu_is_reported(checked: CheckedHost) -> None:
    card(checked, group=None)
    severity, text = said(checked, "dpdk-vfio")
    assert (severity, "intel_iommu=on" in text) == (NO, True)
    checked.fake.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
    severity, text = said(checked, "dpdk-vfio")
    assert (severity, "reads and writes all memory" in text) == (COSTS, True)
    assert "CAP_SYS_RAWIO" in said(checked, "dpdk-access")[1]


def test_a_group_that_is_shared(checked: CheckedHost) -> None:
    card(checked)
    card(checked, "nvme", address="0000:00:07.0")
    severity, text = said(checked, "dpdk-vfio")
    assert (severity, "0000:00:07.0 (nvme)" in text) == (NO, True)


def test_uio_is_a_warning(checked: CheckedHost) -> None:
    card(checked, "uio_pci_generic")
    assert said(checked, "dpdk-vfio")[0] is COSTS
    assert said(checked, "dpdk-binding")[0] is GOOD


@pytest.mark.parametrize(("may", "words"), [(False, "chgrp harp"), (None, "--device")])
def test_a_file_that_this_user_may_not_open(
    checked: CheckedHost, may: bool | None, words: str
) -> None:
    card(checked)
    checked.files.pop("/dev/vfio/7")
    if may is not None:
        checked.files["/dev/vfio/7"] = may
    severity, text = said(checked, "dpdk-access")
    assert (severity, words in text) == (NO, True)


@pytest.mark.parametrize(
    "device", [NIC, "net_af_packet0,iface=eth5", "net_af_xdp0,iface=eth5,start_queue=0", "eth5"]
)
def test_the_default_route_s_interface_is_not_taken(checked: CheckedHost, device: str) -> None:
    interface(checked, card(checked, "mlx5_core"), "eth5", "10.0.0.5")
    assert said(checked, "dpdk-default-route", f"dpdk:{device}")[0] is GOOD
    checked.opened.clear()
    checked.default_routes.add("eth5")
    severity, text = said(checked, "dpdk-default-route", f"dpdk:{device}")
    assert (severity, "default route leaves by eth5" in text) == (NO, True)
    assert "--take-default-route" in text
    assert checked.opened == []
    told = said(checked, "dpdk-default-route", f"dpdk:{device};take=default-route")
    assert told[0] is COSTS


def test_the_ssh_session_s_interface_is_not_taken(checked: CheckedHost) -> None:
    interface(checked, card(checked, "mlx5_core"), "eth5", "10.0.0.5")
    checked.ssh_address = "10.0.0.5"
    severity, text = said(checked, "dpdk-default-route")
    assert (severity, "SSH session comes in by eth5" in text) == (NO, True)


def test_a_setting_allows_the_default_route_s_interface(checked: CheckedHost) -> None:
    from harp.doctor.examine import examine

    interface(checked, card(checked, "mlx5_core"), "eth5")
    checked.default_routes.add("eth5")
    found = examine(checked.view, f"dpdk:{NIC}", 0, take=True)
    assert checked.opened == [f"{NIC};take=default-route"]
    (route,) = [each for each in found.findings if each.name == "dpdk-default-route"]
    assert route.severity is COSTS


def test_a_port_of_harp_toml_by_its_name(checked: CheckedHost) -> None:
    card(checked)
    checked.toml = f'[[dpdk]]\ndevice = "{NIC}"\nname = "rail0"\ndefault_route = true\n'
    assert said(checked, "dpdk-binding", "dpdk:rail0")[0] is GOOD
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
