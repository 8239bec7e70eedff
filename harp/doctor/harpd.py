# SPDX-License-Identifier: Apache-2.0
"""Asks harpd whether it runs and what it leases to this user: HELLO and WELCOME of harp_lease.h."""

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harp import _host
from harp._host import Kind

SOCKET = Path(_host.SOCKET)
_TIMEOUT_S = 3


@dataclass(frozen=True)
class Device:
    """An interface whose queues harpd leases."""

    name: str
    ifindex: int
    queues: int
    queues_free: int
    one_queue: bool = False  # all packets arrive on one queue: no other is leased
    port: bool = False  # a DPDK port, leased whole
    generic: bool = False  # its XDP program is generic: the kernel copies what it receives


@dataclass(frozen=True)
class Harpd:
    """The result of the question."""

    path: Path
    error: int = 0  # errno; 0: harpd answered
    why: str = ""
    version: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)


def ask(path: Path = SOCKET) -> Harpd:
    """Ask harpd; never raises."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.connect(str(path))
            sock.sendall(_host.pack_hello(1, "harpctl check"))
            data = sock.recv(_host.MESSAGE_MAX)
    except TimeoutError:
        return Harpd(path, errno.ETIMEDOUT, f"no answer within {_TIMEOUT_S} s")
    except OSError as error:
        return Harpd(path, error.errno or errno.EIO, error.strerror or str(error))
    try:
        return _answer(path, data)
    except ValueError as error:
        return Harpd(path, errno.EPROTO, f"it speaks another language: {error}")


def _answer(path: Path, data: bytes) -> Harpd:
    if not data:
        return Harpd(path, errno.ECONNRESET, "it hung up")
    answer = _host.unpack(data)
    fields = answer.fields
    if answer.kind is Kind.REFUSED:
        return Harpd(path, abs(fields["error"]) or errno.EACCES, fields["why"])
    if answer.kind is not Kind.WELCOME:
        raise ValueError(f"it answers {answer.kind.name}")
    devices = {each.ifname: _device(each) for each in fields["devices"]}
    return Harpd(path, version=fields["daemon"], devices=devices)


def _device(told: _host.Device) -> Device:
    flags = (_host.DEVICE_ONE_QUEUE, _host.DEVICE_DPDK, _host.DEVICE_GENERIC)
    return Device(
        told.ifname,
        told.ifindex,
        told.queues,
        told.queues_free,
        *(bool(told.flags & flag) for flag in flags),
    )
