# SPDX-License-Identifier: Apache-2.0
"""Links and addresses of our network namespace, from rtnetlink.

A monitor socket wakes harpd, and a dump then returns the state. The monitor's messages are not
parsed, so a message lost to a full buffer has no effect. NetworkMonitor listens for jobs of other
network namespaces, and also parses changes of single neighbors.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
_DONE, _ERROR = 3, 2
_NEWLINK, _GETLINK, _NEWADDR, _GETADDR = 16, 18, 20, 22
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_CARRIER, _IFLA_MASTER = 1, 3, 4, 33, 10
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_DADFAILED, _DEPRECATED, _TENTATIVE, _OPTIMISTIC, _TEMPORARY = 0x8, 0x20, 0x40, 0x4, 0x1
_SCOPE_LINK = 253
_ARPHRD_ETHER = 1
# Links, IPv4 and IPv6 addresses (RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR).
MONITOR_GROUPS = 0x1 | 0x10 | 0x100
# Also neighbors and routes.
NETWORK_GROUPS = MONITOR_GROUPS | 0x4 | 0x40 | 0x400
_NEIGHBOR = struct.Struct("=BxHiHBB")  # struct ndmsg
_INTERFACE = struct.Struct("=4xi")  # of a link or an address
_NEWLINK_TO_DELADDR, _NEWROUTE, _DELROUTE = range(16, 22), 24, 25
_NEWNEIGH, _DELNEIGH, _GETNEIGH = 28, 29, 30
_CREATE, _NTF_USE = 0x400, 1
_NDA_DST, _NDA_LLADDR = 1, 2
# NUD_REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT
_USABLE, _FAILED = 0x2 | 0x4 | 0x8 | 0x10 | 0x40 | 0x80, 0x20
_V4_MAPPED = b"\0" * 10 + b"\xff\xff"
_IP_PKTINFO = 8  # Python's socket module lacks it
_MSG_DONTROUTE, _MSG_PROBE, _MSG_CONFIRM = 0x4, 0x10, 0x800
_DISCARD_PORT = 9
_TRIES = 4
READS_MAX = 256


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
    master: int


@dataclass(frozen=True)
class Address:
    """An address of this host in 16 bytes (IPv4 mapped); peers prefer the greatest rank."""

    raw: bytes
    ifindex: int
    rank: int

    def __str__(self) -> str:
        address = ipaddress.IPv6Address(self.raw)
        return str(address.ipv4_mapped or address)

    @property
    def is_v4(self) -> bool:
        """Tell whether it is an IPv4 address."""
        return self.raw[:12] == b"\0" * 10 + b"\xff\xff"


def monitor(groups: int = MONITOR_GROUPS) -> socket.socket:
    """Return a socket that is readable after a change."""
    sock = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        sock.bind((0, groups))
    except BaseException:
        sock.close()
        raise
    return sock


def drain(sock: socket.socket) -> bool:
    """Read all messages of the monitor, or for a while if they arrive faster; True if there were
    any, including lost ones. OSError: the monitor has failed.
    """
    for reads in range(READS_MAX):
        try:
            if not sock.recv(65536):
                return reads > 0
        except BlockingIOError:
            return reads > 0
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # messages were lost
                raise
    return True


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        if size < _ATTRIBUTE.size or at + size > len(raw):
            return
        yield kind & 0x3FFF, raw[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3


def _messages(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(raw):
        size, kind, flags, _, _ = _HEADER.unpack_from(raw, at)
        if size < _HEADER.size or at + size > len(raw):
            return
        yield kind, flags, raw[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _dump_once(request: int, body: bytes) -> list[tuple[int, bytes]] | None:
    """Return the answer to a dump; None if the tables changed meanwhile."""
    found: list[tuple[int, bytes]] = []
    interrupted = False
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(2)
        sock.bind((0, 0))
        head = _HEADER.pack(_HEADER.size + len(body), request, _REQUEST | _DUMP, 1, 0)
        sock.send(head + body)
        while True:
            for kind, flags, rest in _messages(sock.recv(65536)):
                interrupted |= bool(flags & _INTERRUPTED)
                if kind == _DONE:
                    return None if interrupted else found
                if kind == _ERROR:
                    number = -int(struct.unpack_from("=i", rest)[0])
                    raise OSError(number, f"rtnetlink: {os.strerror(number)}")
                found.append((kind, rest))


def _dump(request: int, body: bytes) -> list[tuple[int, bytes]]:
    for _ in range(_TRIES):
        found = _dump_once(request, body)
        if found is not None:
            return found
    raise OSError(4, "rtnetlink: the tables change faster than they can be read")


def parse_link(body: bytes) -> Link:
    """Parse one RTM_NEWLINK."""
    _, kind, ifindex, flags, _ = _LINK.unpack_from(body)
    found = dict(_attributes(body[_LINK.size :]))

    def number(attribute: int) -> int:
        return int.from_bytes(found.get(attribute, b"")[:4], sys.byteorder)

    carrier = found.get(_IFLA_CARRIER, b"\1")[:1] == b"\1"
    return Link(
        ifname=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        ifindex=ifindex,
        up=bool(flags & _IFF_UP) and carrier,
        mtu_bytes=number(_IFLA_MTU),
        mac=found.get(_IFLA_ADDRESS, b"").ljust(6, b"\0")[:6],
        ethernet=kind == _ARPHRD_ETHER,
        loopback=bool(flags & _IFF_LOOPBACK),
        master=number(_IFLA_MASTER),
    )


def parse_address(body: bytes) -> Address | None:
    """Parse one RTM_NEWADDR; None if the address is tentative, a duplicate, or not for a NIC."""
    family, _, flags, scope, ifindex = _ADDRESS.unpack_from(body)
    found = dict(_attributes(body[_ADDRESS.size :]))
    if family not in (socket.AF_INET, socket.AF_INET6) or scope > _SCOPE_LINK:
        return None
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS) or b""
    if len(raw) != (4 if family == socket.AF_INET else 16):
        return None
    if _IFA_FLAGS in found:
        flags = int.from_bytes(found[_IFA_FLAGS][:4], sys.byteorder)
    if flags & _DADFAILED or (flags & _TENTATIVE and not flags & _OPTIMISTIC):
        return None
    rank = 1 if flags & _DEPRECATED else 3
    if family == socket.AF_INET6 and flags & _TEMPORARY:
        rank = min(rank, 2)
    if scope < _SCOPE_LINK:
        rank += 3  # a link-local address is a last resort
    mapped = raw if family == socket.AF_INET6 else b"\0" * 10 + b"\xff\xff" + raw
    return Address(mapped, ifindex, rank)


def links() -> dict[str, Link]:
    """Return all interfaces of our namespace by name."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = (parse_link(rest) for kind, rest in _dump(_GETLINK, body) if kind == _NEWLINK)
    return {link.ifname: link for link in found}


def addresses() -> list[Address]:
    """Return all usable addresses of this host."""
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = (parse_address(rest) for kind, rest in _dump(_GETADDR, body) if kind == _NEWADDR)
    return [address for address in found if address is not None]


@dataclass
class News:
    """Changes. interfaces: indexes with a changed link or address; routes: a route changed; lost:
    some changes are unknown; neighbors: index, address in 16 bytes, MAC address or nothing.
    """

    interfaces: set[int] = field(default_factory=set)
    routes: bool = False
    lost: bool = False
    neighbors: list[tuple[int, bytes, bytes]] = field(default_factory=list)


def parse_neighbor(kind: int, body: bytes) -> tuple[int, bytes, bytes] | None:
    """Parse RTM_NEWNEIGH or RTM_DELNEIGH; None while the kernel is still resolving."""
    family, _, ifindex, state, _, _ = _NEIGHBOR.unpack_from(body)
    found = dict(_attributes(body[_NEIGHBOR.size :]))
    addr, mac = found.get(_NDA_DST, b""), found.get(_NDA_LLADDR, b"")
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if len(addr) != (4 if family == socket.AF_INET else 16):
        return None
    addr = addr if family == socket.AF_INET6 else _V4_MAPPED + addr
    if kind == _NEWNEIGH and state & _USABLE:
        return (ifindex, addr, mac) if len(mac) == 6 else None
    if kind == _DELNEIGH or state & _FAILED:
        return ifindex, addr, b""
    return None


def _note(news: News, kind: int, body: bytes) -> None:
    if kind in _NEWLINK_TO_DELADDR:
        news.interfaces.add(_INTERFACE.unpack_from(body)[0])
    elif kind in (_NEWROUTE, _DELROUTE):
        news.routes = True
    elif kind in (_NEWNEIGH, _DELNEIGH) and len(body) >= _NEIGHBOR.size:
        neighbor = parse_neighbor(kind, body)
        if neighbor is not None:
            news.neighbors.append(neighbor)


def _neighbor_request(
    kind: int, flags: int, ifindex: int, raw: bytes, neighbor_flags: int
) -> bytes:
    v4 = raw.startswith(_V4_MAPPED)
    family, addr = (socket.AF_INET, raw[12:]) if v4 else (socket.AF_INET6, raw)
    body = _NEIGHBOR.pack(family, 0, ifindex, 0, neighbor_flags, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(addr), _NDA_DST) + addr
    return _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 0, 0) + body


class NetworkMonitor:
    """Monitors links, addresses, routes and neighbors of our namespace."""

    def __init__(self) -> None:
        self._sock = monitor(NETWORK_GROUPS)
        self._probes: dict[int, socket.socket] = {}

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are changes."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._sock.close()
        while self._probes:
            self._probes.popitem()[1].close()

    def read(self) -> News:
        """Return the changes, or part of them if they arrive faster. OSError: the monitor has
        failed.
        """
        news = News()
        for _ in range(READS_MAX):
            try:
                raw, sender = self._sock.recvfrom(65536)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                news.lost = True
                continue
            if sender[0] == 0:  # from the kernel; root's processes may send here, too
                for kind, _, body in _messages(raw):
                    _note(news, kind, body)
        return news

    def resolve(self, neighbors: list[tuple[int, bytes]]) -> None:
        """Have the kernel report neighbors (index, address), and resolve unknown ones; read()
        returns the results. Waits for the kernel, so it runs in a worker.
        """
        messages = b"".join(
            _neighbor_request(_GETNEIGH, 0, ifindex, addr, 0)
            + _neighbor_request(_NEWNEIGH, _CREATE, ifindex, addr, _NTF_USE)
            for ifindex, addr in neighbors
        )
        self._sock.send(messages)

    def confirm(self, ifindex: int, addr: bytes) -> None:
        """Confirm a known neighbor's reachability to the kernel. Sends no packet and does not wait.
        rtnetlink is not used: NUD_REACHABLE would make a permanent entry expire.
        """
        v4 = addr.startswith(_V4_MAPPED)
        family = socket.AF_INET if v4 else socket.AF_INET6
        if family not in self._probes:
            self._probes[family] = sock = socket.socket(family, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        if v4:
            where: Any = (socket.inet_ntoa(addr[12:]), _DISCARD_PORT)
            by = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i8x", ifindex))
        else:
            text = socket.inet_ntop(socket.AF_INET6, addr)
            scope = ifindex if addr[:2] == b"\xfe\x80" else 0
            where = (text, _DISCARD_PORT, 0, scope)
            by = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, struct.pack("=16xi", ifindex))
        flags = _MSG_CONFIRM | _MSG_PROBE | _MSG_DONTROUTE | socket.MSG_DONTWAIT
        with contextlib.suppress(OSError):  # the NIC is down, or there is no such neighbor
            self._probes[family].sendmsg([], [by], flags, where)
