# SPDX-License-Identifier: Apache-2.0
"""HARP on net_pcap reads packets from a file and writes the replies to another file."""

import os
import subprocess
import sys
from pathlib import Path

from dpdk_tools import ENVIRONMENT, DpdkTools
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from scapy.utils import rdpcap, wrpcap

HARP_MAC, PEER_MAC = "02:70:63:61:70:00", "02:00:00:00:00:02"  # net_pcap sets the first
# Runs a stack until it has sent argv[2] packets.
STACK = """
import sys, time
import harp
with harp.Instance(sys.argv[1]) as instance:
    deadline = time.monotonic() + 30
    while instance.stats()["tx_packets"] < int(sys.argv[2]):
        stats = {name: value for name, value in instance.stats().items() if value}
        assert time.monotonic() < deadline, stats
        time.sleep(0.005)
"""


def replies(tools: DpdkTools, folder: Path, packets: list[Packet]) -> list[Packet]:
    """HARP's replies to packets."""
    wrpcap(str(folder / "in.pcap"), packets)
    device = f"net_pcap0,rx_pcap={folder}/in.pcap,tx_pcap={folder}/out.pcap"
    spec = f"dpdk:{device};ip=10.9.0.1/24;ip=fd00:9::1/64"
    done = subprocess.run(
        [sys.executable, "-c", STACK, spec, str(len(packets))],
        env=os.environ | ENVIRONMENT | {"HARP_LIBDIR": str(tools.library)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(rdpcap(str(folder / "out.pcap")))


def test_packets_of_a_file_are_answered(tools: DpdkTools, tmp_path: Path) -> None:
    """ARP, ping, and a SYN to a closed port. scapy confirms the checksums of the replies."""
    ethernet = Ether(src=PEER_MAC, dst=HARP_MAC)
    ip = IP(src="10.9.0.2", dst="10.9.0.1")
    requests = [
        Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff")
        / ARP(op="who-has", hwsrc=PEER_MAC, psrc="10.9.0.2", pdst="10.9.0.1"),
        ethernet / ip / ICMP(id=7, seq=1) / b"harp",
        ethernet / ip / TCP(sport=1234, dport=7000, flags="S", seq=1000, options=[("MSS", 1460)]),
    ]
    packets = replies(tools, tmp_path, requests)
    (arp,) = (packet[ARP] for packet in packets if ARP in packet and packet[ARP].op == 2)
    assert (arp.psrc, arp.pdst, arp.hwdst) == ("10.9.0.1", "10.9.0.2", PEER_MAC)
    (pong,) = (packet for packet in packets if ICMP in packet)
    (reset,) = (packet for packet in packets if TCP in packet)
    assert (pong[ICMP].type, pong[ICMP].id, bytes(pong[ICMP].payload)[:4]) == (0, 7, b"harp")
    assert (str(reset[TCP].flags), reset[TCP].ack, reset[TCP].dport) == ("RA", 1001, 1234)
    for packet in (pong, reset):
        raw = bytes(packet)
        del packet[IP].chksum
        if TCP in packet:
            del packet[TCP].chksum
        else:
            del packet[ICMP].chksum
        assert bytes(packet) == raw
