# SPDX-License-Identifier: Apache-2.0
"""Links and addresses of our network namespace, from rtnetlink.

A monitor wakes harpd, which then dumps the complete state, so that a lost message has no effect.
For jobs of other network namespaces, the monitor reports single neighbors, too.
"""

import contextlib
import errno
import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, rtnl
from pyroute2.netlink.rtnl import ndmsg as nd
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from harp import netlink

_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_DADFAILED, _DEPRECATED, _TENTATIVE, _OPTIMISTIC, _TEMPORARY = 0x8, 0x20, 0x40, 0x4, 0x1
_SCOPE_LINK = 253
_ARPHRD_ETHER = 1
MONITOR_GROUPS = rtnl.RTMGRP_LINK | rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV6_IFADDR
NETWORK_GROUPS = (
    MONITOR_GROUPS | rtnl.RTMGRP_NEIGH | rtnl.RTMGRP_IPV4_ROUTE | rtnl.RTMGRP_IPV6_ROUTE
)
# struct nlmsghdr, then the index in struct ifinfomsg and struct ifaddrmsg.
_INTERFACE = struct.Struct("=16x4xi")
_OF_INTERFACES = (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)
_USABLE = (
    nd.NUD_REACHABLE | nd.NUD_STALE | nd.NUD_DELAY | nd.NUD_PROBE | nd.NUD_NOARP | nd.NUD_PERMANENT
)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_V4_MAPPED = b"\0" * 10 + b"\xff\xff"
_IP_PKTINFO = 8  # Python's socket module lacks it
_MSG_DONTROUTE, _MSG_PROBE, _MSG_CONFIRM = 0x4, 0x10, 0x800
_DISCARD_PORT = 9
_TRIES = 4
_RECEIVE_BYTES = 65536


@dataclass(frozen=True)
class Link:
    """An interface. up: administratively up with a carrier."""

    ifname: str
    ifindex: int
    up: bool
    mtu_bytes: int
    mac: bytes
    ethernet: bool
    loopback: bool


@dataclass(frozen=True)
class Address:
    """An address of this host in 16 bytes (IPv4-mapped). harpd announces the highest rank."""

    raw: bytes
    ifindex: int
    rank: int

    def __str__(self) -> str:
        address = ipaddress.IPv6Address(self.raw)
        return str(address.ipv4_mapped or address)

    @property
    def is_v4(self) -> bool:
        return self.raw[:12] == _V4_MAPPED


def _dump(message: Any, kind: int) -> list[Any]:
    for _ in range(_TRIES):
        with netlink.connect(socket.NETLINK_ROUTE) as sock, contextlib.suppress(InterruptedError):
            return netlink.exchange(sock, message, kind, dump=True)
    raise OSError(errno.EINTR, "rtnetlink: the tables change faster than they can be read")


def _mac(text: str | None) -> bytes:
    return bytes.fromhex((text or "").replace(":", ""))


def _link(message: Any) -> Link:
    return Link(
        ifname=str(message.get_attr("IFLA_IFNAME")),
        ifindex=message["index"],
        up=bool(message["flags"] & _IFF_UP) and message.get_attr("IFLA_CARRIER") != 0,
        mtu_bytes=message.get_attr("IFLA_MTU") or 0,
        mac=_mac(message.get_attr("IFLA_ADDRESS")).ljust(6, b"\0")[:6],
        ethernet=message["ifi_type"] == _ARPHRD_ETHER,
        loopback=bool(message["flags"] & _IFF_LOOPBACK),
    )


def _packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text if ":" in text else f"::ffff:{text}")


def _address(message: Any) -> Address | None:
    """Parse an address; None if it is tentative, a duplicate, or of host scope."""
    text = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    if message["family"] not in _FAMILIES or message["scope"] > _SCOPE_LINK or not text:
        return None
    flags = message.get_attr("IFA_FLAGS")
    flags = message["flags"] if flags is None else flags
    if flags & _DADFAILED or (flags & _TENTATIVE and not flags & _OPTIMISTIC):
        return None
    rank = 1 if flags & _DEPRECATED else 3
    if message["family"] == socket.AF_INET6 and flags & _TEMPORARY:
        rank = min(rank, 2)
    if message["scope"] < _SCOPE_LINK:
        rank += 3  # a link-local address is a last resort
    return Address(_packed(text), message["index"], rank)


def links() -> dict[str, Link]:
    parsed = map(_link, _dump(ifinfmsg(), rtnl.RTM_GETLINK))
    return {link.ifname: link for link in parsed}


def addresses() -> list[Address]:
    parsed = map(_address, _dump(ifaddrmsg(), rtnl.RTM_GETADDR))
    return [address for address in parsed if address is not None]


@dataclass
class Changes:
    """Changes. interfaces: indexes with a changed link or address; routes: a route changed; lost:
    some changes are unknown; neighbors: index, address in 16 bytes, MAC address or b"".
    """

    interfaces: set[int] = field(default_factory=set)
    routes: bool = False
    lost: bool = False
    neighbors: list[tuple[int, bytes, bytes]] = field(default_factory=list)


def parse_neighbor(kind: int, part: bytes) -> tuple[int, bytes, bytes] | None:
    """Parse RTM_NEWNEIGH or RTM_DELNEIGH; None while the kernel resolves the neighbor."""
    message = nd.ndmsg(part)
    message.decode()
    text = message.get_attr("NDA_DST")
    if message["family"] not in _FAMILIES or not text:
        return None
    if kind == rtnl.RTM_NEWNEIGH and message["state"] & _USABLE:
        mac = _mac(message.get_attr("NDA_LLADDR"))
        return (message["ifindex"], _packed(text), mac) if len(mac) == 6 else None
    if kind == rtnl.RTM_DELNEIGH or message["state"] & nd.NUD_FAILED:
        return message["ifindex"], _packed(text), b""
    return None


def _note(changes: Changes, kind: int, part: bytes) -> None:
    if kind in _OF_INTERFACES:
        changes.interfaces.add(_INTERFACE.unpack_from(part)[0])
    elif kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
        changes.routes = True
    elif kind in (rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH):
        neighbor = parse_neighbor(kind, part)
        if neighbor is not None:
            changes.neighbors.append(neighbor)


def _neighbor_request(kind: int, flags: int, ifindex: int, raw: bytes, use: int) -> bytes:
    v4 = raw.startswith(_V4_MAPPED)
    message = nd.ndmsg()
    message["family"] = socket.AF_INET if v4 else socket.AF_INET6
    message["ifindex"], message["flags"] = ifindex, use
    text = socket.inet_ntop(message["family"], raw[12:] if v4 else raw)
    message["attrs"].append(("NDA_DST", text))
    return netlink.encode(message, kind, flags)


class NetworkMonitor:
    """Monitors our network namespace. MONITOR_GROUPS: only its links and addresses."""

    def __init__(self, groups: int = NETWORK_GROUPS) -> None:
        self._sock = netlink.connect(socket.NETLINK_ROUTE, groups)
        self._sock.setblocking(False)
        self._probes: dict[int, socket.socket] = {}

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()
        while self._probes:
            self._probes.popitem()[1].close()

    def read(self) -> Changes:
        """Return the changes. OSError: the monitor has failed."""
        changes = Changes()
        while True:
            try:
                raw, sender = self._sock.recvfrom(_RECEIVE_BYTES)
            except BlockingIOError:
                return changes
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                changes.lost = True
                continue
            if sender[0] == 0:  # the kernel; processes of root may send here, too
                for kind, _, part in netlink.split(raw):
                    _note(changes, kind, part)

    def resolve(self, neighbors: list[tuple[int, bytes]]) -> None:
        """Ask the kernel to report neighbors (index, address), and to resolve unknown ones; read()
        returns the results. This waits for the kernel, so it runs in a worker.
        """
        messages = b"".join(
            _neighbor_request(rtnl.RTM_GETNEIGH, 0, ifindex, addr, 0)
            + _neighbor_request(rtnl.RTM_NEWNEIGH, NLM_F_CREATE, ifindex, addr, nd.NTF_USE)
            for ifindex, addr in neighbors
        )
        self._sock.send(messages)

    def confirm(self, ifindex: int, addr: bytes) -> None:
        """Confirm a known neighbor's reachability to the kernel, without a packet and without
        waiting. With rtnetlink, NUD_REACHABLE would make a permanent entry expire.
        """
        v4 = addr.startswith(_V4_MAPPED)
        family = socket.AF_INET if v4 else socket.AF_INET6
        if family not in self._probes:
            self._probes[family] = sock = socket.socket(family, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        if v4:
            target: Any = (socket.inet_ntoa(addr[12:]), _DISCARD_PORT)
            interface = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i8x", ifindex))
        else:
            text = socket.inet_ntop(socket.AF_INET6, addr)
            scope = ifindex if addr[:2] == b"\xfe\x80" else 0
            target = (text, _DISCARD_PORT, 0, scope)
            interface = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, struct.pack("=16xi", ifindex))
        flags = _MSG_CONFIRM | _MSG_PROBE | _MSG_DONTROUTE | socket.MSG_DONTWAIT
        with contextlib.suppress(OSError):  # the NIC is down, or there is no such neighbor
            self._probes[family].sendmsg([], [interface], flags, target)
