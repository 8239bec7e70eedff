# SPDX-License-Identifier: Apache-2.0
"""An attacker on the path of a rail that reads packets and resets connections.

It sees sequence numbers, so its RSTs are exact (RFC 5961). It takes the sequence number from a
segment of the connection's quieter direction.
"""

import socket
import struct
from errno import ENETDOWN
from types import TracebackType
from typing import NamedTuple, Self

from attack import checksum

from harp.lab import Lab
from harp.lab.netns import in_namespace

_ETH_P_ALL, _OUTGOING = 3, 4
_RST, _SYN, _FIN = 4, 2, 1


# Where ranks meet (harp.bench.streams): no connection of the plugin's.
RENDEZVOUS = 7000


class Segment(NamedTuple):
    """A TCP segment as it was seen: headers as bytes, and what an answer needs."""

    ether: bytes
    source: bytes
    target: bytes
    ports: bytes
    end: int  # the sequence number behind it
    ack: int
    flags: int
    payload: bytes

    @property
    def flow(self) -> tuple[bytes, bytes, bytes]:
        return self.source, self.target, self.ports

    @property
    def is_rendezvous(self) -> bool:
        return RENDEZVOUS in struct.unpack("!2H", self.ports)


def parse(frame: bytes) -> Segment | None:
    """None: no TCP."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == 6:
        ip_bytes = (frame[14] & 15) * 4
        total = struct.unpack_from("!H", frame, 16)[0] or len(frame) - 14
        source, target, at = frame[26:30], frame[30:34], 14 + ip_bytes
        end = 14 + total
    elif kind == b"\x86\xdd" and frame[20] == 6:
        source, target, at = frame[22:38], frame[38:54], 54
        end = 54 + (struct.unpack_from("!H", frame, 18)[0] or len(frame) - 54)
    else:
        return None
    seq, ack, offset, flags = struct.unpack_from("!IIBB", frame, at + 4)
    payload = frame[at + (offset >> 4) * 4 : end]
    behind = seq + len(payload) + bool(flags & _SYN) + bool(flags & _FIN)
    ports = frame[at : at + 4]
    return Segment(frame[:14], source, target, ports, behind % 2**32, ack, flags, payload)


def build(seen: Segment, flags: int, payload: bytes = b"", seq: int | None = None) -> bytes:
    """What would come next on that connection, from the same end."""
    head = seen.ports + struct.pack(
        "!IIBBHHH", seen.end if seq is None else seq, seen.ack, 0x50, flags, 512, 0, 0
    )
    length = len(head) + len(payload)
    pseudo = seen.source + seen.target + struct.pack("!HH", 6, length)
    odd = b"\0" if length % 2 else b""
    tcp = head[:16] + struct.pack("!H", checksum(pseudo + head + payload + odd)) + head[18:]
    if len(seen.source) == 16:
        ip = struct.pack("!IHBB", 6 << 28, length, 6, 64) + seen.source + seen.target
    else:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, 6, 0)
        ip += seen.source + seen.target
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return seen.ether + ip + tcp + payload


class Resetter:
    """In the switch, on one rail between hosts 0 and 1."""

    def __init__(self, lab: Lab, rail: int) -> None:
        assert lab.switch is not None
        self._ports = lab.switch.rails[rail]
        self._sockets: list[socket.socket] = []

        def listen(_ipr: object) -> None:
            for port in self._ports:
                made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
                self._sockets.append(made)
                made.bind((port, _ETH_P_ALL))
                made.setblocking(False)

        in_namespace(lab.switch.netns, listen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for made in self._sockets:
            made.close()

    def hear(self, host: int) -> list[Segment]:
        """What of the plugin's it has sent since it was last asked, as far as there was room."""
        heard = []
        while True:
            try:
                frame, where = self._sockets[host].recvfrom(262144)
            except BlockingIOError:
                return heard
            except OSError as error:
                if error.errno != ENETDOWN:  # said once; what came before is there still
                    raise
                continue
            if where[2] == _OUTGOING:
                continue
            segment = parse(frame)
            if segment and not segment.is_rendezvous:
                heard.append(segment)

    def say(self, host: int, frame: bytes) -> None:
        """To the host, as if from the other one."""
        try:
            self._sockets[host].send(frame)
        except OSError as error:
            if error.errno != ENETDOWN:  # that cable is out: it is lost
                raise

    def reset_all(self) -> int:
        """Resets every connection heard of, in both directions; how many RSTs that took."""
        count = 0
        for host in (0, 1):
            newest = {segment.flow: segment for segment in self.hear(host)}
            for segment in newest.values():
                if not segment.flags & (_RST | _SYN | _FIN):
                    self.say(1 - host, build(segment, _RST | 0x10))
                    count += 1
        return count

    def reset_sender(self, sender: int) -> None:
        """Resets, there, the connections whose data the other host acknowledges."""
        for segment in self.hear(1 - sender):
            if not segment.payload and not segment.flags & (_RST | _SYN | _FIN):
                self.say(sender, build(segment, _RST | 0x10))
