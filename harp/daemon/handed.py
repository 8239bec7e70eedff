# SPDX-License-Identifier: Apache-2.0
"""The sockets that a lease hands over besides the AF_XDP one, made so that they can do no more than
the job needs.

They live in the NIC's network namespace, where the job need not be. So each is limited in a way
that its holder can't undo: the rtnetlink sockets are opened without capabilities, which the kernel
looks at again for every message (file_ns_capable()): they never change anything, whoever has them.
The probe sockets are bound to the NIC and to a port, and a locked filter drops all that comes in:
they receive nothing, and can't be bound to a port that somebody else would want.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator

from harp.daemon import netlink

_CAPABILITY_VERSION_3 = 0x20080522
_HEADER = struct.Struct("=Ii")
_SETS = struct.Struct("=6I")  # effective, permitted, inheritable: the low 32 bits, then the high
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)  # struct sock_filter: BPF_RET | BPF_K, 0 bytes
_BIND_TRIES = 16
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(rc: int, what: str) -> None:
    if rc != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@contextlib.contextmanager
def without_capabilities() -> Iterator[None]:
    """This thread has no effective capabilities in here; others, and later, as before."""
    header = _HEADER.pack(_CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(_SETS.size)
    _checked(_libc.capget(header, sets), "capget")
    before = _SETS.unpack(sets.raw)
    none = (0, *before[1:3], 0, *before[4:6])
    _checked(_libc.capset(header, _SETS.pack(*none)), "capset")
    try:
        yield
    finally:
        _checked(_libc.capset(header, _SETS.pack(*before)), "capset")


def route_sockets() -> list[int]:
    """The two rtnetlink descriptors of a lease, which only read: the monitor in its groups, and
    one for questions."""
    with contextlib.ExitStack() as stack:
        with without_capabilities():
            heard = stack.enter_context(netlink.monitor(netlink.JOB_GROUPS))
            questions = stack.enter_context(
                socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            )
        questions.bind((0, 0))
        timeout = struct.pack("ll", 1, 0)
        for each in (heard, questions):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        return [heard.detach(), questions.detach()]


def _receive_nothing(sock: socket.socket) -> None:
    """For ever: the filter drops everything, and can't be taken off."""
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    filter_program = struct.pack("@HP", 1, ctypes.addressof(program))  # struct sock_fprog
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
    sock.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def _probe(family: int, ifname: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, ifname.encode())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _receive_nothing(sock)
        sock.bind(("", port))
    except BaseException:
        sock.close()
        raise
    return sock


def _probe_socket(family: int, ifname: str) -> int:
    """Bound to a port by its number: so it stays there even after a connect() to nobody."""
    for _ in range(_BIND_TRIES):
        with _probe(family, ifname, 0) as free:
            port = free.getsockname()[1]
        with contextlib.suppress(OSError):
            return _probe(family, ifname, port).detach()
    raise OSError(errno.EADDRINUSE, f"{ifname}: no UDP port is free for a probe socket")


def probe_sockets(ifname: str) -> list[int]:
    """UDP sockets bound to the NIC, one a family. Without IPv6 the second is one of IPv4 too: a
    lease always has the same number of descriptors."""
    made: list[int] = []
    try:
        made.append(_probe_socket(socket.AF_INET, ifname))
        try:
            made.append(_probe_socket(socket.AF_INET6, ifname))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            made.append(_probe_socket(socket.AF_INET, ifname))
    except BaseException:
        while made:
            os.close(made.pop())
        raise
    return made
