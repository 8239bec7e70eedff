# SPDX-License-Identifier: Apache-2.0
"""harpctl check on a lab host: findings about real interfaces."""

import json
import sys
from typing import Any

from netns_tools import Tools, inside, outcome, wait_until, xdp_attached

from harp._core import host_check
from harp.errors import Exit
from harp.lab import Host, Lab, LabOptions

SEVERITIES = ("ok", "warn", "fail")
# A harpd of this machine must not change the findings.
WITHOUT_HARPD = ["env", "HARP_SOCKET=/nonexistent/harpd.sock"]
CHECK = [*WITHOUT_HARPD, sys.executable, "-c", "from harp.cli import main; main()", "check"]
# Loads all modules before it becomes user nobody, which may not be able to read them.
AS_NOBODY = """
import os
import harp._core, harp.cli.check
from harp.cli import main
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
main()
"""


def check(host: Host, *arguments: str, as_nobody: bool = False) -> tuple[dict[str, Any], int]:
    command = [*WITHOUT_HARPD, sys.executable, "-c", AS_NOBODY, "check"] if as_nobody else CHECK
    out, err, status = outcome(host, [*command, *arguments, "-o", "json"])
    assert out, err
    return json.loads(out), status


def findings(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    by_name = {finding["name"]: finding for finding in report["findings"]}
    assert len(by_name) == len(report["findings"]), "names are unique"
    for finding in by_name.values():
        assert finding["severity"] == "ok" or finding["remedy"], finding
    return by_name


def test_a_veth_is_reported_as_generic(lab: Lab) -> None:
    host = lab.hosts[0]
    report, status = check(host, host.ifname)
    by_name = findings(report)
    assert status == {"ok": Exit.OK, "warn": Exit.WARNING}[report["severity"]], report
    assert by_name["device"]["text"] == "veth"
    assert by_name["zero-copy"]["text"].startswith("copies: a virtual device")
    assert by_name["rss"]["text"] == "one queue: nothing to choose"
    assert by_name["queue-busy"]["text"] == "queue 0 is free"
    assert by_name["af-xdp"]["text"] == "sockets can be made"
    assert by_name["numa"]["severity"] == by_name["irq-affinity"]["severity"] == "ok"
    assert "native-xdp" not in by_name, "HARP chooses generic mode on veth"
    assert not xdp_attached(host)


def test_check_without_an_interface_examines_all(lab: Lab) -> None:
    host = lab.hosts[0]
    report, status = check(host)
    assert [nic["interface"] for nic in report["interfaces"]] == [host.ifname]
    assert {"kernel", "processors", "harpd"} <= {finding["name"] for finding in report["host"]}
    assert status in (Exit.OK, Exit.WARNING)
    host.run("ip", "address", "flush", "dev", host.ifname)
    report, status = check(host)
    assert (report["interfaces"], status) == ([], Exit.MISSING)


def test_the_verdict_is_printed_first_then_only_problems(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "set", host.ifname, "down")
    out, _, status = outcome(host, [*CHECK, host.ifname])
    assert status == Exit.FAILURE
    lines = out.splitlines()
    assert lines[0] == f"HARP can't use {host.ifname}; its lanes would be kernel TCP there"
    assert any(line.startswith("link") and " fail " in line for line in lines)
    assert any("→ ip link set dev" in line for line in lines)
    assert not any(line.startswith(("kernel", "driver")) for line in lines)
    assert "--verbose shows them" in lines[-1]
    out, _, _ = outcome(host, [*CHECK, host.ifname, "--verbose"])
    assert any(line.startswith("kernel") and " ok " in line for line in out.splitlines())


def test_problems_are_reported(tools: Tools, lab: Lab) -> None:
    host, other = lab.hosts
    server = tools.serve_tcp(host, "harp", 61000)
    host.run("ip", "route", "add", "default", "via", other.address)
    report, status = check(host, host.ifname)
    by_name = findings(report)
    assert (by_name["queue-busy"]["severity"], status) == ("fail", Exit.FAILURE)
    assert by_name["queue-busy"]["text"].startswith("queue 0 has an AF_XDP socket")
    assert by_name["default-route"]["severity"] == "warn"
    assert by_name["xdp-program"]["severity"] == "fail"
    # `ip link` does not remove HARP's program, which is attached by a link.
    assert "bpftool prog show id" in by_name["xdp-program"]["remedy"]
    assert by_name["ports-used"]["severity"] == "ok", "the kernel does not list a held port"
    assert findings(check(host, host.ifname, "--queue", "3")[0])["queue"]["severity"] == "fail"
    server.kill()
    server.communicate()

    def is_free() -> bool:
        return findings(check(host, host.ifname)[0])["queue-busy"]["severity"] == "ok"

    wait_until(is_free, "the queue of a dead process is free again")


def test_several_queues_are_reported(need_root: None) -> None:
    with Lab(LabOptions(queues=2)) as lab:
        host = lab.hosts[0]
        finding = findings(check(host, host.ifname)[0])["queue"]
        assert finding["severity"] == "warn"
        assert finding["text"].startswith("2 receive queues")
        assert finding["remedy"] == f"ethtool -L {host.ifname} combined 1"


def test_ports_that_other_programs_may_get_or_use_are_reported(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    host.sysctl("ipv4/ip_local_port_range", "32768 65000")
    for reserved, is_warned in (("", True), ("1,7-9,61000-65535", False), ("61001-65535", True)):
        host.sysctl("ipv4/ip_local_reserved_ports", reserved)
        by_name = findings(check(host, host.ifname)[0])
        assert (by_name["ports-reserved"]["severity"] == "warn") is is_warned
    host.sysctl("ipv4/ip_local_port_range", "32768 60999")
    tools.serve_tcp(host, "kernel", 61005)
    by_name = findings(check(host, host.ifname)[0])
    assert by_name["ports-reserved"]["severity"] == "ok"
    assert by_name["ports-used"]["severity"] == "warn"
    assert "(such as 61005)" in by_name["ports-used"]["text"]


def is_duplicate(host: Host) -> bool:
    shown = json.loads(host.run("ip", "-j", "-6", "address", "show", "dev", host.ifname))
    addresses = [address for link in shown for address in link.get("addr_info", ())]
    return any(address.get("dadfailed") for address in addresses)


def test_the_advertised_addresses_are_checked(lab: Lab) -> None:
    host, other = lab.hosts

    def finding(name: str) -> tuple[str, str]:
        """Runs the check in this process, since each start of harpctl takes a second."""
        severity, text = inside(
            host, lambda: {key: rest[:2] for key, *rest in host_check(host.ifname, 0)}[name]
        )
        return SEVERITIES[severity], text

    def change(*arguments: str) -> None:
        host.run("ip", "address", *arguments, "dev", host.ifname)

    assert finding("ipv4") == ("ok", "10.77.0.1")
    severity, text = finding("ipv6")
    assert severity == "ok"
    assert text.startswith("only the link-local fe80::")
    assert text.endswith("not used if there is IPv4")
    change("add", "fd77::1/64", "nodad", "preferred_lft", "0")
    assert finding("ipv6") == ("ok", "fd77::1 (deprecated: it will expire)")
    change("add", "fd77::5/64", "nodad")
    assert finding("ipv6") == ("ok", "fd77::5")
    for address in ("fd77::1/64", "fd77::5/64", "10.77.0.1/24"):
        change("del", address)
    severity, text = finding("ipv6")
    assert severity == "warn", "there is no IPv4 address"
    assert text.endswith("only hosts on this link can reach")
    host.sysctl(f"ipv6/conf/{host.ifname}/accept_dad", 1)
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1000)
    change("add", "fd77::1/64")
    assert finding("ipv6") == ("fail", "fd77::1 is being checked for duplicates")
    change("del", "fd77::1/64")
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1)
    other.run("ip", "address", "add", "fd77::1/64", "dev", other.ifname, "nodad")
    change("add", "fd77::1/64")
    wait_until(lambda: is_duplicate(host), "duplicate address detection")
    assert finding("ipv6") == ("fail", "another host has fd77::1 too")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 1)
    assert finding("ipv6") == ("fail", "disabled")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 0)
    host.run("ip", "link", "set", host.ifname, "mtu", "1200")
    assert finding("ipv6") == ("fail", "needs an MTU of 1280, not 1200")


def test_unexpected_devices_are_refused(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "tuntap", "add", "tun0", "mode", "tun")
    by_name = findings(check(host, "tun0")[0])
    assert by_name["device"]["text"] == "carries no Ethernet frames"
    for kind, text in (
        (["link", host.ifname, "type", "macvlan"], f"a macvlan on {host.ifname}"),
        (["type", "bridge"], "a bridge: only generic XDP"),
        (["link", host.ifname, "type", "vlan", "id", "7"], f"a VLAN on {host.ifname}"),
        (["type", "bond"], "a bond: sockets on it receive nothing"),
    ):
        out, err, status = outcome(host, ["ip", "link", "add", "x0", *kind])
        if status:
            assert "Unknown device type" in err or "not supported" in err, out + err
            continue
        report, _ = check(host, "x0")
        assert text in findings(report)["device"]["text"]
        host.run("ip", "link", "delete", "x0")


def test_a_port_of_a_bridge_names_its_bridge(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "link", "set", host.ifname, "master", "br0")
    by_name = findings(check(host, host.ifname)[0])
    assert by_name["device"]["text"] == "veth, member of bridge br0"
    assert host.ifname in findings(check(host, "br0")[0])["device"]["remedy"]


def test_check_runs_as_user_nobody(lab: Lab) -> None:
    """It reports what it can read, and the missing privileges."""
    report, status = check(lab.hosts[0], lab.hosts[0].ifname, as_nobody=True)
    by_name = findings(report)
    assert status == Exit.FAILURE
    assert by_name["privilege"]["severity"] == by_name["af-xdp"]["severity"] == "fail"
    assert "unprivileged jobs get kernel lanes" in by_name["harpd"]["text"]
    assert by_name["device"]["text"] == "veth"
