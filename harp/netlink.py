# SPDX-License-Identifier: Apache-2.0
"""Netlink requests: pyroute2's messages over plain sockets.

pyroute2's own sockets (IPRoute and its relatives) run an event loop, which fails in a thread that
already runs one, such as harpd's. So harpd uses this module. Commands may use IPRoute.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from pyroute2.netlink import (
    NETLINK_EXT_ACK,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
)

_NETLINK_CAP_ACK = 10
_NLMSGERR_ATTR_MSG = 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_TIMEOUT_S = 5
_RECEIVE_BYTES = 1 << 20


def connect(protocol: int, groups: int = 0) -> socket.socket:
    """Return a socket in this thread's network namespace; groups: multicast groups to receive."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.settimeout(_TIMEOUT_S)
        for option in (_NETLINK_CAP_ACK, NETLINK_EXT_ACK):
            sock.setsockopt(SOL_NETLINK, option, 1)
        sock.bind((0, groups))
    except BaseException:
        sock.close()
        raise
    return sock


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the kind, flags and bytes of each message of a datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            return
        yield kind, flags, data[at : at + size]
        at += (size + 3) & ~3


def encode(message: Any, kind: int, flags: int) -> bytes:
    """Return the bytes of a request: an object of one of pyroute2's message classes, with its
    fields and attributes. kind: the message's type (RTM_GETLINK ...), or the number of a generic
    netlink family; flags: NLM_F_* besides NLM_F_REQUEST.
    """
    message["header"]["type"], message["header"]["flags"] = kind, NLM_F_REQUEST | flags
    message["header"]["sequence_number"], message["header"]["pid"] = 1, 0
    message.encode()
    return bytes(message.data)


def exchange(sock: socket.socket, message: Any, kind: int, *, dump: bool = False) -> list[Any]:
    """Send a request as for encode(); return the answers as decoded messages of its class. dump:
    request all entries of a table.

    InterruptedError: the table changed while it was read; ask again. OSError: the kernel refused,
    with the kernel's message if it sent one, or did not answer within 5 s.
    """
    sock.send(encode(message, kind, NLM_F_DUMP if dump else NLM_F_ACK))
    decoded = [type(message)(part) for part in answers(sock)]
    for answer in decoded:
        answer.decode()
    return decoded


def answers(sock: socket.socket) -> Iterator[bytes]:
    """Yield the messages of an answer, up to its end; raises as exchange()."""
    interrupted = False
    while True:
        try:
            data = sock.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, "the kernel did not answer") from error
        for kind, flags, part in split(data):
            interrupted |= bool(flags & NLM_F_DUMP_INTR)
            if kind == NLMSG_ERROR:
                _raise(part, flags)
            if kind in (NLMSG_ERROR, NLMSG_DONE):
                if interrupted:
                    raise InterruptedError(errno.EINTR, "the table changed while it was read")
                return
            yield part


def _raise(part: bytes, flags: int) -> None:
    (negative,) = struct.unpack_from("=i", part, _HEADER.size)
    if negative == 0:
        return
    text = ""
    at = _HEADER.size + 4 + _HEADER.size  # NETLINK_CAP_ACK: only the header is quoted
    while flags & NLM_F_ACK_TLVS and at + 4 <= len(part):
        size, kind = struct.unpack_from("=HH", part, at)
        if kind & 0x3FFF == _NLMSGERR_ATTR_MSG:
            text = part[at + 4 : at + size].rstrip(b"\0").decode(errors="replace")
        at += max(4, size + 3 & ~3)
    raise OSError(-negative, text or os.strerror(-negative))
