# SPDX-License-Identifier: Apache-2.0
"""A simulated host for the checks of harpctl check."""

import errno
from dataclasses import dataclass, field
from pathlib import Path

from fake_host import FakeHost

from harp import _host, config
from harp.daemon.messages import Device
from harp.doctor.examine import Examination, Report, examine, examine_all
from harp.doctor.finding import Finding
from harp.doctor.view import Harpd, Link, PortProbe, View

NOT_RUNNING = Harpd(Path("/run/harp/harpd.sock"), errno.ENOENT, "No such file or directory")
NO_PORT = PortProbe("no port here")


def device(ifname: str, ifindex: int, queues: int, free: int, flags: int = 0) -> Device:
    """A NIC or DPDK port that harpd leases."""
    up = _host.DEVICE_UP | flags
    return Device(
        ifname, ifindex, up, 1500, 0, queues, free, -1, bytes(6), 0, 0, bytes(16), bytes(16), ""
    )


ALL_CAPABILITIES = "000001ffffffffff"


@dataclass
class CheckedHost:
    """The state of the host, which a test changes before it requests a finding."""

    fake: FakeHost
    links: dict[str, Link] = field(default_factory=dict)
    stack: list[Finding] = field(default_factory=list)  # findings of the C library
    space: dict[str, int] = field(default_factory=lambda: {"/dev/shm": 8 << 30})
    xdp_socket: int = 0
    default_routes: set[str] = field(default_factory=set)  # interfaces with a default route
    files: dict[str, bool] = field(default_factory=dict)  # device file -> may this user open it?
    ssh_address: str = ""
    python_site: Path | None = None
    libraries: dict[str, Path] = field(default_factory=dict)  # libraries that the loader finds
    harpd: Harpd = NOT_RUNNING

    probe: PortProbe = NO_PORT
    opened: list[str] = field(default_factory=list)  # devices of open_port()
    toml: str = ""
    asked: list[Path] = field(default_factory=list)  # sockets of ask_harpd()

    @property
    def view(self) -> View:
        return _View(self)

    def examine(self, ifname: str = "eth1", queue: int = 0) -> Examination:
        return examine(self.view, ifname, queue)

    def examine_all(self) -> Report:
        return examine_all(self.view, 0)

    def finding(self, name: str, ifname: str = "eth1", queue: int = 0) -> Finding:
        findings = [f for f in self.examine(ifname, queue).findings if f.name == name]
        assert len(findings) == 1, f"{name}: {findings}"
        return findings[0]

    def status(self, capabilities: str = ALL_CAPABILITIES, seccomp: int = 0) -> None:
        text = f"Name:\tharpctl\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}"
        self.fake.write("proc/self/status", text)

    def card(self, address: str, driver: str = "vfio-pci", group: int | None = 7) -> Path:
        """Add a NIC to the PCI bus, with vfio-pci in the kernel. Return its folder in /sys."""
        root = self.fake.host.sys
        folder = root / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "class").write_text("0x020000\n")
        (root / "bus/pci/drivers/vfio-pci").mkdir(parents=True, exist_ok=True)
        if driver:
            (folder / "driver").symlink_to(f"../../drivers/{driver}")
        if group is not None:
            members = root / "kernel/iommu_groups" / str(group) / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).mkdir()
            (folder / "iommu_group").symlink_to(members.parent)
            self.files[f"/dev/vfio/{group}"] = True
        return folder


class _View(View):
    """The interface through which the checks read a CheckedHost."""

    def __init__(self, checked: CheckedHost) -> None:
        self.host, self.links = checked.fake.host, checked.links
        self.python_site = checked.python_site
        self._checked = checked
        self.space = checked.space.get
        self.default_route = checked.default_routes.__contains__
        self.can_open = checked.files.get
        self.find_library = checked.libraries.get

    @property
    def ssh_address(self) -> str:
        return self._checked.ssh_address

    def stack(self, _ifname: str, _queue: int) -> list[Finding]:
        return list(self._checked.stack)

    def xdp_socket(self) -> int:
        return self._checked.xdp_socket

    def ask_harpd(self, path: Path) -> Harpd:
        self._checked.asked.append(path)
        return self._checked.harpd

    def load_config(self) -> config.Config:
        return config.parse(self._checked.toml, "harp.toml")

    def open_port(self, spec: str, _arguments: str) -> PortProbe:
        self._checked.opened.append(spec)
        return self._checked.probe
