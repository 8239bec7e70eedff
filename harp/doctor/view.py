# SPDX-License-Identifier: Apache-2.0
"""The sources that the checks read. Tests can replace each of them."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from harp import _host, loader
from harp.config import Config, ConfigError, load, parse
from harp.daemon.client import DaemonClient, RefusedByDaemonError
from harp.daemon.messages import Device
from harp.doctor.finding import Finding, Severity
from harp.errors import HarpError
from harp.nicprep import Host
from harp.nicprep.transport import Values

_HARPD_S = 3.0
_PROBE_S = 60
_BUFFERS = 255  # enough to configure a port
# A virtual device contacts its peer when it is started, so only NICs are started, to see the link.
_STARTED_BUSES = ("pci",)
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_ARPHRD_ETHER = 1
_AF_XDP = 44
_LINK_LOCAL = ("fe80:", "169.254.")
CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF = 12, 13, 21, 39


@dataclass(frozen=True)
class Harpd:
    path: Path
    error: int = 0  # errno; 0: harpd answered
    why: str = ""
    version: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)


def ask(path: Path) -> Harpd:
    """Query harpd. Errors are in the result."""
    try:
        with DaemonClient(path, "harpctl check", _HARPD_S) as client:
            devices = {device.ifname: device for device in client.devices}
            return Harpd(path, version=client.daemon, devices=devices)
    except RefusedByDaemonError as error:
        return Harpd(path, error.error or errno.EACCES, error.why)
    except HarpError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        return Harpd(path, number or errno.EPROTO, str(error))


@dataclass(frozen=True)
class PortProbe:
    """The result of opening a port. error: the message of DPDK or HARP after a failure."""

    error: str = ""
    missing: bool = False  # DPDK is missing
    info: Mapping[str, Any] = field(default_factory=dict)  # PortInfo, and DPDK's version
    link: Mapping[str, Any] = field(default_factory=dict)  # empty: the link was not examined


def probe(spec: str, arguments: str = "") -> PortProbe:
    """Open and close the port as a job with these DPDK arguments would. This uses another process,
    because drivers may end their process and DPDK can't be stopped. Errors are in the result.
    """
    try:
        from harp.dpdk import worker
    except ImportError as error:
        return PortProbe(str(error).removeprefix("harp.dpdk: "), missing=True)
    root = Path(__file__).resolve().parent.parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {
        "start": {"args": arguments},
        "pool": {"count": _BUFFERS},
        "port": {"start": False},
        "run": {"buses": _STARTED_BUSES},
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", worker.__name__, "examine", spec, json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        return PortProbe(f"opening it did not end within {_PROBE_S} s")
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    if done.returncode == worker.REFUSED:
        return PortProbe(lines[-1])
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return PortProbe(f"its driver ended the process: {lines[-1]}")
    return PortProbe(info=answer["info"], link=answer["link"])


@dataclass(frozen=True)
class Link:
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
    lower: str = ""  # the device of a VLAN or macvlan
    members: tuple[str, ...] = ()  # of a bond or bridge
    addresses: tuple[str, ...] = ()


def read_links() -> dict[str, Link]:
    with IPRoute() as ipr:
        links = list(ipr.get_links())
        addresses: dict[int, list[str]] = {}
        for address in ipr.get_addr():
            text = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
            addresses.setdefault(address["index"], []).append(str(text))
    names = {link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in links}
    kinds = {link["index"]: link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") for link in links}
    members: dict[int, list[str]] = {}
    for link in links:
        members.setdefault(link.get_attr("IFLA_MASTER") or 0, []).append(names[link["index"]])
    result = {}
    for link in links:
        index, master = link["index"], link.get_attr("IFLA_MASTER") or 0
        # IFLA_LINK of a veth is its other end; with IFLA_LINK_NETNSID it is in another namespace.
        has_lower = kinds[index] != "veth" and link.get_attr("IFLA_LINK_NETNSID") is None
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
            lower=names.get(link.get_attr("IFLA_LINK") or 0, "") if has_lower else "",
            members=tuple(sorted(members.get(index, ()))),
            addresses=tuple(sorted(addresses.get(index, ()))),
        )
    return result


class View:
    """This machine, in the network namespace of the calling thread."""

    python_site: Path | None = None  # folder of Python packages; None: the folder of this package

    def __init__(self) -> None:
        self.host = Host()
        try:
            self.links: Mapping[str, Link] = read_links()
        except OSError as error:
            raise HarpError(f"the kernel does not list its interfaces: {error.strerror}") from error

    # ---- sources ----

    ask_harpd = staticmethod(ask)
    load_config = staticmethod(load)
    open_port = staticmethod(probe)
    find_library = staticmethod(loader.find)

    def stack(self, ifname: str, queue: int) -> list[Finding]:
        """Return the findings of the C stack: harp_host_check()."""
        from harp._core import host_check

        try:
            items = host_check(ifname, queue)
        except OSError as error:
            raise HarpError(f"{ifname}: {error.strerror or error}") from error
        return [
            Finding(name, Severity(severity), text, remedy)
            for name, severity, text, remedy in items
        ]

    def space(self, path: str) -> int | None:
        """Return the bytes of a file system; None: there is no such path."""
        try:
            status = os.statvfs(path)
        except OSError:
            return None
        return status.f_blocks * status.f_frsize

    def xdp_socket(self) -> int:
        """Open an AF_XDP socket: 0 or errno."""
        try:
            socket.socket(_AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0).close()
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def default_route(self, ifname: str) -> bool:
        try:
            return _host.has_default_route(ifname)
        except OSError:
            return False

    def can_open(self, path: str) -> bool | None:
        """Tell whether a device's file can be read and written; None: it does not exist."""
        return os.access(path, os.R_OK | os.W_OK) if Path(path).exists() else None

    @property
    def ssh_address(self) -> str:
        """Return this host's address of the SSH session; empty without one."""
        # SSH_CONNECTION, sshd(8): the client's address and port, the server's address and port
        fields = os.environ.get("SSH_CONNECTION", "").split()
        return fields[2] if len(fields) == 4 else ""

    # ---- derived values ----

    @cached_property
    def harpd(self) -> Harpd:
        return self.ask_harpd(self.config.daemon.socket_path)

    @cached_property
    def read_config(self) -> Config | ConfigError:
        """Return the configuration (harp.toml and the environment), or its errors."""
        try:
            return self.load_config()
        except ConfigError as error:
            return error

    @property
    def config(self) -> Config:
        return self.read_config if isinstance(self.read_config, Config) else parse("")

    @cached_property
    def status(self) -> Mapping[str, str]:
        text = self.host.read(self.host.proc / "self/status") or ""
        lines = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, colon, value in lines if colon}

    def has_capability(self, number: int) -> bool:
        try:
            return bool(int(self.status.get("CapEff", "0"), 16) >> number & 1)
        except ValueError:
            return False

    @property
    def privileged(self) -> bool:
        bpf = self.has_capability(CAP_BPF) or self.has_capability(CAP_SYS_ADMIN)
        return bpf and all(map(self.has_capability, (CAP_NET_ADMIN, CAP_NET_RAW)))

    def ethtool(self, part: str, link: Link) -> Values | None:
        """Return a part of the NIC's settings; None: the NIC does not have it."""
        try:
            return self.host.ethtool.get(part, link.name)
        except OSError:
            return None

    def is_hardware(self, link: Link) -> bool:
        """Tell whether it is a NIC on a bus, not a virtual device."""
        return not link.kind and self.host.device(link.name) is not None

    def is_leased(self, link: Link) -> bool:
        """Tell whether harpd leases queues of it."""
        device = self.harpd.devices.get(link.name)
        return device is not None and device.ifindex == link.index


def candidates(links: Mapping[str, Link]) -> list[Link]:
    """Return interfaces that are up with an address that others can reach, and bonds' members."""
    usable = []
    for link in links.values():
        reachable = [text for text in link.addresses if not text.startswith(_LINK_LOCAL)]
        member = link.master_kind in ("bond", "team")
        if link.up and not link.loopback and (reachable or member):
            usable.append(link)
    return sorted(usable, key=lambda link: link.index)
