# SPDX-License-Identifier: Apache-2.0
"""Connections of the kernel whose packets arrive on a chosen queue of HARP's host."""

import ctypes
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp.lab import Host
from harp.lab.netns import in_namespace

# The key of the Microsoft RSS specification's examples.
KEY = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
RULE = f"toeplitz:{KEY}"
_TOTAL_RETRANS = 100  # tcpi_total_retrans in struct tcp_info


class _Rss(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "key_bytes", "table_count", "queues")),
        ("key", ctypes.c_uint8 * 64),
        ("table", ctypes.c_uint16 * 512),
    ]


class _Endpoint(ctypes.Structure):
    _fields_ = [
        ("addr", ctypes.c_uint8 * 16),
        ("port", ctypes.c_uint16),
        ("reserved", ctypes.c_uint16),
        ("scope_id", ctypes.c_uint32),
    ]


class Prediction:
    """libharp's harp_rss_parse() and harp_rss_queue()."""

    def __init__(self, build_dir: Path, rule: str, queues: int) -> None:
        self._lib = ctypes.CDLL(str(build_dir / "dataplane" / "libharp.so"))
        self._rss = _Rss()
        assert self._lib.harp_rss_parse(rule.encode(), queues, ctypes.byref(self._rss)) == 0

    def read(self, ifname: str) -> tuple[int, int]:
        """harp_rss_read(): kind and number of queues."""
        found = _Rss()
        assert self._lib.harp_rss_read(ifname.encode(), ctypes.byref(found)) == 0
        return found.kind, found.queues

    def queue(self, source: tuple[str, int], to: tuple[str, int]) -> int:
        ends = []
        for address, port in (source, to):
            end = _Endpoint(port=port)
            assert self._lib.harp_addr_parse(address.encode(), end.addr) == 0
            ends.append(ctypes.byref(end))
        queue: int = self._lib.harp_rss_queue(ctypes.byref(self._rss), *ends)
        return queue

    def port(self, source: str, to: tuple[str, int], queue: int, after: int = 20000) -> int:
        """The first source port behind `after` whose packets arrive there."""
        return next(
            port for port in range(after + 1, 60000) if self.queue((source, port), to) == queue
        )


@contextmanager
def connection(
    host: Host, source_port: int, to: tuple[str, int], timeout_s: float = 60
) -> Iterator[socket.socket]:
    """A kernel socket of the host's, connected from a chosen port."""
    with _bound(host, source_port) as sock:
        sock.settimeout(timeout_s)
        sock.connect(to)
        yield sock


def syns_until_refused(host: Host, source_port: int, to: tuple[str, int]) -> int:
    """The SYNs that it took until there came an RST."""
    with _bound(host, source_port) as sock:
        sock.setblocking(False)
        sock.connect_ex(to)
        ended = select.poll()
        ended.register(sock, select.POLLOUT)
        assert ended.poll(60_000), "neither connected nor refused"
        again = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[_TOTAL_RETRANS:]
        with pytest.raises(ConnectionRefusedError):
            sock.connect(to)
        return 1 + int.from_bytes(again, sys.byteorder)


def _bound(host: Host, source_port: int) -> socket.socket:
    made: list[socket.socket] = []

    def make(_ipr: object) -> None:
        family = socket.AF_INET6 if ":" in host.address else socket.AF_INET
        made.append(socket.socket(family, socket.SOCK_STREAM))

    in_namespace(host.netns, make)
    made[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made[0].bind((host.address, source_port))
    return made[0]


def echoed(sock: socket.socket, count: int) -> None:
    """Every byte comes back as it went."""
    sent = bytes(range(251)) * (count // 251)
    feeder = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR)))
    feeder.start()
    got = bytearray()
    while part := sock.recv(1 << 16):
        got += part
    feeder.join()
    assert got == sent
