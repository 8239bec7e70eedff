# SPDX-License-Identifier: Apache-2.0
"""An independent implementation of HARP's wire format v1, written from docs/lanes.md alone.

A test acts as a correct peer with it, and then violates the protocol.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
import os
import socket
import struct
from typing import Any

from harp.closing import Closing

HELLO, CHALLENGE, PROOF, READY, CONFIRM = b"HELO", b"CHLG", b"PROF", b"REDY", b"CNFM"
DATA, CREDIT, ACK, CLOSE = 1, 2, 3, 4
RECORD_BYTES, NIC_BYTES = 40, 60


@dataclasses.dataclass
class Handle:
    """The fields that a connector needs (section 2)."""

    harp_port: int
    kernel_port: int
    listen_id: int
    address: str
    secret: bytes

    @classmethod
    def decode(cls, raw: bytes) -> Handle:
        assert raw[:5] == b"HARP\x01", raw[:8]
        check = hashlib.blake2s(
            b"HARP handle v1" + raw[:112], key=raw[32:48], digest_size=16
        ).digest()
        assert check == raw[112:], "the handle's check"
        kernel_port_v4, kernel_port_v6 = struct.unpack_from("<HH", raw, 84)
        v4 = any(raw[52:68])
        return cls(
            harp_port=struct.unpack_from("<H", raw, 92)[0],
            kernel_port=kernel_port_v4 if v4 else kernel_port_v6,
            listen_id=struct.unpack_from("<Q", raw, 8)[0],
            address=str(ipaddress.ip_address(raw[64:68] if v4 else raw[68:84])),
            secret=raw[32:48],
        )

    @property
    def port(self) -> int:
        return self.harp_port or self.kernel_port


def record(
    kind: int,
    *,
    message: int = 0,
    total: int = 0,
    offset: int = 0,
    tag: int = 0,
    payload: bytes = b"",
    length: int | None = None,
) -> bytes:
    """One record (section 4); length may contradict the payload."""
    size = len(payload) if length is None else length
    return struct.pack("<BBHIQQQII", kind, 0, 0, size, message, total, offset, tag, 0) + payload


class Peer(Closing):
    """A connector on a kernel socket (section 3)."""

    def __init__(self, handle: Handle, timeout_s: float = 60.0) -> None:
        self.handle = handle
        self.key = b""  # further lanes: the comm key, which replaces the handle's secret
        self.transcript = b""
        self.nics = 0  # NICs in CHALLENGE
        self.socket = socket.create_connection((handle.address, handle.port), timeout_s)

    def close(self) -> None:
        self.socket.close()

    def fileno(self) -> int:
        return self.socket.fileno()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.transcript += data
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError(f"the plugin closed the connection after {len(data)} bytes")
            data += piece
        self.transcript += data
        return data

    def mac(self, label: bytes) -> bytes:
        return hashlib.blake2s(
            label.ljust(16) + self.transcript, key=self.key or self.handle.secret, digest_size=16
        ).digest()

    def hello(
        self,
        *,
        features: int = 0,
        index: int = 0,
        multi_lane: bool = False,
        join: bool = False,
        comm_id: int = 0xC0FFEE,
    ) -> bytes:
        features |= 4 * multi_lane | 8 * join
        return (
            HELLO
            + struct.pack("<HHQIB3x", 1, 0, features, 262144, index)
            + struct.pack("<QQ", 0 if join else self.handle.listen_id, comm_id)
            + os.urandom(16)
            + bytes(8)
        )

    def proof(self) -> bytes:
        self.transcript += (head := PROOF + struct.pack("<HHQ", 1, 0, 0))
        mac = self.mac(b"HARP1 connector")
        self.transcript = self.transcript[: -len(head)]
        return head + mac

    def challenge(self) -> None:
        """Reads CHALLENGE and checks its proof."""
        head = self.read(48)
        assert head[:4] == CHALLENGE
        self.nics = head[20]
        self.read(struct.unpack_from("<H", head, 6)[0] + NIC_BYTES * self.nics)
        expected = self.mac(b"HARP1 acceptor")
        assert self.read(16) == expected, "the acceptor's proof"

    def ready(self) -> None:
        ready = self.read(16)
        assert ready[:8] == READY + struct.pack("<HH", 1, 0), ready
        expected = self.mac(b"HARP1 ready")
        assert self.read(16) == expected, "READY's proof"

    def confirm(self) -> None:
        """Sends CONFIRM, which is not in the transcript: keys depend on it up to READY."""
        self.socket.sendall(CONFIRM + struct.pack("<HH", 1, 0))

    def handshake(self, **hello: Any) -> None:
        """Runs the preamble and checks all messages."""
        self.send(self.hello(**hello))
        self.challenge()
        self.send(self.proof())
        self.ready()
        self.confirm()

    def comm_key(self) -> bytes:
        """The comm key (section 3.4), after handshake()."""
        return self.mac(b"HARP1 comm key")

    def record(self) -> tuple[int, int, int, int, bytes]:
        """Reads a record: type, message, total, offset, payload."""
        kind, _, reserved, length, message, total, offset, _, padding = struct.unpack(
            "<BBHIQQQII", self.read(RECORD_BYTES)
        )
        assert reserved == padding == 0
        return kind, message, total, offset, self.read(length)


class Acceptor(Closing):
    """A listen comm: a kernel socket and its handle (section 2)."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_server((address, 0))
        self.socket.settimeout(60)
        self.secret, self.comm_key = os.urandom(16), b""
        raw = b"HARP" + bytes((1, 0, 0, 0)) + os.urandom(8) + bytes(16) + self.secret + bytes(4)
        raw += bytes(10) + b"\xff\xff" + socket.inet_aton(address) + bytes(16)
        raw += struct.pack("<HH", self.socket.getsockname()[1], 0) + bytes(24)
        label = b"HARP handle v1"
        self.handle = raw + hashlib.blake2s(label + raw, key=self.secret, digest_size=16).digest()

    def close(self) -> None:
        self.socket.close()

    def accept(self) -> Accepted:
        """Accepts the next lane; skips connect attempts that the connector has ended."""
        while True:
            with contextlib.suppress(EOFError, ConnectionError):
                return Accepted(self)


class Accepted(Peer):
    """The acceptor's end of a lane. The constructor runs the preamble and checks it."""

    def __init__(self, acceptor: Acceptor) -> None:
        self.socket = acceptor.socket.accept()[0]
        self.socket.settimeout(60)
        self.transcript = b""
        hello = self.read(64)
        assert hello[:4] == HELLO
        self.index, joins = hello[20], hello[8] & 8
        self.key = acceptor.comm_key if joins else acceptor.secret
        terms = struct.pack("<QI", 1 << 20, 65536) + bytes(12) + os.urandom(16)
        self.send(CHALLENGE + struct.pack("<HH", 1, 0) + terms)
        self.send(self.mac(b"HARP1 acceptor"))
        assert self.read(16)[:4] == PROOF
        expected = self.mac(b"HARP1 connector")
        assert self.read(16) == expected, "the connector's proof"
        self.send(READY + struct.pack("<HHQ", 1, 0, 0))
        self.send(self.mac(b"HARP1 ready"))
        if not joins:
            acceptor.comm_key = self.mac(b"HARP1 comm key")
        assert self.read(8) == CONFIRM + struct.pack("<HH", 1, 0)
