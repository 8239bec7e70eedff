# SPDX-License-Identifier: Apache-2.0
"""The device beside an interface: who gets it, what comes through it, and that it goes."""

import json
import signal

import pytest
from netns_tools import NO_BESIDE, Tools, finish, outcome, wait_until

from harp.lab import Host, Lab, LabOptions

MIB = 1 << 20


def links(host: Host) -> dict[str, dict[str, object]]:
    found = json.loads(host.run("ip", "-j", "-d", "link", "show"))
    return {link["ifname"]: link for link in found}


def beside(host: Host) -> str:
    """The name that the device has, or would have."""
    return f"harp{links(host)[host.ifname]['ifindex']}"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_with_its_process(tools: Tools, lab: Lab, how: signal.Signals) -> None:
    host = lab.hosts[0]
    name = beside(host)
    server = tools.serve_tcp(host, "harp", 61000)
    device = links(host)[name]
    assert device["xdp"]["prog"]["name"] == "harp_side"  # type: ignore[index]
    assert "LOWER_UP" not in device["flags"]  # type: ignore[operator]
    assert "xdp" not in links(host)[host.ifname]
    assert host.run("ip", "-j", "address", "show", "dev", name, "up").count('"local"') == 0
    server.send_signal(how)
    server.communicate()
    wait_until(lambda: name not in links(host), "the device's end")


@pytest.mark.parametrize("before", [(), NO_BESIDE], ids=["may ask", "may not ask"])
def test_who_is_there_is_there_for_everybody(
    tools: Tools, lab: Lab, before: tuple[str, ...]
) -> None:
    """Whose programs are at the hook only CAP_SYS_ADMIN may ask."""
    host = lab.hosts[0]
    tools.serve_tcp(host, "harp", 61000)
    args = [*before, tools.tcp, "serve", host.address, "61001", *tools.side(host, "harp")]
    _, err, status = outcome(host, args)
    assert status == 1
    assert err.startswith(f"harp-tcp: {host.ifname}: HARP's steering program is attached already")
    assert "xdp" not in links(host)[host.ifname]


def test_of_two_that_begin_at_once_one_is_told_of_the_other(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    for port in range(61000, 61010, 2):
        both = [
            host.popen([tools.tcp, "serve", host.address, str(port + i), *tools.side(host, "harp")])
            for i in range(2)
        ]
        tools.started += both
        said = [process.stdout.readline() for process in both if process.stdout]
        assert sorted(said) == ["", "ready\n"]
        both[said.index("ready\n")].terminate()
        loser = finish(both[said.index("")])[1]
        assert "HARP's steering program is attached already" in loser
        finish(both[said.index("ready\n")])


def test_who_is_stopped_is_there(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    server = tools.serve_tcp(host, "harp", 61000)
    server.send_signal(signal.SIGSTOP)
    args = [tools.tcp, "serve", host.address, "61001", *tools.side(host, "harp")]
    _, err, status = outcome(host, args)
    assert status == 1
    assert "HARP's steering program is attached already" in err
    server.send_signal(signal.SIGCONT)


def test_it_has_the_interfaces_queues(tools: Tools, need_root: None) -> None:
    with Lab(LabOptions(queues=3)) as lab:
        host = lab.hosts[0]
        tools.serve_tcp(host, "harp", 61000, "--queue", "2")
        assert links(host)[beside(host)]["num_rx_queues"] == 3


def test_it_has_queues_that_a_driver_does_not_speak_of(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    queues = ("numrxqueues", "4", "numtxqueues", "4")
    host.run("ip", "link", "add", "br0", *queues, "type", "bridge")
    host.run("ip", "link", "set", host.ifname, "master", "br0")
    host.run("ip", "link", "set", "br0", "up")
    host.run("ip", "address", "add", "10.78.0.1/24", "dev", "br0")
    bridge = Host(host.netns, 0, "10.78.0.1", "br0")
    tools.serve_tcp(bridge, "harp", 61000, "--queue", "3")
    assert links(host)[beside(bridge)]["num_rx_queues"] == 4


def test_not_where_the_kernel_joins_more_than_a_packet_may_have(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "set", host.ifname, "gro_max_size", "65537")
    server = tools.serve_tcp(host, "harp", 61000)
    assert "xdp" in links(host)[host.ifname]
    assert beside(host) not in links(host)
    server.terminate()
    assert "it: the kernel joins packets up to 65537 bytes there" in finish(server)[1]


@pytest.mark.parametrize("before", [(), NO_BESIDE], ids=["beside", "on the interface"])
@pytest.mark.parametrize("test", ["send", "recv"])
def test_both_ways_carry_a_connection(
    tools: Tools, each: Lab, before: tuple[str, ...], test: str
) -> None:
    here, there = each.hosts
    serve = [*before, tools.tcp, "serve", there.address, "61000", *tools.side(there, "harp")]
    server = tools.serve(there, [*serve, "-o", "json"])
    assert ("xdp" in links(there)[there.ifname]) is bool(before)
    more = ("--bytes", str(4 * MIB))
    report = tools.call_tcp(here, "kernel", test, there.address, 61000, *more)
    assert report["bytes"] == 4 * MIB
    steering = json.loads(finish(server)[0].splitlines()[-1])["steering"]
    assert steering["redirect_tcp"] > 0


def test_a_name_that_is_taken_is_said_and_done_without(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    name = beside(there)
    there.run("ip", "link", "add", name, "type", "veth")
    server = tools.serve_tcp(there, "harp", 61000)
    assert "xdp" in links(there)[there.ifname]
    report = tools.call_tcp(here, "kernel", "send", there.address, 61000, "--bytes", "1000")
    assert report["bytes"] == 1000
    said = finish(server)[1]
    assert f"on a device beside it: making {name}: File exists, and is none of HARP's" in said
    assert name in links(there), "it is somebody else's"


def test_packets_that_the_kernel_joined_are_taken_whole(tools: Tools, need_root: None) -> None:
    """GRO is before the hook: up to 64 KiB in a packet, and a checksum that nobody finished."""
    with Lab(LabOptions(offload=False)) as lab:
        here, there = lab.hosts
        here.run("ethtool", "-K", here.ifname, "tx", "on", "sg", "on", "gso", "on")
        there.run("ethtool", "-K", there.ifname, "gro", "on")
        server = tools.serve_tcp(there, "harp", 61000)
        more = ("--bytes", str(16 * MIB))
        report = tools.call_tcp(here, "kernel", "send", there.address, 61000, *more)
        served = json.loads(finish(server)[0].splitlines()[-1])
    assert report["bytes"] == 16 * MIB, "and the server's digest was the client's"
    assert served["nic"]["rx_packets"] * 1448 < 16 * MIB
    # No more than what a full ring loses while the server does not run: not the joined ones.
    assert served["nic"]["rx_dropped"] * 10 < served["nic"]["rx_packets"]
