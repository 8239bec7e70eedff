# SPDX-License-Identifier: Apache-2.0
"""The local ports of the kernel's TCP and UDP sockets, from sock_diag(7).

One reading is four dumps (two protocols, two families). The kernel walks its tables and returns
only sockets with ports of the range. Linux lists TCP sockets that are bound, but neither listen nor
connect, since 6.8.

Readings run in a worker. At most one is in progress; requests that arrive meanwhile share the next
one.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterator

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST

from harp import netlink
from harp.daemon.loop import Loop
from harp.daemon.ports import Block

SOCKETS_MAX = 65536  # limit of one dump; more sockets in at most 65535 ports are an attack
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ALL_STATES = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2
_MODULES = {socket.IPPROTO_TCP: "tcp_diag", socket.IPPROTO_UDP: "udp_diag"}
_PORT = struct.Struct("!H")
_PORT_AT = _HEADER.size + 4  # struct inet_diag_msg: idiag_sport
_MESSAGE_MIN = _PORT_AT + _PORT.size


def _filter(span: Block) -> bytes:
    """Return INET_DIAG_REQ_BYTECODE that accepts local ports in the range.

    Each comparison is a struct inet_diag_bc_op (code, jump if true, jump if false) and a second one
    whose last field is the port. A jump behind the end rejects the socket.
    """
    at_least, at_most = 2, 3  # INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE
    code = struct.pack("=BBHBBH", at_least, 8, 20, 0, 0, span.first)
    code += struct.pack("=BBHBBH", at_most, 8, 12, 0, 0, span.last)
    return struct.pack("=HH", 4 + len(code), 1) + code


def _dump(diag: socket.socket, family: int, protocol: int, span: Block) -> Iterator[int]:
    """Dump one protocol of one family. OSError."""
    body = _REQUEST.pack(family, protocol, 0, 0, _ALL_STATES) + _filter(span)
    size = _HEADER.size + len(body)
    diag.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + body)
    for count, part in enumerate(netlink.answers(diag)):
        if count >= SOCKETS_MAX:
            raise OSError(
                errno.EBUSY,
                f"more than {SOCKETS_MAX} sockets have ports of {span}; end the processes that "
                "bind them, or give harpd another port range in harp.toml",
            )
        if len(part) < _MESSAGE_MIN:
            raise OSError(errno.EPROTO, "a message without a port")
        yield _PORT.unpack_from(part, _PORT_AT)[0]


def _read(family: int, protocol: int, span: Block) -> set[int]:
    try:
        with netlink.connect(_NETLINK_SOCK_DIAG) as diag:
            return set(_dump(diag, family, protocol, span))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise
        number = error.errno or errno.EIO
        missing = number in (errno.ENOENT, errno.EPROTONOSUPPORT)
        hint = f"; `modprobe {_MODULES[protocol]}`" if missing else ""
        raise OSError(
            number, f"the kernel's table of sockets can't be read: {error.strerror or error}{hint}"
        ) from error


def ports_in_use(span: Block) -> frozenset[int]:
    """Return the ports of the range that sockets of this network namespace have. OSError."""
    families = (socket.AF_INET, socket.AF_INET6)
    return frozenset().union(
        *(_read(family, protocol, span) for protocol in _MODULES for family in families)
    )


class PortReadings:
    """Shares readings among requests. Used by the loop's thread.

    A reading that began before a request never answers it: the ports may have changed.
    """

    def __init__(self, loop: Loop, read: Callable[[], frozenset[int]]) -> None:
        self._loop, self._read = loop, read
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[frozenset[int]] | None = None

    async def ports(self) -> frozenset[int]:
        """Return the result of a reading that begins now or later."""
        if self._next is None:
            self._next = self._loop.spawn(self._read_next())
        return await asyncio.shield(self._next)

    async def _read_next(self) -> frozenset[int]:
        async with self._reading:
            self._next = None
            return await self._loop.work(self._read)
