# SPDX-License-Identifier: Apache-2.0
"""The kernel keeps its NIC: connections never notice HARP, settings stay, its routes are used."""

import json

import pytest
from netns_tools import Tools, finish, outcome, xdp_attached

from harp.lab import Host, Lab


def offloads(host: Host) -> str:
    return host.run("ethtool", "-k", host.ifname)


def mtu(host: Host) -> int:
    return int(json.loads(host.run("ip", "-j", "link", "show", "dev", host.ifname))[0]["mtu"])


def test_a_kernel_connection_goes_on_and_no_packet_of_it_reaches_harp(
    tools: Tools, lab: Lab
) -> None:
    here, there = lab.hosts
    before = [(offloads(host), mtu(host)) for host in lab.hosts]
    kernel_server = tools.serve_tcp(there, "kernel", 7000)
    # In steps, so that it is certain to live before, while and after HARP is attached.
    kernel_client = here.popen(
        [tools.tcp, "send", there.address, "7000", "--kernel", "--bytes", str(768 << 20)]
    )
    tools.started.append(kernel_client)
    harp_server = tools.serve_tcp(there, "harp", 61000)
    assert xdp_attached(there)
    assert [(offloads(host), mtu(host)) for host in lab.hosts] == before
    report = tools.call_tcp(here, "kernel", "echo", there.address, 61000, "--count", "50")
    assert report["rtt_ns"]["min"] > 0
    harp = json.loads(finish(harp_server)[0].splitlines()[-1])
    assert kernel_client.poll() is None, "the kernel's transfer ended too early to prove anything"
    assert kernel_client.wait(60) == 0
    assert finish(kernel_server)[1] == ""
    # The kernel's packets were seen and passed; HARP got its own connection's only.
    assert harp["steering"]["pass_port"] > 100
    assert harp["nic"]["rx_packets"] == harp["steering"]["redirect_tcp"] < 300
    assert harp["stats"]["drop_tcp_no_flow"] == 0
    assert not xdp_attached(there)
    assert [(offloads(host), mtu(host)) for host in lab.hosts] == before


def test_the_kernel_resolves_harps_neighbours(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts

    def known() -> list[str]:
        table = json.loads(here.run("ip", "-j", "neigh", "show", "to", there.address))
        return [state for entry in table for state in entry["state"]]

    assert known() == []
    tools.serve_tcp(there, "kernel", 7000)
    report = tools.call_tcp(here, "harp", "send", there.address, 7000, "--bytes", "100000")
    assert report["conn"]["stats"]["arp_out"] == 0
    assert known() == ["REACHABLE"]


def test_an_unreachable_neighbour_is_one_clear_error(tools: Tools, lab: Lab) -> None:
    here = lab.hosts[0]
    args = [tools.tcp, "send", "10.77.0.99", "7000", *tools.side(here, "harp"), "--timeout", "4"]
    process = here.popen(args)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "10.77.0.99:7000" in err.splitlines()[-1]


@pytest.fixture
def routed(lab: Lab) -> Lab:
    """The second host routes to a network on a third, which is a loopback address of its own."""
    here, there = lab.hosts
    there.run("ip", "address", "add", "192.0.2.7/32", "dev", "lo")
    here.run("ip", "route", "add", "192.0.2.0/24", "via", there.address, "mtu", "1400")
    return lab


def test_a_gateway_and_its_path_mtu_are_the_kernels(tools: Tools, routed: Lab) -> None:
    here, there = routed.hosts
    args = [tools.tcp, "serve", "192.0.2.7", "7000", "--kernel"]
    tools.serve(there, args)
    report = tools.call_tcp(here, "harp", "send", "192.0.2.7", 7000, "--bytes", "1000000")
    assert report["bytes"] == 1000000
    assert report["conn"]["snd_mss_bytes"] == 1400 - 40 - 12


def test_addresses_and_routes_follow_the_kernel_while_running(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = tools.serve(
        there, [tools.tcp, "serve", "0.0.0.0", "61000", *tools.side(there, "harp"), "-o", "json"]
    )
    there.run("ip", "address", "add", "10.78.0.2/24", "dev", there.ifname)
    here.run("ip", "address", "add", "10.78.0.1/24", "dev", here.ifname)
    # Until the stack has heard of it the kernel answers for the new address, with RST.
    report = None
    for _ in range(50):
        try:
            report = tools.call_tcp(here, "kernel", "send", "10.78.0.2", 61000, "--bytes", "100000")
            break
        except AssertionError:
            continue
    assert report is not None
    assert report["bytes"] == 100000
    assert json.loads(finish(server)[0].splitlines()[-1])["bytes_received"] >= 100000


OF_THE_KERNELS = ["10.77.0.2", "0.0.0.0", "fd77::2", "::"]


@pytest.mark.parametrize("address", OF_THE_KERNELS)
def test_a_port_of_harps_is_nobody_elses(tools: Tools, dual: Lab, address: str) -> None:
    there = dual.hosts[1]
    tools.serve_tcp(there, "harp", 61000)
    refused(tools, there, address)


def refused(tools: Tools, host: Host, address: str) -> None:
    """The kernel gives nobody port 61000 of that address."""
    _, err, status = outcome(host, [tools.tcp, "serve", address, "61000", "--kernel"])
    assert "Address already in use" in err
    assert status == 1


def test_a_port_of_harps_is_nobody_elses_without_ipv6(tools: Tools, lab: Lab) -> None:
    there = lab.hosts[1]
    there.sysctl("ipv6/conf/all/disable_ipv6", 1)
    tools.serve_tcp(there, "harp", 61000)
    refused(tools, there, "0.0.0.0")


@pytest.mark.parametrize("address", OF_THE_KERNELS)
def test_a_port_of_the_kernels_is_not_harps(tools: Tools, dual: Lab, address: str) -> None:
    there = dual.hosts[1]
    tools.serve(there, [tools.tcp, "serve", address, "61000", "--kernel"])
    _, err, status = outcome(
        there, [tools.tcp, "serve", there.address, "61000", *tools.side(there, "harp")]
    )
    assert err.splitlines()[-1] == "harp-tcp: listening on port 61000: Address already in use"
    assert status == 1
