# SPDX-License-Identifier: Apache-2.0
"""The host as the checks see it: a test can replace every source."""

import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyroute2 import IPRoute

from harp import loader
from harp.config import Config, ConfigError, load
from harp.doctor.finding import Finding, Severity
from harp.doctor.harpd import SOCKET, Harpd, PortUse, ask, port_use
from harp.doctor.port_probe import PortProbe, probe
from harp.errors import HarpError
from harp.nicprep import Host

_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_ARPHRD_ETHER = 1
_AF_XDP = 44
_LINK_LOCAL = ("fe80:", "169.254.")
CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF = 12, 13, 21, 39


@dataclass(frozen=True)
class Link:
    """An interface."""

    name: str
    index: int
    kind: str = ""  # "veth", "bond", "vlan" ...; empty: hardware
    up: bool = True
    ethernet: bool = True
    loopback: bool = False
    mtu_bytes: int = 1500
    rx_queues: int = 1
    tx_queues: int = 1
    master: str = ""  # the bond or bridge that it belongs to
    master_kind: str = ""
    beneath: str = ""  # the device below a VLAN or macvlan
    members: tuple[str, ...] = ()  # of a bond or bridge
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """The sources of the checks."""

    host: Host
    links: Mapping[str, Link]
    stack: Callable[[str, int], list[Finding]]  # harp_host_check()
    space: Callable[[str], int | None]  # bytes of a file system; None: no such path
    xdp_socket: Callable[[], int]  # opens an AF_XDP socket: 0 or errno
    ask_harpd: Callable[[Path], Harpd]
    load_config: Callable[[], Config]  # or ConfigError
    open_port: Callable[[str, str], PortProbe]  # a DPDK port's specification; DPDK's arguments
    port_use: Callable[[str, Path], PortUse]  # a leased port's name; harpd's socket
    default_route: Callable[[str], bool]  # whether the default route uses this interface
    # whether a device's file can be read and written; None: it does not exist
    may_open: Callable[[str], bool | None]
    ssh_address: str  # of this host, where the session's connection ends; empty: no such session
    python_site: Path | None = None  # folder of Python packages; None: the folder of this package
    find_library: Callable[[str], Path | None] = loader.find

    @cached_property
    def harpd(self) -> Harpd:
        """Return harpd's answer; asked once."""
        return self.ask_harpd(self.config.daemon.socket_path if self.config else SOCKET)

    @cached_property
    def read_config(self) -> Config | ConfigError:
        """Return harp.toml and the environment, or their mistakes."""
        try:
            return self.load_config()
        except ConfigError as error:
            return error

    @property
    def config(self) -> Config | None:
        """The same; None if there are mistakes."""
        return self.read_config if isinstance(self.read_config, Config) else None

    @cached_property
    def status(self) -> Mapping[str, str]:
        """Return /proc/self/status."""
        text = self.host.read(self.host.proc / "self/status") or ""
        lines = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, colon, value in lines if colon}

    def has_capability(self, number: int) -> bool:
        """Tell whether a capability is effective in this process."""
        try:
            return bool(int(self.status.get("CapEff", "0"), 16) >> number & 1)
        except ValueError:
            return False

    @property
    def privileged(self) -> bool:
        """Tell whether this process may open queues by itself."""
        bpf = self.has_capability(CAP_BPF) or self.has_capability(CAP_SYS_ADMIN)
        return bpf and all(map(self.has_capability, (CAP_NET_ADMIN, CAP_NET_RAW)))

    def hardware(self, link: Link) -> bool:
        """Tell whether it is a NIC on a bus, not a device that the kernel made."""
        return not link.kind and self.host.device(link.name) is not None

    def leased(self, link: Link) -> bool:
        """Tell whether harpd leases queues of it to this user."""
        device = self.harpd.devices.get(link.name)
        return device is not None and device.ifindex == link.index


def _stack(ifname: str, queue: int) -> list[Finding]:
    from harp._core import host_check

    try:
        items = host_check(ifname, queue)
    except OSError as error:
        raise HarpError(f"{ifname}: {error.strerror or error}") from error
    return [
        Finding(name, Severity(severity), text, remedy) for name, severity, text, remedy in items
    ]


def _space(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _xdp_socket() -> int:
    try:
        socket.socket(_AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0).close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _default_route(ifname: str) -> bool:
    from harp._host import has_default_route

    try:
        return has_default_route(ifname)
    except OSError:
        return False


def _may_open(path: str) -> bool | None:
    return os.access(path, os.R_OK | os.W_OK) if Path(path).exists() else None


def _ssh_address() -> str:
    """Return the third word of SSH_CONNECTION: client's address and port, then ours (sshd(8))."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def read_links() -> dict[str, Link]:
    """Return the interfaces of this network namespace."""
    with IPRoute() as ipr:
        found = list(ipr.get_links())
        addresses: dict[int, list[str]] = {}
        for address in ipr.get_addr():
            text = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
            addresses.setdefault(address["index"], []).append(str(text))
    names = {link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in found}
    kinds = {link["index"]: link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") for link in found}
    members: dict[int, list[str]] = {}
    for link in found:
        members.setdefault(link.get_attr("IFLA_MASTER") or 0, []).append(names[link["index"]])
    result = {}
    for link in found:
        index, master = link["index"], link.get_attr("IFLA_MASTER") or 0
        # A veth's other end is no device below it, and may be in another namespace.
        other = kinds[index] != "veth" and link.get_attr("IFLA_LINK_NETNSID") is None
        result[names[index]] = Link(
            name=names[index],
            index=index,
            kind=kinds[index] or "",
            up=bool(link["flags"] & _IFF_UP),
            ethernet=link["ifi_type"] == _ARPHRD_ETHER,
            loopback=bool(link["flags"] & _IFF_LOOPBACK),
            mtu_bytes=link.get_attr("IFLA_MTU") or 0,
            rx_queues=link.get_attr("IFLA_NUM_RX_QUEUES") or 1,
            tx_queues=link.get_attr("IFLA_NUM_TX_QUEUES") or 1,
            master=names.get(master, ""),
            master_kind=kinds.get(master) or "",
            beneath=names.get(link.get_attr("IFLA_LINK") or 0, "") if other else "",
            members=tuple(sorted(members.get(index, ()))),
            addresses=tuple(sorted(addresses.get(index, ()))),
        )
    return result


def this_host() -> View:
    """The machine, in the network namespace of the calling thread."""
    try:
        links = read_links()
    except OSError as error:
        raise HarpError(f"the kernel does not list its interfaces: {error.strerror}") from error
    return View(
        Host(), links, _stack, _space, _xdp_socket, ask, load, probe, port_use, _default_route,
        _may_open, _ssh_address(),
    )  # fmt: skip


def candidates(links: Mapping[str, Link]) -> list[Link]:
    """Return interfaces that HARP might use: up, with an address that others can reach; members of
    bonds.
    """
    found = []
    for link in links.values():
        reachable = [text for text in link.addresses if not text.startswith(_LINK_LOCAL)]
        member = link.master_kind in ("bond", "team")
        if link.up and not link.loopback and (reachable or member):
            found.append(link)
    return sorted(found, key=lambda link: link.index)
