# SPDX-License-Identifier: Apache-2.0
"""HARP's UDP answers the kernel's, and reserves only its own ports."""

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
    family = socket.AF_INET6 if ":" in host.address else socket.AF_INET
    sock: socket.socket = inside(host, lambda: socket.socket(family, socket.SOCK_DGRAM))
    sock.settimeout(timeout_s)
    return sock


def echo_server(tools: Tools, host: Host) -> Any:
    args = [*udp_peer.PROGRAM, host.address, str(PORT)]
    return tools.serve(host, [*args, *tools.options(host, "harp")])


def stop(server: Any) -> Any:
    server.terminate()
    return json.loads(finish(server)[0].splitlines()[-1])


@pytest.mark.parametrize("size", [4, 1400])
def test_harp_echoes_datagrams_of_the_kernel(tools: Tools, family: Lab, size: int) -> None:
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
    report = stop(server)
    assert report["received"] == report["sent"] == COUNT + 1
    assert report["steering"]["redirect_udp"] == COUNT + 1
    assert report["stats"]["drop_udp_checksum"] == 0


def test_other_ports_remain_available_to_the_kernel(tools: Tools, family: Lab) -> None:
    """HARP's port can't be bound. Other ports, and the TCP port of the same number, are free."""
    here, there = family.hosts
    server = echo_server(tools, there)
    with kernel_socket(there) as sock, kernel_socket(here) as peer:
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            sock.bind((there.address, PORT))
        sock.bind((there.address, PORT + 1))
        peer.sendto(b"to the kernel", (there.address, PORT + 1))
        assert sock.recv(100) == b"to the kernel"

    address = (there.address, PORT)
    inside(there, lambda: socket.create_server(address, family=peer.family)).close()
    report = stop(server)
    assert report["received"] == 0
    # The port is free when the process has exited.
    with kernel_socket(there) as sock:
        sock.bind((there.address, PORT))
