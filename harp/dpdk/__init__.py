# SPDX-License-Identifier: Apache-2.0
"""DPDK from Python: ports, their counters, pools of packet buffers, bursts of packets.

    from harp import dpdk

    with dpdk.Port("net_ring0") as port:
        port.send(Ether() / IP() / UDP() / b"hello")   # scapy's packets, or bytes
        for packet in port.receive(timeout=1):
            print(bytes(packet))

Packets stay in DPDK's memory. Packet.data is a view of that memory, and is valid until the packet
is sent or freed. The use of a closed or freed object raises DpdkError. docs/dpdk-python.md is the
guide. The import raises MissingError if HARP was built without DPDK, or DPDK's libraries are not
installed.
"""

from harp.dpdk._binding import DpdkError, MissingError
from harp.dpdk.eal import huge_pages, running, start, version
from harp.dpdk.packets import Burst, Packet
from harp.dpdk.pool import Pool
from harp.dpdk.port import Link, Port, PortInfo
from harp.dpdk.traffic import Count, generate, ping, sink

__all__ = [
    "Burst",
    "Count",
    "DpdkError",
    "Link",
    "MissingError",
    "Packet",
    "Pool",
    "Port",
    "PortInfo",
    "generate",
    "huge_pages",
    "ping",
    "running",
    "sink",
    "start",
    "version",
]
