# SPDX-License-Identifier: Apache-2.0
"""HARP shares the NIC with the kernel: kernel connections and settings do not change, and HARP uses
the kernel's routes."""

import json
import sys
from typing import Any

import pytest
from netns_tools import (
    Tools,
    call_until_answered,
    finish,
    outcome,
    packets_add_up,
    run,
    xdp_attached,
)

from harp.lab import Host, Lab


def offloads(host: Host) -> str:
    return host.run("ethtool", "-k", host.ifname)


def mtu(host: Host) -> int:
    return int(json.loads(host.run("ip", "-j", "link", "show", "dev", host.ifname))[0]["mtu"])


# Either end of a kernel connection. The source sends until SIGTERM; both print count and checksum
# of the bytes. "ready": the sink listens, or the source has sent the first bytes.
TRANSFER = """
import random, signal, socket, sys, zlib
address, what = sys.argv[1:]
count = check = 0
if what == "sink":
    server = socket.create_server((address, 7000), family=socket.getaddrinfo(address, 0)[0][0])
    print("ready", flush=True)
    connection = server.accept()[0]
    while piece := connection.recv(1 << 16):
        count, check = count + len(piece), zlib.crc32(piece, check)
else:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    connection = socket.create_connection((address, 7000))
    pieces = [random.randbytes(1 << 16) for _ in range(64)]
    while not stopped:
        piece = pieces[(count >> 16) % len(pieces)]
        connection.sendall(piece)
        if not count:
            print("ready", flush=True)
        count, check = count + len(piece), zlib.crc32(piece, check)
    connection.close()
print(count, check)
"""


def test_a_kernel_connection_is_undisturbed_and_none_of_its_packets_reaches_harp(
    tools: Tools, family_lab: Lab
) -> None:
    here, there = family_lab.hosts
    before = [(offloads(host), mtu(host)) for host in family_lab.hosts]
    address = [there.address, "7001", "--kernel"]
    kernel_messages = tools.serve(there, [tools.tcp, "sink", *address])
    transfer = [sys.executable, "-c", TRANSFER, there.address]
    kernel_sink = tools.serve(there, [*transfer, "sink"])
    kernel_source = tools.serve(here, [*transfer, "source"])
    harp_server = tools.serve_tcp(there, "harp", 61000)
    assert xdp_attached(there)
    assert [(offloads(host), mtu(host)) for host in family_lab.hosts] == before
    # The transfer's progress depends on the scheduler. These messages are one packet each.
    one_by_one = ["--count", "200", "--size", "64", "--depth", "1"]
    run(here, [tools.tcp, "message", *address, *one_by_one])
    assert finish(kernel_messages)[1] == ""
    tools.call_tcp(here, "kernel", "send", there.address, 61000, "--bytes", "100000")
    harp = json.loads(finish(harp_server)[0].splitlines()[-1])
    assert kernel_source.poll() is None, "the transfer ran all the time"
    kernel_source.terminate()
    sent, received = finish(kernel_source), finish(kernel_sink)
    assert sent == received, "every byte in order, and nothing on stderr"
    assert int(sent[0].split()[0]) > 0
    # The program passed the kernel's packets; HARP received only those of its own connection.
    assert harp["steering"]["pass_port"] > 200
    assert packets_add_up(harp)
    assert harp["steering"]["redirect_tcp"] < 300
    assert harp["stats"]["drop_tcp_no_flow"] == 0
    assert not xdp_attached(there)
    assert [(offloads(host), mtu(host)) for host in family_lab.hosts] == before


def test_the_kernel_resolves_harps_neighbors(tools: Tools, family_lab: Lab) -> None:
    here, there = family_lab.hosts

    def neighbors() -> Any:
        return json.loads(here.run("ip", "-j", "-s", "neigh", "show", "to", there.address))

    assert neighbors() == []
    tools.serve_tcp(there, "kernel", 7000)
    report = tools.call_tcp(here, "harp", "send", there.address, 7000, "--bytes", "100000")
    assert report["conn"]["stats"]["arp_out"] == report["conn"]["stats"]["nd_out"] == 0
    (entry,) = neighbors()
    assert entry["state"] == ["REACHABLE"]
    # HARP confirms the neighbor: a new stale entry counts as confirmed a minute ago.
    here.run("ip", "neigh", "del", there.address, "dev", here.ifname)
    stale = ["lladdr", entry["lladdr"], "dev", here.ifname, "nud", "stale"]
    here.run("ip", "neigh", "add", there.address, *stale)
    assert neighbors()[0]["confirmed"] > 30
    tools.serve(there, [tools.tcp, "sink", there.address, "7001", "--kernel"])
    tools.call_tcp(here, "harp", "message", there.address, 7001, "--seconds", "1")
    assert neighbors()[0]["confirmed"] < 30


@pytest.mark.parametrize("address", ["10.77.0.99", "fd77::99"])
def test_an_unreachable_neighbor_is_an_error_that_names_the_peer(
    tools: Tools, dual: Lab, address: str
) -> None:
    here = dual.hosts[0]
    for family in ("ipv4", "ipv6"):  # the kernel sends three requests
        here.sysctl(f"{family}/neigh/{here.ifname}/retrans_time_ms", 100)
    args = [tools.tcp, "send", address, "7000", *tools.options(here, "harp"), "--timeout", "1"]
    _, err, status = outcome(here, args)
    assert status == 1
    assert Host("", 0, address).endpoint(7000) in err.splitlines()[-1]


def link_local(host: Host) -> str:
    shown = json.loads(host.run("ip", "-j", "-6", "address", "show", host.ifname, "scope", "link"))
    return next(str(entry["local"]) for entry in shown[0]["addr_info"] if entry)


# An address behind the second host, the destination of its route, header bytes of a segment.
REMOTE_NETWORKS = {
    "IPv4": ("192.0.2.7", "192.0.2.0/24", 40),
    "IPv6": ("2001:db8::7", "2001:db8::/64", 60),
    "IPv6-default-by-link-local": ("2001:db8::7", "default", 60),
}


@pytest.mark.parametrize("kind", REMOTE_NETWORKS)
def test_harp_uses_the_kernels_gateway_and_path_mtu(tools: Tools, dual: Lab, kind: str) -> None:
    here, there = dual.hosts
    address, prefix, headers = REMOTE_NETWORKS[kind]
    there.run("ip", "address", "add", address, "dev", "lo")
    gateway = "10.77.0.2" if kind == "IPv4" else "fd77::2"
    family = "-4" if kind == "IPv4" else "-6"
    if kind.endswith("link-local"):
        gateway = link_local(there)
        # A second route with a worse metric, which the kernel does not use.
        here.run("ip", "-6", "route", "add", prefix, "via", "fd77::99", "metric", "4096")
    dev = ["dev", here.ifname]
    here.run("ip", family, "route", "add", prefix, "via", gateway, *dev, "mtu", "1400")
    tools.serve(there, [tools.tcp, "serve", address, "7000", "--kernel"])
    report = tools.call_tcp(here, "harp", "send", address, 7000, "--bytes", "1000000")
    assert report["bytes"] == 1000000
    assert report["conn"]["snd_mss_bytes"] == 1400 - headers - 12
    states = json.loads(here.run("ip", "-j", family, "neigh", "show", "to", gateway, *dev))
    assert [entry["state"] for entry in states] == [["REACHABLE"]], "HARP confirms the gateway"


def test_link_local_addresses_work_without_global_ones(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    address = f"{link_local(there)}%{here.ifname}"
    for client, server, port in (("harp", "kernel", 7000), ("kernel", "harp", 61000)):
        process = tools.serve(
            there, [tools.tcp, "serve", "::", str(port), *tools.options(there, server)]
        )
        report = tools.call_tcp(here, client, "send", address, port, "--bytes", "100000")
        assert report["bytes"] == 100000
        finish(process)


PRINT_CLIENT = """
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6)
print("ready", flush=True)
print(server.accept()[1][0], flush=True)
"""


def source_address(tools: Tools, lab: Lab, kind: str) -> str:
    """Return the address from which the first host connects to fd77::2."""
    here, there = lab.hosts
    server = tools.serve(there, [sys.executable, "-c", PRINT_CLIENT])
    outcome(here, [tools.tcp, "send", "fd77::2", "7000", *tools.options(here, kind)])
    return finish(server)[0].strip()


@pytest.mark.parametrize(
    "addresses",
    [
        [("fd77::3/64", "preferred_lft", "0"), ("fd99::1/64",)],
        [("fd77:0:0:1::3/64",), ("fd99::1/64",)],
        [("2001:db8::1/64",), ("fd77::4/64",)],
    ],
    ids=["deprecated", "prefix", "label"],
)
def test_harp_selects_the_same_source_address_as_the_kernel(
    tools: Tools, dual: Lab, addresses: list[tuple[str, ...]]
) -> None:
    here = dual.hosts[0]
    for arguments in addresses:
        here.run("ip", "address", "add", *arguments, "dev", here.ifname, "nodad")
    of_the_kernel = source_address(tools, dual, "kernel")
    assert source_address(tools, dual, "harp") == of_the_kernel


NEW = {"IPv4": ("10.78.0.", "/24"), "IPv6": ("fd78::", "/64")}


@pytest.mark.parametrize("family", NEW)
def test_addresses_and_routes_follow_the_kernel_while_running(
    tools: Tools, lab: Lab, family: str
) -> None:
    here, there = lab.hosts
    server = tools.serve(
        there, [tools.tcp, "serve", "::", "61000", *tools.options(there, "harp"), "-o", "json"]
    )
    network, length = NEW[family]
    nodad = ["nodad"] if family == "IPv6" else []
    for host, number in ((there, 2), (here, 1)):
        address = f"{network}{number}{length}"
        host.run("ip", "address", "add", address, "dev", host.ifname, *nodad)
    assert call_until_answered(tools, here, f"{network}2")["bytes"] == 100000
    assert json.loads(finish(server)[0].splitlines()[-1])["bytes_received"] >= 100000


BIND_ADDRESSES = ["10.77.0.2", "0.0.0.0", "fd77::2", "::"]


def test_a_port_of_harp_cannot_be_bound(tools: Tools, dual: Lab) -> None:
    there = dual.hosts[1]
    tools.serve_tcp(there, "harp", 61000)
    for address in BIND_ADDRESSES:
        check_port_is_in_use(tools, there, address)


def check_port_is_in_use(tools: Tools, host: Host, address: str) -> None:
    """The kernel refuses to bind a socket to port 61000 of the address."""
    _, err, status = outcome(host, [tools.tcp, "serve", address, "61000", "--kernel"])
    assert "Address already in use" in err
    assert status == 1


def test_a_port_of_harp_cannot_be_bound_without_ipv6(tools: Tools, lab: Lab) -> None:
    there = lab.hosts[1]
    there.sysctl("ipv6/conf/all/disable_ipv6", 1)
    tools.serve_tcp(there, "harp", 61000)
    check_port_is_in_use(tools, there, "0.0.0.0")


@pytest.mark.parametrize("address", BIND_ADDRESSES)
def test_harp_cannot_listen_on_a_port_of_a_kernel_socket(
    tools: Tools, dual: Lab, address: str
) -> None:
    there = dual.hosts[1]
    tools.serve(there, [tools.tcp, "serve", address, "61000", "--kernel"])
    _, err, status = outcome(
        there, [tools.tcp, "serve", there.address, "61000", *tools.options(there, "harp")]
    )
    assert err.splitlines()[-1] == "harp-tcp: listening on port 61000: Address already in use"
    assert status == 1
