# SPDX-License-Identifier: Apache-2.0
"""The host is reconfigured while HARP runs, and routes that the stack must interpret."""

import json
import signal
import socket
import struct
import subprocess

import pytest
from netns_tools import Tools, call_until_answered, finish, inside, outcome, wait_until

from harp.lab import Lab

REQUEST = struct.Struct("=IIQQ")  # struct request of tools/tcp/main.c
REQUEST_MAGIC, TEST_SEND = 0x48545033, 0
TCP_CLOSE = 7


def test_link_and_mtu_changes_are_reported_and_survived(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = tools.serve_tcp(there, "harp", 61000)
    there.run("ip", "link", "set", there.ifname, "mtu", "1400")
    there.run("ip", "link", "set", there.ifname, "down")
    there.run("ip", "link", "set", there.ifname, "up")
    assert call_until_answered(tools, here, there.address)["bytes"] == 100000
    log = [line.split(": ", 1)[1] for line in finish(server)[1].splitlines()]
    name = there.ifname
    assert f"{name}: the MTU changed from 1500 to 1400; HARP uses 1500 until restarted" in (
        line.rstrip() for line in log
    )
    assert f"{name} is down; its connections wait until it is up or they time out" in log
    assert f"{name} is up again" in log


def read_until(server: subprocess.Popen[str], text: str) -> None:
    """Read the server's log until a line has the text; fail if the server exits before."""
    assert server.stderr is not None
    if not any(text in line for line in server.stderr):
        pytest.fail(f"the server did not log {text!r}")


def has_retransmitted_or_reset(sock: socket.socket) -> bool:
    """Read tcpi_retransmits and tcpi_state of a kernel connection."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
    return info[2] > 0 or info[0] == TCP_CLOSE


def test_an_address_returns_before_its_process_notices(tools: Tools, family_lab: Lab) -> None:
    """The kernel then receives no packet of HARP's connection and does not reset it."""
    here, there = family_lab.hosts
    is_v6 = ":" in there.address
    serve = [tools.tcp, "serve", there.address, "61000", *tools.options(there, "harp")]
    server = tools.serve(there, [*serve, "-o", "json"])
    address = [f"{there.address}/{64 if is_v6 else 24}", "dev", there.ifname]
    request = REQUEST.pack(REQUEST_MAGIC, TEST_SEND, 0, 0)
    with inside(here, lambda: socket.create_connection((there.address, 61000), 30)) as sock:
        sock.sendall(request[:12])
        there.run("ip", "address", "del", *address)
        read_until(server, f"{there.address} was removed")
        server.send_signal(signal.SIGSTOP)
        there.run("ip", "address", "add", *address, *(["nodad"] if is_v6 else []))
        sock.sendall(request[12:])
        wait_until(lambda: has_retransmitted_or_reset(sock), "a retransmission")
        server.send_signal(signal.SIGCONT)
        assert sock.recv(8, socket.MSG_WAITALL) == bytes(8)  # bytes received
    steering = json.loads(finish(server)[0].splitlines()[-1])["steering"]
    assert steering["pass_address"] == 0


def test_a_multipath_route_uses_the_next_hop_of_the_interface(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    there.run("ip", "address", "add", "192.0.2.7", "dev", "lo")
    here.run("ip", "link", "add", "br0", "type", "bridge")
    here.run("ip", "address", "add", "10.79.0.1/24", "dev", "br0")
    here.run("ip", "link", "set", "br0", "up")
    hops = ["nexthop", "via", "10.79.0.9", "dev", "br0"]
    hops += ["nexthop", "via", there.address, "dev", here.ifname]
    here.run("ip", "route", "add", "192.0.2.0/24", *hops)
    tools.serve(there, [tools.tcp, "serve", "192.0.2.7", "7000", "--kernel"])
    report = tools.call_tcp(here, "harp", "send", "192.0.2.7", 7000, "--bytes", "100000")
    assert report["bytes"] == 100000


def test_a_gateway_of_the_other_family_is_not_supported(tools: Tools, dual: Lab) -> None:
    """HARP reports a route with an RFC 5549 next hop as unreachable."""
    here, there = dual.hosts
    route = ["192.0.2.0/24", "via", "inet6", "fd77::2", "dev", here.ifname]
    there.run("ip", "address", "add", "192.0.2.7", "dev", "lo")
    here.run("ip", "route", "add", *route)
    args = [tools.tcp, "send", "192.0.2.7", "7000", *tools.options(here, "harp")]
    _, err, status = outcome(here, args)
    assert status == 1
    assert "Network is unreachable" in err
