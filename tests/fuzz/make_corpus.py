#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seed corpus: one input for each case that a fuzzer would take long to find.

    tests/fuzz/make_corpus.py     rewrites tests/fuzz/corpus from this file

The comment of each target explains its bytes.
"""

import struct
from pathlib import Path

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from harp import _host
from harp._host import Kind
from harp.daemon.messages import (
    Device,
    Leased,
    LeaseId,
    Neighbor,
    Refused,
    pack,
    pack_neighbors,
    pack_port,
    pack_welcome,
)

CORPUS = Path(__file__).resolve().parent / "corpus"
HOST, PEER = "02:00:00:00:00:01", "02:00:00:00:00:02"
HOST4, PEER4, HOST6, PEER6 = "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"
PORT = 61000
MORE_FRAGMENTS = 1


def write(target: str, name: str, data: bytes) -> None:
    """One input."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def frame(packet: Packet, *, repair: bool = False, late: bool = False) -> bytes:
    """A frame as fuzz_frames reads it."""
    raw = bytes(packet)[:1500]
    return struct.pack("!H", len(raw) | repair << 15 | late << 14) + raw


def frames() -> None:
    """fuzz_frames: the packets a host meets."""
    ether = Ether(dst=HOST, src=PEER)
    v4, v6 = ether / IP(src=PEER4, dst=HOST4), ether / IPv6(src=PEER6, dst=HOST6)
    packets = {
        "arp-request": Ether(dst="ff:ff:ff:ff:ff:ff", src=PEER) / ARP(psrc=PEER4, pdst=HOST4),
        "arp-reply": ether / ARP(op=2, psrc=PEER4, pdst=HOST4, hwsrc=PEER, hwdst=HOST),
        "echo": v4 / ICMP() / Raw(b"x" * 40),
        "echo6": v6 / ICMPv6EchoRequest(data=b"x" * 40),
        "syn": v4 / TCP(sport=5000, dport=PORT, flags="S", options=[("MSS", 1460)]),
        "syn6": v6 / TCP(sport=5000, dport=PORT, flags="S", options=[("MSS", 1440)]),
        "udp": v4 / UDP(sport=5000, dport=PORT) / Raw(b"x" * 20),
        "udp6": v6 / UDP(sport=5000, dport=PORT) / Raw(b"x" * 20),
        "vlan": ether / Dot1Q(vlan=5) / IP(src=PEER4, dst=HOST4) / ICMP(),
        "options": ether / IP(src=PEER4, dst=HOST4, options=b"\x01\x01\x01\x00") / ICMP(),
        "fragment": ether / IP(src=PEER4, dst=HOST4, flags=MORE_FRAGMENTS) / Raw(b"x" * 64),
        "hop-by-hop": v6 / IPv6ExtHdrHopByHop() / ICMPv6EchoRequest(),
        "destination-options": v6 / IPv6ExtHdrDestOpt() / TCP(dport=PORT, flags="S"),
        "fragment6": v6 / IPv6ExtHdrFragment(m=1) / Raw(b"x" * 64),
        "solicitation": Ether(dst="33:33:ff:00:00:01", src=PEER)
        / IPv6(src=PEER6, dst="ff02::1:ff00:1", hlim=255)
        / ICMPv6ND_NS(tgt=HOST6)
        / ICMPv6NDOptSrcLLAddr(lladdr=PEER),
        "advertisement": ether
        / IPv6(src=PEER6, dst=HOST6, hlim=255)
        / ICMPv6ND_NA(tgt=PEER6, S=1, O=1)
        / ICMPv6NDOptDstLLAddr(lladdr=PEER),
        "too-big": v4 / ICMP(type=3, code=4, nexthopmtu=1000) / IP(src=HOST4, dst=PEER4) / TCP(),
        "too-big6": v6 / ICMPv6PacketTooBig(mtu=1280) / IPv6(src=HOST6, dst=PEER6) / TCP(),
    }
    for name, packet in packets.items():
        write("fuzz_frames", name, b"\5" + frame(packet, repair=True) * 2 + frame(packet))
    everything = b"".join(frame(p, repair=True, late=True) for p in packets.values())
    write("fuzz_frames", "everything", b"\5" + everything)


def tcp() -> None:
    """fuzz_tcp: steps that get somewhere (enum step)."""
    segment, data, time, send, recv, shutdown, close, abort, connect, sack = range(10)

    def seg(
        flags: int, *, seq: int = 0, ack: int = 0, length: int = 0, window: int = 60000
    ) -> bytes:
        head = struct.pack("!BBB", segment, flags, 8)
        near = 0x8000  # fuzz_near()
        return head + struct.pack("!HHHHB", near + seq, near + ack, length, window, 0)

    some = struct.pack("!BH", data, 999)
    write_some = struct.pack("!BH", send, 20000)
    read = struct.pack("!BH", recv, 30000)
    wait = struct.pack("!BH", time, 400)
    fin, rst, syn, ack = 0x11, 0x04, 0x02, 0x10
    stories = {
        "request-response": (some + read + write_some + seg(ack)) * 4,
        "peer-closes": some + seg(fin) + read + bytes([close]) + seg(ack, seq=1),
        "we-close": bytes([shutdown]) + seg(ack) + seg(fin) + wait + seg(fin) + bytes([close]),
        "both-close": bytes([shutdown]) + seg(fin) + seg(ack, seq=1) + bytes([close]) + wait,
        "holes": seg(ack, seq=2000, length=500) + seg(ack, seq=1000, length=900) + some * 2 + read,
        "overlaps": seg(ack, seq=100, length=500) + seg(ack, seq=-50, length=300) + some + read,
        "duplicate-acks": write_some + seg(ack, ack=-20000) * 5 + wait + seg(ack),
        "sack": write_some + struct.pack("!BHBHHHH", sack, 20000, 1, 15000, 1448, 9000, 2896) * 4,
        "sack-bomb": write_some + bytes([sack]) + bytes(range(200)),
        "zero-window": write_some + seg(ack, window=0) + wait * 4 + seg(ack, window=5000) + wait,
        "tiny-window": write_some + seg(ack, window=1) + wait * 2 + seg(ack, window=2) + wait,
        "resets": seg(rst, seq=5) + seg(rst, seq=-5) + seg(rst) + bytes([close, connect]),
        "syn-in-window": seg(syn, seq=10) + seg(ack) + some + read,
        "strangers": (seg(syn) + seg(ack))[:-1] * 6,
        "timeouts": write_some + wait * 12 + seg(ack),
        "abort": some + bytes([abort, connect]) + some + read,
        "reneging": write_some + bytes([sack]) + b"\x4e\x20\x00\x10\x00\x20\x00" + wait * 3,
    }
    for name, steps in stories.items():
        for choices in (1, 3, 9):
            write("fuzz_tcp", f"{name}-{choices}", bytes([choices]) + steps)


def datagrams() -> None:
    """fuzz_frames: ICMP errors with a quote, echo, UDP, as bodies."""
    icmp, udp, error = 0x2000, 0x3000, 0x2800

    def one(kind: int, body: bytes) -> bytes:
        return struct.pack("!H", kind | len(body)) + body

    unreachable = bytes([3, 4, 0, 0, 0, 0, 2, 100])
    too_big6 = bytes([2, 0, 0, 0, 0, 0, 5, 0])
    dead = bytes([3, 3, 0, 0, 0, 0, 0, 0])
    solicit = bytes([135, 0, 0, 0, 0, 0, 0, 0, 0xFD]) + bytes(14) + b"\1\1\1" + bytes(6)
    inputs = {
        "quote-too-big": b"\4" + one(error, unreachable),
        "quote-too-big6": b"\6" + one(error, too_big6),
        "quote-port-unreachable": b"\4" + one(error, dead),
        "body-echo": b"\5" + one(icmp, bytes([8, 0, 0, 0, 0, 1, 0, 1]) + b"y" * 30),
        "body-echo6": b"\7" + one(icmp, bytes([128, 0, 0, 0, 0, 1, 0, 1])),
        "body-udp": b"\x0d" + one(udp, struct.pack("!HHHH", 5000, PORT, 30, 0) + b"z" * 22),
        "body-solicitation": b"\7" + one(icmp, solicit),
    }
    for name, data in inputs.items():
        write("fuzz_frames", name, data)


def options() -> None:
    """fuzz_options: what real SYNs and ACKs carry."""
    stamp = b"\x08\x0a" + struct.pack("!II", 1000, 2000)
    write("fuzz_options", "linux-syn", b"\x02\x04\x05\xb4\x04\x02" + stamp + b"\x01\x03\x03\x07")
    write("fuzz_options", "timestamp", b"\1\1" + stamp)
    write("fuzz_options", "sack", b"\1\1" + stamp + b"\1\1\x05\x12" + bytes(range(16)))
    write("fuzz_options", "four-blocks", b"\1\1\x05\x22" + bytes(range(32)))
    write("fuzz_options", "nops", b"\1" * 40)
    write("fuzz_options", "end", b"\0" + b"\xff" * 39)
    write("fuzz_options", "unknown", b"\xfd\x06abcd\xfe\x02")
    write("fuzz_options", "too-short", b"\x08\x01")


def records() -> None:
    """fuzz_records: headers field by field, then payload."""

    def header(kind: int, length: int, message: int, total: int, offset: int = 0) -> bytes:
        return b"\x80\0" + struct.pack("!BHBHBB", kind, length, message, total, offset, 0)

    def raw(count: int) -> bytes:
        return struct.pack("!H", count) + b"p" * count

    whole = header(1, 200, 0, 200) + raw(200)
    halves = header(1, 64, 0, 128) + raw(64) + header(1, 64, 0, 128, 1) + raw(64)
    for choices in (0, 1, 4, 5):
        side = bytes([choices])
        write("fuzz_records", f"message-{choices}", side + whole + header(1, 8, 1, 8) + raw(8))
        write("fuzz_records", f"halves-{choices}", side + halves)
        write("fuzz_records", f"credit-{choices}", side + header(2, 8, 0, 1) + raw(8))
        write("fuzz_records", f"close-{choices}", side + header(4, 0, 0, 0))
        write("fuzz_records", f"too-long-{choices}", side + header(1, 6000, 0, 6000) + raw(3000))

    def by(lane: int, piece: bytes) -> bytes:
        return bytes([piece[0] | lane << 4]) + piece[1:]

    def chunk(lane: int, length: int, message: int, total: int, offset: int) -> bytes:
        return by(lane, header(1, length, message, total, offset)) + by(lane, raw(length))

    for choices in (8, 9):
        side = bytes([choices])
        early = chunk(2, 64, 6, 64, 0) + chunk(2, 64, 0, 128, 1)
        twice = chunk(0, 64, 0, 128, 0) + chunk(1, 64, 0, 128, 0) + chunk(1, 64, 0, 128, 1)
        acks = by(1, header(3, 0, 0, 0, 0)) + by(2, header(3, 0, 4, 0, 0))
        write("fuzz_records", f"lanes-early-{choices}", side + early + chunk(0, 64, 0, 128, 0))
        write("fuzz_records", f"lanes-twice-{choices}", side + twice)
        write("fuzz_records", f"lanes-across-{choices}", side + twice + chunk(0, 128, 0, 128, 0))
        write("fuzz_records", f"lanes-end-{choices}", side + early + b"\x30\1" + b"\x30\2" + twice)
        write("fuzz_records", f"lanes-ack-{choices}", side + acks + b"\x30\0" + acks)


def encrypted() -> None:
    """fuzz_encrypted: streams, altered and cut."""
    send, receive, units, inject, alter, end = range(6)

    def step(kind: int, number: int, payload: bytes = b"") -> bytes:
        return struct.pack("!BH", kind, number) + payload

    some = step(send, 100) + step(receive, 50) + step(units, 200)
    large = step(send, 39999) + (step(units, 20000) + step(send, 0)) * 8
    head = struct.pack("<I", 30)
    for choices in range(4):
        first = bytes([choices])
        ended = step(end, 0) + step(receive, 9)
        write("fuzz_encrypted", f"talk-{choices}", first + some * 5 + ended)
        write("fuzz_encrypted", f"large-{choices}", first + large)
        write("fuzz_encrypted", f"altered-{choices}", first + some + step(alter, 0x1401) + some * 3)
    write("fuzz_encrypted", "raw", b"\1" + some + step(inject, 54, head + bytes(50)) + some)
    write("fuzz_encrypted", "length", b"\1" + step(inject, 4, b"\xff" * 4) + step(receive, 9))
    write("fuzz_encrypted", "cut", b"\1" + step(inject, 20, head + bytes(16)) + step(end, 0) + some)


def handles() -> None:
    """fuzz_handle: a handle's layout, the first bytes of each side of a preamble, NICs."""
    write("fuzz_handle", "handle", b"\0HARPhndl\1\1\1\3" + bytes(range(116)))
    write("fuzz_handle", "acceptor", b"\1\x40HARP" + bytes(200))
    write("fuzz_handle", "connector", b"\2\x40HARP" + bytes(200))
    nic = bytes(10) + b"\xff\xff\x0a\0\0\1" + b"\1\2\3\4\4\0\2\0" + bytes(8)
    write("fuzz_handle", "rails", b"\x80\1\0\0\0" + nic)


def config() -> None:
    """fuzz_config: settings, a null byte, variables with null bytes between."""
    write("fuzz_config", "variables", b"\0HARP_INSTANCES=4\0HARP_PATH=xdp\0NCCL_SOCKET_IFNAME=eth")
    write("fuzz_config", "settings", b"HARP_FRAMES=1024\nHARP_ECN=off\n\0HARP_CONGESTION=dctcp\0")
    port = b"net_memif0,role=client,id=0;ip=10.9.0.1/24;queues=2"
    write(
        "fuzz_config",
        "ports",
        b"\0HARP_PATH=dpdk\0HARP_DPDK=" + port + b" pci;ip=fd00::1/64;name=b",
    )
    write("fuzz_config", "ports-twice", b"\0HARP_DPDK=" + port + b"  " + port)
    write("fuzz_config", "port-alone", b"\0HARP_DPDK=net_tap0\0HARP_IFNAME=^net")
    write("fuzz_config", "unknown", b"HARP_NEW=1\nHARP_RSS=unknown\0HARP_FRAMEZ=1\0HARP_LANES=")


def leases() -> None:
    """fuzz_lease: what a good harpd says, a refusal, one that says too little."""
    mac, address = bytes.fromhex("020000000001"), bytes(10) + b"\xff\xff\n\0\0\1"
    numbers = (7, 2, 1500, 10000, 4, 3, 0)
    device = Device("eth1", *numbers, mac, 1, 2, address, b"", "/sys/x")
    welcome = pack_welcome(1, "harpd 0.1.0", [device], "HARP_PATH=xdp\n")
    rss = (2, 40, 128, bytes(range(40)), tuple(i % 4 for i in range(128)))
    said = (9, 1, "eth1", 7, 1, 4, 2048, 8192, 2048, 2, 17, 1500, False, False, 61000, 61255)
    leased = pack(Kind.LEASED, 2, Leased(*said, mac, 4096, *rss))
    refused = pack(Kind.REFUSED, 2, Refused(16, "no queue of eth1 is free"))
    start = struct.pack(">H", len(welcome)) + welcome
    write("fuzz_lease", "leased", bytes([3, _host.FDS]) + start + leased)
    write("fuzz_lease", "too-few", bytes([3, 2]) + start + leased)
    write("fuzz_lease", "too-many", bytes([3, 79]) + start + leased)
    write("fuzz_lease", "refused", b"\0\0" + start + refused)
    write("fuzz_lease", "short", b"\1\0" + struct.pack(">H", 40) + welcome[:40])
    numbers = (0, _host.DEVICE_DPDK, 0, 0, 2, 2, -1)
    port = Device("rail0", *numbers, bytes(6), 0, 3, address, b"", "")
    welcome = pack_welcome(1, "harpd 0.1.0", [port], "")
    start = struct.pack(">H", len(welcome)) + welcome
    text = "net_memif0,id=0;name=rail0;ip=10.9.0.1/24;queues=2"
    said = pack_port(2, 9, 2, 4096, text)
    write("fuzz_lease", "port", b"\7\2" + start + said)
    write("fuzz_lease", "port-no-pages", b"\7\0" + start + said)
    write("fuzz_lease", "port-refused", b"\4\0" + start + refused)


def networks() -> None:
    """fuzz_network: an interface's addresses and routes, its neighbors, and counts that lie."""
    v4 = bytes(10) + b"\xff\xff"
    address, gateway = v4 + b"\n\0\0\7", v4 + b"\n\0\0\xfe"
    tables = struct.pack("=III", 1, 2, 0) + address + bytes(15 * 16)
    tables += v4 + bytes(4) + gateway + struct.pack("=IIBBBB", 1400, 0, 0, 1, 1, 0)
    tables += v4 + b"\n\0\0\0" + bytes(16) + struct.pack("=IIBBBB", 0, 0, 24, 0, 1, 0)
    tables += bytes(62 * 44)
    found = struct.pack("=BB6sI", 2, 0, bytes.fromhex("020000000001"), 1500) + tables
    network = pack(Kind.NETWORK, 0, LeaseId(9), found)
    entries = [Neighbor(gateway, b"\2\0\0\0\0\7", _host.KNOWN), Neighbor(address, b"", 0)]
    neighbors = pack_neighbors(0, entries)

    def message(raw: bytes) -> bytes:
        return struct.pack(">BH", 1, len(raw)) + raw

    write("fuzz_network", "network", message(network))
    write("fuzz_network", "neighbors", message(network) + message(neighbors))
    write("fuzz_network", "cut", struct.pack(">BH", 0, 4000) + network[:900])
    lies = bytearray(network)
    lies[36:44] = b"\xff" * 8
    write("fuzz_network", "counts", message(bytes(lies)))
    lies = bytearray(neighbors)
    lies[16:20] = b"\x40\0\0\0"
    write("fuzz_network", "too-many-neighbors", message(bytes(lies)))
    gone = bytearray(network)
    gone[36:44] = bytes(8)
    write("fuzz_network", "addresses-go", message(network) + message(bytes(gone)))


def pages() -> None:
    """fuzz_page: a page with all parts, one whose table lies, one that is being written."""
    shapes = [(376, 1), (208, 1), (8, 100), (1040, 3), (320, 2)]
    table, parts, end = b"", b"", 128
    for stride, count in shapes:
        table += struct.pack("=4I", end, stride, count, 0)
        body = struct.pack("=8Q", 2, 1000, *[0] * 6) + bytes(stride * count)
        body += bytes(-len(body) % 64)
        parts += body
        end += len(body)
    head = struct.pack("=QIIQ", 0x3147415050524148, 1, len(shapes), end)
    page = (head + table).ljust(128, b"\0") + parts
    choices = struct.pack(">BHBB", 1, 319, 0, 99)
    write("fuzz_page", "whole", choices + page)
    write("fuzz_page", "beyond", choices + page[:24] + b"\xc0\xff\xff\xff" + page[28:])
    write("fuzz_page", "odd", choices + page[:128] + b"\3" + page[129:])
    write("fuzz_page", "longer", b"\3" + choices[1:] + page[:600])


def ports() -> None:
    """fuzz_port: the text of a DPDK port."""
    texts = {
        "whole": "net_memif0,role=client,id=0;ip=10.9.0.1/24;ip=fd00:9::1/64;gw=10.9.0.254;"
        "gw=fd00:9::fe;route=10.1.0.0/16@10.9.0.253;mtu=9000;vlan=5;queues=4;frames=4096;name=a",
        "pci": "0000:3b:00.0;ip=10.0.0.1/8",
        "mapped": "d;ip=::ffff:10.0.0.1/32;route=::ffff:11.0.0.0/8@::ffff:10.0.0.2",
        "twice": "d;mtu=1500;mtu=1500",
        "no-value": "d;mtu",
        "small": "d;ip=fd00::1/64;mtu=1279",
        "name": "a/b;name=" + 16 * "n",
        "line": "d\n",
        "take": "d;take=default-route",
    }
    for name, text in texts.items():
        write("fuzz_port", name, text.encode())


def drivers() -> None:
    """fuzz_driver: devices with arguments, and room for the answer or none."""
    texts = {
        "memif": "net_memif0,role=client,id=0,socket=/run/x.sock,socket-abstract=no",
        "memif-server": "net_memif1,role=server,socket=/run/x.sock,socket-abstract=no",
        "memif-buffers": "net_memif0,bsize=2048,rsize=10",
        "memif-unknown": "net_memif0,role=server,ring=10",
        "af-packet": "net_af_packet0,iface=eth1",
        "af-packet-slots": "net_af_packet0,iface=eth1,framesz=2048",
        "pci": "0000:3b:00.0,txq_inline=128",
    }
    for name, text in texts.items():
        write("fuzz_driver", name, b"\1\xff" + text.encode())
    write("fuzz_driver", "no-room", b"\0\x0c" + texts["memif"].encode())


def main() -> None:
    """All of them."""
    first = (frames, tcp, datagrams, options, records, encrypted, handles, config)
    for make in (*first, leases, networks, pages, ports, drivers):
        make()
    print(sum(1 for path in CORPUS.rglob("*") if path.is_file()), "seeds in", CORPUS)


if __name__ == "__main__":
    main()
