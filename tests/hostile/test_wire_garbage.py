# SPDX-License-Identifier: Apache-2.0
"""Invalid frames at every layer, sent into an active flow.

The plugin under test has its queue on host 0. The kernel of host 1 is a valid peer of one comm. A
packet socket on host 1, which sees the flow and so knows its sequence numbers, is the attacker.
Every test ends with messages over that comm and a check of the drop counters.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import random
import re
import socket
import time
from collections.abc import Iterator

import pytest
from actor import Actor, ActorError, actors
from hosts import Hosts
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from wire import Handle

SEED = 20261121
ETH_P_ALL = 3
FLOW = re.compile(r"accepted by HARP TCP \S+:(\d+) -> \S+:(\d+)")
COUNTS = re.compile(r"HARP (?:stats|drops):(.*)")


def mac_of(hosts: Hosts, host: int) -> str:
    with hosts.inside(host), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind((hosts.ifname[host], 0))
        return bytes(sock.getsockname()[4]).hex(":")


def ip_payload_bytes(frame: Packet) -> int:
    """Of the header's own account: short frames are padded."""
    if IPv6 in frame:
        return int(frame[IPv6].plen)
    return int(frame[IP].len - frame[IP].ihl * 4)


@dataclasses.dataclass
class Target:
    """A comm from host 1's kernel to HARP on host 0, and the attacker's socket on host 1."""

    hosts: Hosts
    receiver: Actor
    sender: Actor
    handle: str
    comms: tuple[int, int]
    raw: socket.socket
    ears: socket.socket  # has heard the flow's last segment, once exchange() is through
    frame: Packet  # Ethernet and IP header of a segment to HARP
    ports: tuple[int, int]  # the peer's, HARP's
    count: int = 0

    def exchange(self, data: bytes) -> None:
        """The established comm goes on: one message, whole and in order."""
        self.receiver.start("receive", comm=self.comms[0], size=len(data))
        assert self.sender.call("send", comm=self.comms[1], data=b64(data)) == len(data)
        assert base64.b64decode(self.receiver.result()) == data

    def goes_on(self) -> None:
        rng = random.Random(SEED + self.count)
        for size in (1, 1000, 100_000):
            self.exchange(rng.randbytes(size))
        self.count += 1

    def state(self) -> TCP:
        """The last segment that the honest peer sent: its SEQ, ACK and timestamps are current."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.ears.recv(65536)
        self.exchange(b"mark" * 4)
        last = None
        deadline = time.monotonic() + 60
        while last is None or time.monotonic() < deadline:
            try:
                frame = Ether(self.ears.recv(65536))
            except BlockingIOError:
                if last is not None:
                    break
                time.sleep(0.001)
                continue
            if TCP in frame and (frame[TCP].sport, frame[TCP].dport) == self.ports:
                last = frame
        assert last is not None, "nothing heard of the flow"
        segment: TCP = last[TCP]
        segment.seq += ip_payload_bytes(last) - segment.dataofs * 4
        segment.remove_payload()
        return segment

    def send(self, *frames: Packet | bytes) -> None:
        for frame in frames:
            self.raw.send(bytes(frame))

    def segment(self, **fields: object) -> TCP:
        return TCP(**{"sport": self.ports[0], "dport": self.ports[1], "flags": "A", **fields})

    def counts(self) -> dict[str, int]:
        """Closes the comm from both ends; what the receiver's stack counted."""
        self.sender.call("close_send", comm=self.comms[1])
        self.receiver.call("close_recv", comm=self.comms[0])
        self.receiver.call("finalize")
        found = COUNTS.findall("\n".join(self.receiver.call("log")))
        pairs = (item.split("=") for item in " ".join(found).split())
        return {name: int(value) for name, value in pairs}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextlib.contextmanager
def comm_under_attack(hosts: Hosts) -> Iterator[Target]:
    one = Actor(hosts.netns[0], hosts.env("xdp"))
    other = Actor(hosts.netns[1], hosts.env("kernel"))
    with actors(one, other) as (receiver, sender), contextlib.ExitStack() as stack:
        receiver.call("load", path=str(hosts.plugin))
        sender.call("load", path=str(hosts.plugin))
        handle, listen = receiver.call("listen")
        receiver.start("accept", listen=listen)
        send_comm = sender.call("connect", handle=handle)
        comms = (receiver.result(), send_comm)
        flow = FLOW.search("\n".join(receiver.call("log")))
        assert flow, receiver.call("log")
        with hosts.inside(1):
            raw = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            ears = stack.enter_context(
                socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            )
        raw.bind((hosts.ifname[1], 0))
        ears.bind((hosts.ifname[1], ETH_P_ALL))
        ears.setblocking(False)
        ip = IPv6 if ":" in hosts.address[0] else IP
        yield Target(
            hosts=hosts,
            receiver=receiver,
            sender=sender,
            handle=handle,
            comms=comms,
            raw=raw,
            ears=ears,
            frame=Ether(dst=mac_of(hosts, 0), src=mac_of(hosts, 1))
            / ip(src=hosts.address[1], dst=hosts.address[0]),
            ports=(int(flow.group(2)), int(flow.group(1))),
        )


@pytest.fixture
def target(hosts: Hosts) -> Iterator[Target]:
    with comm_under_attack(hosts) as made:
        yield made


@pytest.fixture
def target_each(each: Hosts) -> Iterator[Target]:
    """Over IPv4, and over IPv6."""
    with comm_under_attack(each) as made:
        yield made


def test_invalid_headers_are_dropped(target: Target) -> None:
    """Lengths, versions, checksums, options and flags of a frame that belongs to the flow."""
    target.goes_on()
    now = target.state()
    sent = target.segment(seq=now.seq, ack=now.ack)
    eth, ip = target.frame[Ether].copy(), target.frame[IP].copy()
    eth.remove_payload()
    ip.remove_payload()
    payload = Raw(b"\xee" * 64)

    def around(tcp: TCP, **fields: object) -> Packet:
        changed = ip.copy()
        for name, value in fields.items():
            setattr(changed, name, value)
        return eth / changed / tcp / payload

    def options(raw: bytes) -> Packet:
        """Option bytes as they are, padded to whole words."""
        raw += bytes(-len(raw) % 4)
        tcp = sent.copy()
        tcp.dataofs = 5 + len(raw) // 4
        return eth / ip / tcp / Raw(raw + b"\xee" * 64)

    def with_fields(**fields: object) -> TCP:
        tcp = sent.copy()
        for name, value in fields.items():
            setattr(tcp, name, value)
        return tcp

    target.send(
        *(bytes(around(sent))[:cut].ljust(14, b"\0") for cut in (14, 20, 33, 34, 40, 53)),
        *(around(sent, len=length) for length in (0, 19, 20, 39, 1500, 65535)),
        *(around(sent, ihl=ihl) for ihl in (0, 4, 6, 15)),
        around(sent, version=5),
        around(sent, chksum=0x1234),
        around(sent, ttl=0),
        *(
            around(sent, src=src)
            for src in ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255")
        ),
        around(sent, src=target.hosts.address[0]),
        *(around(with_fields(dataofs=words)) for words in (0, 1, 4, 15)),
        around(with_fields(chksum=0xBEEF)),
        *(around(with_fields(flags=flags)) for flags in ("", "FPU", "SF", "SR", "FSRPAUEC", "F")),
        options(b"\x08\x00"),
        options(b"\x08\x01"),
        options(b"\x08\x0b" + bytes(9)),
        options(b"\x02\x04\x00\x00\x03\x03\xff"),
        options(b"\x05\x22" + b"\xff" * 8),
        options(b"\x01\x01\x01\x08"),
        options(b"\xfe\x28" + bytes(38)),
    )
    rng = random.Random(SEED)
    head = bytes(eth / ip / sent)
    for _ in range(2000):  # the right ports, and bits turned over anywhere behind the MAC addresses
        frame = bytearray(head + rng.randbytes(rng.randrange(0, 64)))
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(12, len(frame))] ^= 1 << rng.randrange(8)
        target.send(bytes(frame))
    target.goes_on()
    counts = target.counts()
    for name in ("ip_short", "tcp_short", "tcp_checksum", "tcp_flags", "tcp_options", "ip_source"):
        assert counts.get("drop_" + name, 0) > 0, (name, counts)


def test_segments_of_a_blind_attacker(target_each: Target) -> None:
    """The right ports, and every sequence number but the right ones (RFC 5961)."""
    target = target_each
    target.goes_on()
    now = target.state()
    stamp = dict(now.options).get("Timestamp", (0, 0))
    options = [("NOP", None), ("NOP", None), ("Timestamp", stamp)]

    def segment(**fields: object) -> Packet:
        return target.frame / target.segment(**{"options": options, **fields})

    for flags in ("R", "RA", "S", "SA", "F", "FA", "A", "PA"):
        for at in (now.seq - 1, now.seq + 1, now.seq + 10_000, now.seq + (1 << 31), 0, 1):
            for ack in (now.ack, now.ack + 1, now.ack - (1 << 30), now.ack + (1 << 31)):
                if flags in ("F", "FA", "A", "PA") and at == now.seq + 1 and ack == now.ack:
                    continue  # out of order and otherwise in order: not an attack but a loss
                target.send(segment(flags=flags, seq=at % 2**32, ack=ack % 2**32))
    # Old timestamps, with the right sequence number (RFC 7323 PAWS), and none at all.
    old = [("NOP", None), ("NOP", None), ("Timestamp", ((stamp[0] - 5000) % 2**32, stamp[1]))]
    wrong = Raw(b"\xee" * 100)
    target.send(
        segment(flags="PA", seq=now.seq, ack=now.ack, options=old) / wrong,
        segment(flags="PA", seq=now.seq, ack=now.ack, options=[]) / wrong,
        segment(flags="PA", seq=now.seq, ack=(now.ack + 100_000) % 2**32) / wrong,
        segment(flags="SA", seq=now.seq, ack=now.ack),
        segment(flags="S", seq=now.seq, ack=0),
    )
    target.goes_on()
    counts = target.counts()
    for name in ("tcp_window", "tcp_paws", "tcp_ack"):
        assert counts.get("drop_" + name, 0) > 0, (name, counts)


def test_fragments_and_icmp_and_arp(target: Target) -> None:
    """Fragments never reach the stack; ICMP errors and ARP change nothing."""
    target.goes_on()
    now = target.state()
    eth, ip = target.frame[Ether], target.frame[IP]
    data = bytes(target.segment(seq=now.seq, ack=now.ack, flags="PA") / Raw(b"\xee" * 200))
    for flags, offset in (("MF", 0), ("MF", 1), ("", 1), ("", 8191), ("MF", 8191), ("DF+MF", 3)):
        fragment = IP(src=ip.src, dst=ip.dst, proto=6, id=7, flags=flags, frag=offset)
        target.send(Ether(dst=eth.dst, src=eth.src) / fragment / Raw(data))
    own = IP(src=ip.dst, dst=ip.src)  # what HARP would have sent
    for kind, code in [(3, code) for code in range(16)] + [
        (11, 0),
        (11, 1),
        (12, 0),
        (5, 1),
        (4, 0),
    ]:
        for seq in (now.ack - 1, now.ack, now.ack + 1, now.ack + (1 << 31), 0):
            quoted = own / TCP(sport=target.ports[1], dport=target.ports[0], seq=seq % 2**32)
            for mtu in (0, 68, 576):
                error = ICMP(type=kind, code=code, **({"nexthopmtu": mtu} if kind == 3 else {}))
                target.send(target.frame / error / quoted)
            target.send(target.frame / ICMP(type=kind, code=code) / Raw(bytes(quoted)[:27]))
    other = "02:00:00:00:00:99"
    for claimed in (ip.src, ip.dst, "0.0.0.0", "255.255.255.255"):
        for op in (1, 2, 3, 0xFFFF):
            claim = ARP(op=op, hwsrc=other, psrc=claimed, hwdst=eth.dst, pdst=ip.dst)
            if claimed != ip.src:  # the kernel believes it, and so do we: its table is the host's
                target.send(Ether(dst=eth.dst, src=other) / claim)
            target.send(Ether(dst="ff:ff:ff:ff:ff:ff", src=eth.src) / bytes(claim)[:20])
    target.send(Ether(dst=eth.dst, src=eth.src, type=0x0806) / Raw(b"\xff" * 28))
    target.goes_on()
    target.counts()


def test_a_flood_of_syns(target_each: Target) -> None:
    """From more ports than the backlog has places, and from addresses that nobody has.

    Once half-open connections have used up the backlog, SYNs are answered by cookies and none is
    dropped (RFC 4987 section 3.6): only connections that wait for accept fill it for good.
    """
    target = target_each
    target.goes_on()
    port = Handle.decode(base64.b64decode(target.handle)).harp_port
    separator = ":" if ":" in target.hosts.address[1] else "."
    network = target.hosts.address[1].rsplit(separator, 1)[0]
    rng = random.Random(SEED)
    for n in range(4000):
        frame = target.frame.copy()
        if n % 2 == 0:
            frame.payload.src = f"{network}{separator}{rng.randrange(10, 250)}"
        target.send(frame / TCP(sport=1024 + n, dport=port, flags="S", seq=rng.getrandbits(32)))
        if n % 1000 == 0:
            target.goes_on()
    # An honest peer gets in all the same.
    handle, listen = target.receiver.call("listen")
    target.receiver.start("accept", listen=listen)
    try:
        send_comm = target.sender.call("connect", handle=handle)
    except ActorError:
        pytest.fail("no connection after the flood")
    recv_comm = target.receiver.result()
    target.sender.call("close_send", comm=send_comm)
    target.receiver.call("close_recv", comm=recv_comm)
    target.goes_on()
    counts = target.counts()
    assert counts["tcp_cookies_sent"] > 0, counts
    assert "drop_tcp_backlog" not in counts, counts
