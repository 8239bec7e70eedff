# SPDX-License-Identifier: Apache-2.0
"""HARP on net_pcap: a file of packets is read to its end, and answered into another file."""

import os
import subprocess
import sys
from pathlib import Path

from dpdk_tools import ENVIRONMENT, Ends
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from scapy.utils import rdpcap, wrpcap

US, THEM = "02:70:63:61:70:00", "02:00:00:00:00:02"  # ours is the driver's
# Listens until so many packets have been sent.
ANSWER = """
import sys, time
import harp
with harp.Instance(sys.argv[1]) as instance:
    deadline = time.monotonic() + 30
    while instance.stats()["tx_packets"] < int(sys.argv[2]):
        stats = {name: value for name, value in instance.stats().items() if value}
        assert time.monotonic() < deadline, stats
        time.sleep(0.005)
"""


def answers(ends: Ends, folder: Path, given: list[Packet]) -> list[Packet]:
    """HARP's answers to packets."""
    wrpcap(str(folder / "in.pcap"), given)
    device = f"net_pcap0,rx_pcap={folder}/in.pcap,tx_pcap={folder}/out.pcap"
    spec = f"dpdk:{device};ip=10.9.0.1/24;ip=fd00:9::1/64"
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, spec, str(len(given))],
        env=os.environ | ENVIRONMENT | {"HARP_LIBDIR": str(ends.library)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(rdpcap(str(folder / "out.pcap")))


def test_what_a_file_asks_is_answered(ends: Ends, tmp_path: Path) -> None:
    """ARP, ping and a SYN to a closed port; scapy computes the checksums again."""
    head = Ether(src=THEM, dst=US)
    there = IP(src="10.9.0.2", dst="10.9.0.1")
    given = [
        Ether(src=THEM, dst="ff:ff:ff:ff:ff:ff")
        / ARP(op="who-has", hwsrc=THEM, psrc="10.9.0.2", pdst="10.9.0.1"),
        head / there / ICMP(id=7, seq=1) / b"harp",
        head / there / TCP(sport=1234, dport=7000, flags="S", seq=1000, options=[("MSS", 1460)]),
    ]
    out = answers(ends, tmp_path, given)
    (arp,) = (each[ARP] for each in out if ARP in each and each[ARP].op == 2)
    assert (arp.psrc, arp.pdst, arp.hwdst) == ("10.9.0.1", "10.9.0.2", THEM)
    (pong,) = (each for each in out if ICMP in each)
    (reset,) = (each for each in out if TCP in each)
    assert (pong[ICMP].type, pong[ICMP].id, bytes(pong[ICMP].payload)[:4]) == (0, 7, b"harp")
    assert (str(reset[TCP].flags), reset[TCP].ack, reset[TCP].dport) == ("RA", 1001, 1234)
    for each in (pong, reset):
        raw = bytes(each)
        del each[IP].chksum
        if TCP in each:
            del each[TCP].chksum
        else:
            del each[ICMP].chksum
        assert bytes(each) == raw
