# SPDX-License-Identifier: Apache-2.0
"""Asks harpd whether it is there and what it lends to us: HELLO and WELCOME of harp_lease.h."""

import errno
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOCKET = Path("/run/harp/harpd.sock")
_MAGIC, _VERSION = 0x4C505248, 1
_HELLO, _WELCOME, _REFUSED = 1, 2, 5
_HEADER = struct.Struct("=IHHII")
_WELCOME_BODY = struct.Struct("=32sII")
_DEVICE = struct.Struct("=16sIIIIIIi6s6sQQ16s16s256s")
_REFUSED_BODY = struct.Struct("=i384s")
_ONE_QUEUE = 4  # HARP_LEASE_DEVICE_ONE_QUEUE
_DPDK = 8  # HARP_LEASE_DEVICE_DPDK
_MESSAGE_MAX = 65536
_TIMEOUT_S = 3


@dataclass(frozen=True)
class Device:
    """An interface of which harpd lends queues."""

    name: str
    ifindex: int
    queues: int
    queues_free: int
    one_queue: bool = False  # all packets were seen on one queue: no other is leased
    port: bool = False  # a DPDK port, leased whole


@dataclass(frozen=True)
class Harpd:
    """What came of asking."""

    path: Path
    error: int = 0  # errno; 0: it answered
    why: str = ""
    version: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)


def ask(path: Path = SOCKET) -> Harpd:
    """One question; never raises."""
    hello = _HEADER.pack(_MAGIC, _VERSION, _HELLO, _HEADER.size + 32, 1) + b"harpctl check".ljust(
        32, b"\0"
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.connect(str(path))
            sock.sendall(hello)
            data = sock.recv(_MESSAGE_MAX)
    except TimeoutError:
        return Harpd(path, errno.ETIMEDOUT, f"no answer within {_TIMEOUT_S} s")
    except OSError as error:
        return Harpd(path, error.errno or errno.EIO, error.strerror or str(error))
    try:
        return _answer(path, data)
    except (struct.error, ValueError) as error:
        return Harpd(path, errno.EPROTO, f"it speaks another language: {error}")


def _answer(path: Path, data: bytes) -> Harpd:
    if not data:
        return Harpd(path, errno.ECONNRESET, "it hung up")
    magic, version, kind, _, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"version {version}")
    if kind == _REFUSED:
        number, why = _REFUSED_BODY.unpack_from(data, _HEADER.size)
        return Harpd(path, abs(number) or errno.EACCES, _text(why))
    if kind != _WELCOME:
        raise ValueError(f"answer {kind}")
    daemon, count, _ = _WELCOME_BODY.unpack_from(data, _HEADER.size)
    devices, at = {}, _HEADER.size + _WELCOME_BODY.size
    for _ in range(count):
        fields = _DEVICE.unpack_from(data, at)
        at += _DEVICE.size
        name = _text(fields[0])
        flags = fields[2]
        devices[name] = Device(
            name, fields[1], fields[5], fields[6], bool(flags & _ONE_QUEUE), bool(flags & _DPDK)
        )
    return Harpd(path, version=_text(daemon), devices=devices)


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")
