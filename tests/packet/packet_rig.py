# SPDX-License-Identifier: Apache-2.0
"""A stack under a virtual clock, and a peer whose packets the test writes one at a time."""

from collections.abc import Iterable
from typing import Any

from scapy.layers.inet import IP, TCP, in4_chksum
from scapy.layers.inet6 import IPv6, in6_chksum
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from harp._core import Connection, Listener, Stack
from harp._nic import CallbackNic

OUR_MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
OUR_ADDRESS = {"ipv4": "10.0.0.1", "ipv6": "fd00::1"}
PEER_ADDRESS = {"ipv4": "10.0.0.2", "ipv6": "fd00::2"}
PORT, PEER_PORT = 7000, 40000
MS = 1_000_000
SECOND = 1000 * MS
WINDOW = 65535
MODULUS = 2**32


class Rig:
    """A stack that listens on PORT, and its peer, which sends from PEER_PORT."""

    def __init__(self, family: str = "ipv4", *, mtu_bytes: int = 1500, **stack: Any) -> None:
        self.family = family
        self.ours, self.peer = OUR_ADDRESS[family], PEER_ADDRESS[family]
        self.now = 10**9
        self.nic = CallbackNic(mac=OUR_MAC, mtu_bytes=mtu_bytes)
        stack = {"own_neighbors": False} | stack
        self.stack = Stack(self.nic, seed=7, now_ns=self.now, **stack)
        self.stack.address_add(self.ours, 64 if family == "ipv6" else 24)
        self.stack.neighbor_set(self.peer, PEER_MAC)
        self.listener: Listener | None = None
        self.stack.poll(self.now)
        self.nic.collect()
        self.headers = 60 if family == "ipv6" else 40
        self.mss = mtu_bytes - self.headers
        self.seq, self.ack = 1000, 0  # the peer's SND.NXT and RCV.NXT
        self.sport, self.dport = PEER_PORT, PORT
        self.timestamps = False
        self.tsval, self.tsecr = 500, 0
        self.conns: list[Connection] = []  # close() aborts them

    def close(self) -> None:
        for conn in self.conns:
            conn.abort()
        self.stack.close()
        self.nic.close()

    # ---- packets ---------------------------------------------------------------------------------
    def inject(self, *frames: bytes, after_ns: int = MS) -> list[Packet]:
        """Inject frames, advance the clock, poll once. Return the packets that the stack sent."""
        for frame in frames:
            self.nic.inject(frame)
        self.now += after_ns
        self.stack.poll(self.now)
        return self.collect()

    def collect(self) -> list[Packet]:
        return [Ether(frame) for frame in self.nic.collect()]

    def poll(self, after_ns: int = MS) -> list[Packet]:
        return self.inject(after_ns=after_ns)

    def wait(self, duration_ns: int) -> list[Packet]:
        """Advance the clock, polling at each deadline. Return the packets that the stack sent."""
        out, end = [], self.now + duration_ns
        while True:
            deadline = self.stack.next_deadline_ns
            self.now = min(end, max(self.now, deadline if deadline is not None else end))
            self.stack.poll(self.now)
            out += self.collect()
            if self.now >= end:
                return out
            self.now += 1

    def frame(self, payload: Packet, **fields: Any) -> bytes:
        """Return a frame of the peer with the payload after Ethernet and IP headers."""
        layer = IPv6 if self.family == "ipv6" else IP
        fields = {"src": self.peer, "dst": self.ours} | fields
        return bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / layer(**fields) / payload)

    def segment(self, flags: str, data: bytes = b"", **fields: Any) -> Packet:
        """Return a segment of the peer. fields: TCP fields other than the next ones in order."""
        fields = {"seq": self.seq, "ack": self.ack, "window": WINDOW} | fields
        fields = {"sport": self.sport, "dport": self.dport} | fields
        fields["seq"] %= MODULUS
        fields["ack"] %= MODULUS
        if self.timestamps and "S" not in flags and "options" not in fields:
            fields["options"] = [("NOP", None), ("NOP", None), ("Timestamp", self.stamp())]
        header = TCP(flags=flags, **fields)
        return header / Raw(data) if data else header

    def stamp(self) -> tuple[int, int]:
        return self.tsval, self.tsecr

    def send(self, flags: str, data: bytes = b"", **fields: Any) -> list[TCP]:
        """Send a segment from the peer. Return the TCP segments that the stack answers."""
        return self.tcp(self.inject(self.frame(self.segment(flags, data, **fields))))

    def tcp(self, packets: Iterable[Packet]) -> list[TCP]:
        """Return the TCP segments of packets. Record the last timestamp as the peer's TSecr."""
        segments = [packet[TCP] for packet in packets if TCP in packet]
        for segment in segments:
            stamp = dict(segment.options).get("Timestamp") if segment.options else None
            if stamp:
                self.tsecr = stamp[0]
        return segments

    def wait_tcp(self, duration_ns: int) -> list[TCP]:
        """As wait(), but return the TCP segments."""
        return self.tcp(self.wait(duration_ns))

    # ---- states ----------------------------------------------------------------------------------
    def listen(self, **options: Any) -> Listener:
        self.listener = self.stack.listen(PORT, **options)
        return self.listener

    def syn_options(self, **offer: Any) -> list[Any]:
        options: list[Any] = [("MSS", offer.get("mss", self.mss))]
        if offer.get("sack"):
            options += [("SAckOK", b"")]
        if offer.get("timestamps"):
            options += [("Timestamp", (self.tsval, self.tsecr))]
        if "wscale" in offer:
            options += [("NOP", None), ("WScale", offer["wscale"])]
        return options

    def open(
        self, *, window: int = WINDOW, listen: Any = None, rtt_ns: int = 0, **offer: Any
    ) -> Connection:
        """Connect from the peer to the listener. Return the accepted connection."""
        if self.listener is None:
            self.listen(**(listen or {}))
        assert self.listener is not None
        reply = self.send("S", ack=0, window=window, options=self.syn_options(**offer))[0]
        assert str(reply.flags) == "SA"
        if rtt_ns:
            self.wait(rtt_ns)
        self.timestamps = bool(offer.get("timestamps"))
        self.seq, self.ack = (self.seq + 1) % MODULUS, (reply.seq + 1) % MODULUS
        self.send("A", window=window)
        return self.accept()

    def accept(self) -> Connection:
        assert self.listener is not None
        conn = self.listener.accept()
        assert conn is not None
        self.conns.append(conn)
        return conn

    def complete_handshake(self, reply: TCP) -> Connection:
        """Acknowledge the SYN-ACK. Return the accepted connection."""
        self.seq, self.ack = self.seq + 1, reply.seq + 1
        self.send("A")
        return self.accept()

    def connect(self, *, window: int = WINDOW, options: Any = None, **offer: Any) -> Connection:
        """Connect from the stack to the peer, which accepts."""
        conn = self.stack.connect(self.peer, PORT, **(options or {}))
        self.conns.append(conn)
        syn = self.tcp(self.poll())[0]
        self.sport, self.dport = PORT, syn.sport
        self.ack = (syn.seq + 1) % MODULUS
        self.send("SA", window=window, options=self.syn_options(**offer))
        self.timestamps = bool(offer.get("timestamps"))
        self.seq += 1
        assert conn.state == "ESTABLISHED"
        return conn

    def time_wait(self, **offer: Any) -> TCP:
        """Bring a connection to TIME-WAIT. Return the stack's FIN."""
        self.open(**offer).close()
        fin = self.tcp(self.poll())[-1]
        self.send("FA", ack=fin.seq + 1)
        return fin

    def send_next(self, data: bytes, flags: str = "PA", **fields: Any) -> list[TCP]:
        """Send the next bytes in order from the peer. Return the stack's answer."""
        reply = self.send(flags, data, **fields)
        self.seq = (self.seq + len(data)) % MODULUS
        self.tsval += 1
        return reply

    def write(self, conn: Connection, data: bytes) -> list[TCP]:
        """Send on a connection of the stack. Return the segments with payload."""
        conn.send(data)
        return with_data(self.tcp(self.poll()))

    def stat(self, name: str) -> int:
        return self.stack.stats()[name]


def seal(rig: Rig, segment: bytes, proto: int = 6, at: int = 16) -> bytes:
    """Return a frame with a correct checksum for transport bytes that scapy cannot build."""
    body = bytearray(segment)
    body[at : at + 2] = b"\0\0"
    field = {"nh": proto} if rig.family == "ipv6" else {"proto": proto}
    packet = Ether(rig.frame(Raw(bytes(body)), **field))
    chksum = in6_chksum if rig.family == "ipv6" else in4_chksum
    body[at : at + 2] = chksum(proto, packet.getlayer(1), bytes(body)).to_bytes(2, "big")
    return rig.frame(Raw(bytes(body)), **field)


class CounterChanges:
    """Records which counters change inside a `with` block."""

    def __init__(self, rig: Rig, prefix: str = "drop_") -> None:
        self.rig, self.prefix = rig, prefix
        self.changes: dict[str, int] = {}

    def __enter__(self) -> "CounterChanges":
        self.before = self.rig.stack.stats()
        return self

    def __exit__(self, *error: object) -> None:
        after = self.rig.stack.stats()
        names = [name for name in after if name.startswith(self.prefix)]
        self.changes = {n: after[n] - self.before[n] for n in names if after[n] != self.before[n]}


def flags_of(segments: Iterable[TCP]) -> list[str]:
    return [str(segment.flags) for segment in segments]


def data_of(segment: TCP) -> bytes:
    return bytes(segment.payload)


def with_data(segments: Iterable[TCP]) -> list[TCP]:
    return [segment for segment in segments if data_of(segment)]


def options_of(segment: TCP) -> dict[str, Any]:
    return dict(segment.options)


def sack_of(segment: TCP) -> list[tuple[int, int]]:
    edges = options_of(segment).get("SAck") or ()
    return list(zip(edges[::2], edges[1::2], strict=True))
