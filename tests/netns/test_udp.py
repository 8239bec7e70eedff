# SPDX-License-Identifier: Apache-2.0
"""HARP's UDP answers the kernel's; ports are held, others are not."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import udp_peer
from netns_tools import Tools, finish, inside

from harp.lab import Host, Lab, LabOptions

COUNT = 1000
PORT = 7000


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(ipv6=request.param)) as lab:
        yield lab


def kernel_socket(host: Host, timeout_s: float = 5) -> socket.socket:
    """A UDP socket of the kernel's in the host's namespace."""
    family = socket.AF_INET6 if ":" in host.address else socket.AF_INET
    made: socket.socket = inside(host, lambda: socket.socket(family, socket.SOCK_DGRAM))
    made.settimeout(timeout_s)
    return made


def echo_server(tools: Tools, host: Host) -> Any:
    args = [*udp_peer.PROGRAM, host.address, str(PORT)]
    return tools.serve(host, [*args, *tools.side(host, "harp")])


def end(server: Any) -> Any:
    server.terminate()
    return json.loads(finish(server)[0].splitlines()[-1])


@pytest.mark.parametrize("size", [4, 1400])
def test_kernel_calls_harp(tools: Tools, family: Lab, size: int) -> None:
    here, there = family.hosts
    server = echo_server(tools, there)
    with kernel_socket(here) as sock:
        sock.connect((there.address, PORT))
        for n in range(COUNT):
            sent = n.to_bytes(4, "little") + bytes((n + i) & 255 for i in range(size - 4))
            sock.send(sent)
            assert sock.recv(9000) == sent
        sock.send(b"")
        assert sock.recv(9000) == b""
    report = end(server)
    assert report["received"] == report["sent"] == COUNT + 1
    assert report["steering"]["redirect_udp"] == COUNT + 1
    assert report["stats"]["drop_udp_checksum"] == 0


def test_other_ports_stay_the_kernel_s(tools: Tools, family: Lab) -> None:
    """A held port can't be bound; others, and TCP's of the same number, are free."""
    here, there = family.hosts
    server = echo_server(tools, there)
    with kernel_socket(there) as sock, kernel_socket(here) as peer:
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            sock.bind((there.address, PORT))
        sock.bind((there.address, PORT + 1))
        peer.sendto(b"to the kernel", (there.address, PORT + 1))
        assert sock.recv(100) == b"to the kernel"

    held = (there.address, PORT)
    inside(there, lambda: socket.create_server(held, family=peer.family)).close()
    report = end(server)
    assert report["received"] == 0
    # Given back when its holder ends.
    with kernel_socket(there) as sock:
        sock.bind((there.address, PORT))
