# SPDX-License-Identifier: Apache-2.0
"""A made-up host for the checks of harpctl check."""

import errno
from dataclasses import dataclass, field
from pathlib import Path

from fake_host import FakeHost

from harp import _host, config
from harp.daemon.messages import Device
from harp.doctor.examine import Examined, Report, examine, examine_all
from harp.doctor.finding import Finding
from harp.doctor.view import Harpd, Link, PortProbe, PortUse, View

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
    """What a test may change before it asks for a finding."""

    fake: FakeHost
    links: dict[str, Link] = field(default_factory=dict)
    stack: list[Finding] = field(default_factory=list)  # what the C stack says
    space: dict[str, int] = field(default_factory=lambda: {"/dev/shm": 8 << 30})
    xdp_socket: int = 0
    default_routes: set[str] = field(default_factory=set)  # interfaces by which they leave
    files: dict[str, bool] = field(default_factory=dict)  # devices' files: may they be opened?
    ssh_address: str = ""
    python_site: Path | None = None
    libraries: dict[str, Path] = field(default_factory=dict)  # that the loader finds
    harpd: Harpd = NOT_RUNNING

    probe: PortProbe = NO_PORT
    opened: list[str] = field(default_factory=list)
    use: PortUse = field(default_factory=PortUse)
    toml: str = ""
    asked: list[Path] = field(default_factory=list)  # where harpd was looked for

    @property
    def view(self) -> View:
        return _View(self)

    def examine(self, ifname: str = "eth1", queue: int = 0) -> Examined:
        return examine(self.view, ifname, queue)

    def examine_all(self) -> Report:
        return examine_all(self.view, 0)

    def finding(self, name: str, ifname: str = "eth1", queue: int = 0) -> Finding:
        found = [each for each in self.examine(ifname, queue).findings if each.name == name]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def status(self, capabilities: str = ALL_CAPABILITIES, seccomp: int = 0) -> None:
        text = f"Name:\tharpctl\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}"
        self.fake.write("proc/self/status", text)

    def card(self, address: str, driver: str = "vfio-pci", group: int | None = 7) -> Path:
        """A NIC on the PCI bus, with vfio-pci in the kernel; its folder in /sys."""
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
    """What the checks see of it."""

    def __init__(self, given: CheckedHost) -> None:
        self.host, self.links, self.python_site = given.fake.host, given.links, given.python_site
        self._given = given
        self.space = given.space.get
        self.default_route = given.default_routes.__contains__
        self.may_open = given.files.get
        self.find_library = given.libraries.get

    @property
    def ssh_address(self) -> str:
        return self._given.ssh_address

    def stack(self, _ifname: str, _queue: int) -> list[Finding]:
        return list(self._given.stack)

    def xdp_socket(self) -> int:
        return self._given.xdp_socket

    def ask_harpd(self, path: Path) -> Harpd:
        self._given.asked.append(path)
        return self._given.harpd

    def load_config(self) -> config.Config:
        return config.parse(self._given.toml, "harp.toml")

    def open_port(self, spec: str, _arguments: str) -> PortProbe:
        self._given.opened.append(spec)
        return self._given.probe

    def port_use(self, _name: str, _harpd: Path) -> PortUse:
        return self._given.use
