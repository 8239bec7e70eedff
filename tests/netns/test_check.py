# SPDX-License-Identifier: Apache-2.0
"""harp_host_check() finds faults and names remedies, and route lookups are answered."""

import json
import sys
from typing import Any

from netns_tools import Tools, run, wait_until, xdp_attached

from harp.lab import Host, Lab, LabOptions

# Runs in the host's namespace.
ASK = """
import json, sys
from harp._core import host_check
from harp._host import has_default_route
found = {name: rest for name, *rest in host_check(sys.argv[1], int(sys.argv[2]))}
print(json.dumps([found, has_default_route(sys.argv[1]) if sys.argv[1] == "eth0" else False]))
"""


def ask(host: Host, ifname: str, queue: int = 0) -> tuple[dict[str, Any], bool]:
    found, default = json.loads(run(host, [sys.executable, "-c", ASK, ifname, str(queue)]))
    for severity, _, remedy in found.values():
        assert severity == 0 or remedy, "each problem has a remedy"
    return found, default


def test_a_good_host_has_no_finding(lab: Lab) -> None:
    host = lab.hosts[0]
    found, default = ask(host, host.ifname)
    for name in ("kernel", "privilege", "link", "driver", "xdp-mode", "queue", "xdp-program"):
        assert found[name][0] == 0, found[name]
    assert found["driver"][1] == "veth"
    assert found["xdp-mode"][1].startswith("generic")
    assert not default
    assert not xdp_attached(host)


def addresses(host: Host) -> list[dict[str, Any]]:
    shown = json.loads(host.run("ip", "-j", "-6", "address", "show", "dev", host.ifname))
    return [address for link in shown for address in link.get("addr_info", ())]


def duplicate(host: Host) -> bool:
    return any(address.get("dadfailed") for address in addresses(host))


def test_the_addresses_that_peers_are_given(lab: Lab) -> None:
    host, other = lab.hosts

    def found(name: str) -> tuple[int, str]:
        severity, text, _ = ask(host, host.ifname)[0][name]
        return severity, text

    def change(*words: str) -> None:
        host.run("ip", "address", *words, "dev", host.ifname)

    assert found("ipv4") == (0, "10.77.0.1")
    severity, text = found("ipv6")
    assert severity == 0
    assert text.startswith("only the link-local fe80::")
    assert text.endswith("not used if there is IPv4")
    change("add", "fd77::1/64", "nodad", "preferred_lft", "0")
    assert found("ipv6") == (0, "fd77::1 (deprecated: it will expire)")
    change("add", "fd77::5/64", "nodad")
    assert found("ipv6") == (0, "fd77::5")
    change("del", "fd77::1/64")
    change("del", "fd77::5/64")
    # Without IPv4 it becomes a matter of use or no use.
    change("del", "10.77.0.1/24")
    severity, text = found("ipv6")
    assert severity == 1
    assert text.endswith("only hosts on this link can reach")
    host.sysctl(f"ipv6/conf/{host.ifname}/accept_dad", 1)
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1000)
    change("add", "fd77::1/64")
    assert found("ipv6") == (2, "fd77::1 is being checked for duplicates")
    change("del", "fd77::1/64")
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1)
    other.run("ip", "address", "add", "fd77::1/64", "dev", other.ifname, "nodad")
    change("add", "fd77::1/64")
    wait_until(lambda: duplicate(host), "the duplicate's discovery")
    assert found("ipv6") == (2, "another host has fd77::1 too")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 1)
    assert found("ipv6") == (2, "disabled")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 0)
    host.run("ip", "link", "set", host.ifname, "mtu", "1200")
    assert found("ipv6") == (2, "needs an MTU of 1280, not 1200")


def test_what_is_wrong_is_found(tools: Tools, lab: Lab) -> None:
    host, other = lab.hosts
    tools.serve_tcp(host, "harp", 61000)
    host.run("ip", "route", "add", "default", "via", other.address)
    found, default = ask(host, host.ifname, queue=3)
    assert default
    assert found["default-route"][0] == 1
    assert found["queue"][0] == 2
    assert found["xdp-program"][0] == 2
    assert found["ports-used"][0] == 0, "a held port does not listen: the kernel lists it not"
    host.run("ip", "link", "set", host.ifname, "down")
    assert ask(host, host.ifname)[0]["link"][0] == 2
    assert ask(host, "nosuch0")[0]["interface"][0] == 2


def test_loopback_is_refused(lab: Lab) -> None:
    severity, text, remedy = ask(lab.hosts[0], "lo")[0]["interface"]
    assert severity == 2
    assert "lo is the loopback interface" in text
    assert "leads to the other hosts" in remedy


def test_ports_that_others_may_get(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]

    def reserved(ports: str) -> int:
        host.sysctl("ipv4/ip_local_reserved_ports", ports)
        return int(ask(host, host.ifname)[0]["ports-reserved"][0])

    host.sysctl("ipv4/ip_local_port_range", "32768 65000")
    assert reserved("") == 1
    assert reserved("61000-65535") == 0
    assert reserved("1,7-9,61000-65535") == 0
    assert reserved("1,7-9") == 1
    assert reserved("61001-65535") == 1
    host.sysctl("ipv4/ip_local_port_range", "32768 60999")
    assert reserved("") == 0
    tools.serve_tcp(host, "kernel", 61005)
    severity, text, _ = ask(host, host.ifname)[0]["ports-used"]
    assert severity == 1
    assert "(such as 61005)" in text


def test_several_queues_are_reported(need_root: None) -> None:
    with Lab(LabOptions(queues=2)) as lab:
        host = lab.hosts[0]
        severity, text, remedy = ask(host, host.ifname)[0]["queue"]
        assert severity == 1
        assert text.startswith("2 receive queues")
        assert remedy == f"ethtool -L {host.ifname} combined 1"
