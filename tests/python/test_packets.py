# SPDX-License-Identifier: Apache-2.0
"""The stack against packets made by scapy, one at a time, under a virtual clock."""

from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from harp._core import CallbackNic, Connection, Event, Listener, Stack

OUR_MAC, PEER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
OURS, PEER = "10.0.0.1", "10.0.0.2"
PORT, PEER_PORT = 7000, 40000
MS = 1_000_000


class Rig:
    """A stack that listens, and the hand that writes its packets."""

    def __init__(self) -> None:
        self.now = 10**9
        self.nic = CallbackNic(mac=OUR_MAC)
        self.stack = Stack(self.nic, seed=7, now_ns=self.now)
        self.stack.address_add(OURS, 24)
        self.stack.neighbour_set(PEER, PEER_MAC)
        self.listener: Listener = self.stack.listen(PORT)
        self.stack.poll(self.now)
        self.nic.collect()
        self.seq = 1000  # ours to send next, as the peer
        self.ack = 0

    def close(self) -> None:
        self.stack.close()
        self.nic.close()

    def raw(self, frame: bytes) -> list[Packet]:
        """Injects bytes, polls once, returns what came out."""
        self.nic.inject(frame)
        self.now += MS
        self.stack.poll(self.now)
        return [Ether(out) for out in self.nic.collect()]

    def wait(self, duration_ns: int) -> list[Packet]:
        """Lets the clock run, polling at each deadline."""
        out, end = [], self.now + duration_ns
        while True:
            deadline = self.stack.next_deadline_ns
            self.now = min(end, max(self.now, deadline if deadline is not None else end))
            self.stack.poll(self.now)
            out += [Ether(frame) for frame in self.nic.collect()]
            if self.now >= end:
                return out
            self.now += 1

    def ip(self, payload: Packet, **fields: Any) -> list[Packet]:
        fields = {"src": PEER, "dst": OURS} | fields
        return self.raw(bytes(Ether(src=PEER_MAC, dst=OUR_MAC) / IP(**fields) / payload))

    def tcp(self, flags: str, data: bytes = b"", **fields: Any) -> list[Packet]:
        fields = {"seq": self.seq, "ack": self.ack, "window": 65535} | fields
        fields = {"sport": PEER_PORT, "dport": PORT} | fields
        segment = TCP(flags=flags, **fields)
        return self.ip(segment / Raw(data) if data else segment)

    def open(self, options: list[Any] | None = None) -> Connection:
        """A handshake by hand; the accepted connection."""
        reply = self.tcp("S", ack=0, options=options or [("MSS", 1460)])[0][TCP]
        assert str(reply.flags) == "SA"
        self.seq, self.ack = self.seq + 1, reply.seq + 1
        self.tcp("A")
        conn = self.listener.accept()
        assert conn is not None
        return conn


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def checksums_good(packet: Packet) -> bool:
    """Recomputes IP and TCP checksums."""
    again = packet.copy()
    del again[IP].chksum
    del again[TCP].chksum
    again = Ether(bytes(again))
    return bool(again[IP].chksum == packet[IP].chksum and again[TCP].chksum == packet[TCP].chksum)


# ---- handshake -----------------------------------------------------------------------------------


def test_syn_is_answered_with_syn_ack(rig: Rig) -> None:
    replies = rig.tcp("S", ack=0, options=[("MSS", 1460)])
    assert len(replies) == 1
    reply = replies[0]
    assert reply[Ether].dst == PEER_MAC
    assert reply[IP].src == OURS
    assert str(reply[TCP].flags) == "SA"
    assert reply[TCP].ack == rig.seq + 1
    assert checksums_good(reply)


@pytest.mark.parametrize(
    ("offer", "agreed"),
    [
        ([("MSS", 1460)], set()),
        ([("MSS", 1460), ("WScale", 7)], {"WScale"}),
        ([("MSS", 1460), ("Timestamp", (11, 0))], {"Timestamp"}),
        ([("MSS", 1460), ("WScale", 7), ("Timestamp", (11, 0))], {"WScale", "Timestamp"}),
    ],
)
def test_only_offered_options_are_agreed(rig: Rig, offer: list[Any], agreed: set[str]) -> None:
    reply = rig.tcp("S", ack=0, options=offer)[0][TCP]
    options = dict(reply.options)
    assert options["MSS"] == 1460
    assert {name for name in ("WScale", "Timestamp") if name in options} == agreed
    if "Timestamp" in agreed:
        assert options["Timestamp"][1] == 11


def test_the_peers_mss_is_respected(rig: Rig) -> None:
    conn = rig.open([("MSS", 600)])
    conn.send(bytes(2000))
    rig.now += MS
    rig.stack.poll(rig.now)
    sizes = [len(Ether(frame)[TCP].payload) for frame in rig.nic.collect()]
    assert sizes
    assert max(sizes) == 600


def test_a_lost_syn_ack_is_sent_again(rig: Rig) -> None:
    first = rig.tcp("S", ack=0)[0][TCP]
    again = [packet[TCP] for packet in rig.wait(3000 * MS) if TCP in packet]
    assert again
    assert {(str(p.flags), p.seq, p.ack) for p in again} == {("SA", first.seq, first.ack)}


def test_connect_sends_a_syn_and_completes(rig: Rig) -> None:
    conn = rig.stack.connect(PEER, 80)
    rig.now += MS
    rig.stack.poll(rig.now)
    syn = Ether(rig.nic.collect()[0])[TCP]
    assert str(syn.flags) == "S"
    assert dict(syn.options)["MSS"] == 1460
    fields = {"sport": 80, "dport": syn.sport, "seq": 5, "ack": syn.seq + 1}
    replies = rig.tcp("SA", **fields)
    assert [str(reply[TCP].flags) for reply in replies] == ["A"]
    events = {id(c): e for c, e in rig.stack.next_events()}
    assert events[id(conn)] & Event.CONNECTED
    assert conn.state == "ESTABLISHED"
    conn.abort()


def test_connect_is_refused_by_rst(rig: Rig) -> None:
    conn = rig.stack.connect(PEER, 80)
    rig.now += MS
    rig.stack.poll(rig.now)
    syn = Ether(rig.nic.collect()[0])[TCP]
    rig.tcp("RA", sport=80, dport=syn.sport, seq=0, ack=syn.seq + 1)
    assert conn.error == 111
    conn.close()


# ---- data ----------------------------------------------------------------------------------------


def test_data_arrives_and_is_acknowledged(rig: Rig) -> None:
    conn = rig.open()
    replies = rig.tcp("PA", b"hello") + rig.wait(300 * MS)
    assert conn.recv() == b"hello"
    assert replies[-1][TCP].ack == rig.seq + 5
    conn.abort()


def test_out_of_order_data_waits_for_the_gap(rig: Rig) -> None:
    conn = rig.open()
    late = rig.tcp("PA", b"world", seq=rig.seq + 6)
    assert late[0][TCP].ack == rig.seq, "a duplicate ACK at once (RFC 5681 section 4.2)"
    with pytest.raises(BlockingIOError):
        conn.recv()
    rig.tcp("PA", b"hello ")
    got = conn.recv()
    while len(got) < 11:
        got += conn.recv()
    assert got == b"hello world"
    conn.abort()


def test_a_duplicate_is_dropped_and_acknowledged(rig: Rig) -> None:
    conn = rig.open()
    rig.tcp("PA", b"hello")
    assert conn.recv() == b"hello"
    before = rig.stack.stat("drop_tcp_duplicate")
    replies = rig.tcp("PA", b"hello")
    assert replies[0][TCP].ack == rig.seq + 5
    assert rig.stack.stat("drop_tcp_duplicate") == before + 1
    conn.abort()


def test_unacknowledged_data_is_sent_again(rig: Rig) -> None:
    conn = rig.open()
    conn.send(b"ping")
    # Timeouts in a row make it ask for the next hop again: ARP among them.
    sent = [packet for packet in rig.wait(2000 * MS) if TCP in packet and packet[TCP].payload]
    assert len(sent) >= 2
    assert {bytes(packet[TCP].payload) for packet in sent} == {b"ping"}
    assert rig.stack.stat("tcp_retransmits") >= 1
    conn.abort()


def test_fin_ends_the_stream_in_order(rig: Rig) -> None:
    conn = rig.open()
    rig.tcp("FPA", b"last")
    assert conn.recv() == b"last"
    assert conn.recv() == b""
    conn.close()
    flags = {str(packet[TCP].flags) for packet in rig.wait(50 * MS)}
    assert any("F" in word for word in flags)


# ---- resets --------------------------------------------------------------------------------------


def test_a_segment_for_nobody_is_answered_with_rst(rig: Rig) -> None:
    reply = rig.tcp("A", dport=7999, ack=77)[0][TCP]
    assert str(reply.flags) == "R"
    assert reply.seq == 77, "RFC 9293 section 3.10.7.1"
    assert rig.stack.stat("drop_tcp_no_flow") == 1


def test_a_syn_to_a_closed_port_is_refused(rig: Rig) -> None:
    reply = rig.tcp("S", dport=7999, ack=0)[0][TCP]
    assert str(reply.flags) == "RA"
    assert reply.ack == rig.seq + 1


def test_a_rst_for_nobody_is_not_answered(rig: Rig) -> None:
    assert rig.tcp("R", dport=7999) == []


def test_an_exact_rst_resets(rig: Rig) -> None:
    conn = rig.open()
    rig.tcp("R")
    assert conn.error == 104
    assert rig.stack.stat("tcp_rst_in") == 1
    conn.close()


def test_a_rst_inside_the_window_is_challenged(rig: Rig) -> None:
    conn = rig.open()
    replies = rig.tcp("R", seq=rig.seq + 100)
    assert [str(reply[TCP].flags) for reply in replies] == ["A"], "RFC 5961 section 3.2"
    assert conn.state == "ESTABLISHED"
    assert rig.stack.stat("tcp_challenge_acks") == 1
    conn.abort()


def test_a_rst_outside_the_window_is_ignored(rig: Rig) -> None:
    conn = rig.open()
    assert rig.tcp("R", seq=(rig.seq - 100000) % 2**32) == []
    assert conn.state == "ESTABLISHED"
    conn.abort()


def test_a_syn_inside_a_connection_is_challenged(rig: Rig) -> None:
    conn = rig.open()
    replies = rig.tcp("S", seq=rig.seq + 10)
    assert [str(reply[TCP].flags) for reply in replies] == ["A"], "RFC 5961 section 4.2"
    assert conn.state == "ESTABLISHED"
    conn.abort()


def test_an_ack_of_the_future_is_not_believed(rig: Rig) -> None:
    conn = rig.open()
    before = rig.stack.stat("drop_tcp_ack")
    rig.tcp("A", ack=rig.ack + 100000)
    assert rig.stack.stat("drop_tcp_ack") == before + 1
    assert conn.acked_bytes == 0
    conn.abort()


# ---- ARP and ICMP --------------------------------------------------------------------------------


def test_arp_is_answered(rig: Rig) -> None:
    request = Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(
        op=1, hwsrc=PEER_MAC, psrc=PEER, pdst=OURS
    )
    reply = rig.raw(bytes(request))[0][ARP]
    assert (reply.op, reply.hwsrc, reply.psrc) == (2, OUR_MAC, OURS)


def test_arp_for_others_is_not_answered(rig: Rig) -> None:
    request = Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(
        op=1, hwsrc=PEER_MAC, psrc=PEER, pdst="10.0.0.9"
    )
    assert rig.raw(bytes(request)) == []


@pytest.mark.parametrize("size", [0, 1, 56, 1472])
def test_ping_is_answered_byte_for_byte(rig: Rig, size: int) -> None:
    data = bytes(range(256)) * 6
    reply = rig.ip(ICMP(type=8, id=3, seq=4) / Raw(data[:size]))[0]
    assert (reply[ICMP].type, reply[ICMP].id, reply[ICMP].seq) == (0, 3, 4)
    assert bytes(reply[ICMP].payload) == data[:size]


# ---- malformed: dropped, counted under its reason, answered by nothing ---------------------------


def eth(payload: Packet | bytes, **fields: Any) -> bytes:
    return bytes(Ether(**({"src": PEER_MAC, "dst": OUR_MAC} | fields)) / payload)


def segment(**fields: Any) -> Packet:
    return TCP(**({"sport": PEER_PORT, "dport": PORT, "flags": "S", "seq": 1} | fields))


def ip(payload: Packet | bytes, **fields: Any) -> bytes:
    return eth(IP(**({"src": PEER, "dst": OURS} | fields)) / payload)


def options(raw: bytes) -> bytes:
    """A SYN whose option bytes are these (a multiple of 4)."""
    head = bytearray(bytes(segment(dataofs=5 + len(raw) // 4, chksum=0))[:20]) + raw
    packet = IP(src=PEER, dst=OURS, proto=6) / Raw(bytes(head))
    built = Ether(eth(packet))
    body = built[IP].payload
    parsed = TCP(bytes(body)[:20])
    del parsed.chksum
    from scapy.layers.inet import in4_chksum

    total = in4_chksum(6, built[IP], bytes(head))
    head[16:18] = total.to_bytes(2, "big")
    return eth(IP(src=PEER, dst=OURS, proto=6) / Raw(bytes(head)))


MALFORMED = {
    "ethernet-7-bytes": (b"\x02" * 7, "drop_eth_short"),
    "ethernet-13-bytes": (b"\x02" * 13, "drop_eth_short"),
    "ethernet-other-mac": (eth(IP() / segment(), dst="02:00:00:00:00:99"), "drop_eth_not_ours"),
    "ethernet-unknown-type": (eth(b"x" * 60, type=0x88B5), "drop_eth_type"),
    "arp-truncated": (eth(bytes(ARP())[:20], type=0x0806), "drop_arp_bad"),
    "arp-wrong-hardware": (eth(ARP(hwtype=6, psrc=PEER, pdst=OURS)), "drop_arp_bad"),
    "ip-truncated": (eth(bytes(IP())[:12], type=0x0800), "drop_ip_short"),
    "ip-version-5": (ip(segment(), version=5), "drop_ip_version"),
    "ip-header-length-4": (ip(segment(), ihl=4), "drop_ip_version"),
    "ip-total-length-beyond": (ip(segment(), len=1000), "drop_ip_short"),
    "ip-total-length-below": (ip(segment(), len=10), "drop_ip_short"),
    "ip-checksum": (ip(segment(), chksum=0x1234), "drop_ip_checksum"),
    "ip-other-destination": (ip(segment(), dst="10.0.0.77"), "drop_ip_not_ours"),
    "ip-source-broadcast": (ip(segment(), src="255.255.255.255"), "drop_ip_source"),
    "ip-source-multicast": (ip(segment(), src="224.0.0.1"), "drop_ip_source"),
    "ip-source-ours": (ip(segment(), src=OURS), "drop_ip_source"),
    "ip-first-fragment": (ip(segment(), flags="MF"), "drop_ip_fragment"),
    "ip-later-fragment": (ip(segment(), frag=8), "drop_ip_fragment"),
    "ip-protocol": (ip(Raw(b"x" * 20), proto=132), "drop_ip_protocol"),
    "udp": (ip(UDP(sport=1, dport=2) / Raw(b"x")), "drop_ip_protocol"),
    "icmp-truncated": (ip(Raw(b"\x08\x00"), proto=1), "drop_icmp_bad"),
    "icmp-checksum": (ip(ICMP(type=8, chksum=0x1111)), "drop_icmp_bad"),
    "tcp-truncated": (ip(Raw(bytes(segment())[:12]), proto=6), "drop_tcp_short"),
    "tcp-offset-below-5": (ip(segment(dataofs=4)), "drop_tcp_short"),
    "tcp-offset-beyond": (ip(segment(dataofs=15)), "drop_tcp_short"),
    "tcp-checksum": (ip(segment(chksum=0x4321)), "drop_tcp_checksum"),
    "tcp-syn-fin": (ip(segment(flags="SF")), "drop_tcp_flags"),
    "tcp-syn-rst": (ip(segment(flags="SR")), "drop_tcp_flags"),
    "tcp-no-flags": (ip(segment(flags=0)), "drop_tcp_flags"),
    "option-length-0": (options(b"\x02\x00\x05\xb4"), "drop_tcp_options"),
    "option-length-1": (options(b"\x08\x01\x00\x00"), "drop_tcp_options"),
    "option-beyond-header": (options(b"\x01\x01\x02\x08"), "drop_tcp_options"),
    "option-mss-length-3": (options(b"\x02\x03\x05\x00"), "drop_tcp_options"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_dropped_with_its_reason(rig: Rig, name: str) -> None:
    frame, counter = MALFORMED[name]
    before = rig.stack.stats()
    replies = rig.raw(frame)
    after = rig.stack.stats()
    changed = {
        key: after[key] - before[key]
        for key in after
        if key.startswith("drop_") and after[key] != before[key]
    }
    assert changed == {counter: 1}
    assert replies == []
    assert after["frames_free"] == before["frames_free"], "the frame went home"
    assert rig.tcp("S", ack=0, sport=PEER_PORT + 1), "the stack lives on"
