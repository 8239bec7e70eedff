# SPDX-License-Identifier: Apache-2.0
"""Kernel connections whose packets arrive on a chosen queue of HARP's host."""

import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import pytest
from netns_tools import inside

from harp.lab import Host

# The key of the Microsoft RSS specification's examples.
KEY = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
RULE = f"toeplitz:{KEY}"
_TOTAL_RETRANS = 100  # tcpi_total_retrans in struct tcp_info


def queue_of(source: tuple[str, int], to: tuple[str, int], queues: int) -> int:
    """Return the queue: Toeplitz hash of addresses and ports, round-robin table of 128 entries."""
    ends = [(ip_address(address).packed, port.to_bytes(2, "big")) for address, port in (source, to)]
    data = ends[0][0] + ends[1][0] + ends[0][1] + ends[1][1]
    bits, count, key = int.from_bytes(data, "big"), 8 * len(data), int(KEY, 16)
    result = 0
    for at in range(count):
        if bits >> (count - 1 - at) & 1:
            result ^= key >> (4 * len(KEY) - 32 - at)
    return (result & 0xFFFFFFFF) % 128 % queues


def source_port(
    source: str, to: tuple[str, int], queue: int, queues: int, after: int = 20000
) -> int:
    """Return the first port above `after` whose packets arrive on the queue."""
    ports = range(after + 1, 60000)
    return next(port for port in ports if queue_of((source, port), to, queues) == queue)


@contextmanager
def connection(
    host: Host, source_port: int, to: tuple[str, int], timeout_s: float = 60
) -> Iterator[socket.socket]:
    with _bound(host, source_port) as sock:
        sock.settimeout(timeout_s)
        sock.connect(to)
        yield sock


def syns_until_refused(host: Host, source_port: int, to: tuple[str, int]) -> int:
    """Return how many SYNs the kernel sent until an RST arrived."""
    with _bound(host, source_port) as sock:
        sock.setblocking(False)
        sock.connect_ex(to)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        assert poll.poll(60_000), "neither connected nor refused"
        retransmits = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[_TOTAL_RETRANS:]
        with pytest.raises(ConnectionRefusedError):
            sock.connect(to)
        return 1 + int.from_bytes(retransmits, sys.byteorder)


def _bound(host: Host, source_port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host.address else socket.AF_INET
    sock: socket.socket = inside(host, lambda: socket.socket(family))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host.address, source_port))
    return sock


def check_echo(sock: socket.socket, count: int) -> None:
    """Check that the peer returns every byte unchanged."""
    sent = bytes(range(251)) * (count // 251)
    sender = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR)))
    sender.start()
    received = bytearray()
    while part := sock.recv(1 << 16):
        received += part
    sender.join()
    assert received == sent
