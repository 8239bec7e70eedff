# SPDX-License-Identifier: Apache-2.0
"""harpctl check on a host of the laboratory: its findings about real interfaces."""

import json
import sys
from typing import Any

from netns_tools import Tools, inside, outcome, wait_until, xdp_attached

from harp._core import host_check
from harp.errors import Exit
from harp.lab import Host, Lab, LabOptions

SEVERITIES = ("ok", "warn", "fail")
# No harpd of this machine has a say in it.
ALONE = ["env", "HARP_SOCKET=/nonexistent/harpd.sock"]
CHECK = [*ALONE, sys.executable, "-c", "from harp.cli import main; main()", "check"]
# Becomes nobody when everything is loaded: the interpreter may lie where nobody can't read.
AS_NOBODY = """
import os
import harp._core, harp.cli.check
from harp.cli import main
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
main()
"""


def check(host: Host, *words: str, nobody: bool = False) -> tuple[dict[str, Any], int]:
    """The report and the exit code."""
    command = [*ALONE, sys.executable, "-c", AS_NOBODY, "check"] if nobody else CHECK
    out, err, status = outcome(host, [*command, *words, "-o", "json"])
    assert out, err
    return json.loads(out), status


def findings(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {each["name"]: each for each in report["findings"]}
    assert len(found) == len(report["findings"]), "each name once"
    for each in found.values():
        assert each["severity"] == "ok" or each["remedy"], each
    return found


def test_a_veth_is_reported_as_generic(lab: Lab) -> None:
    host = lab.hosts[0]
    report, status = check(host, host.ifname)
    found = findings(report)
    assert status == {"ok": Exit.OK, "warn": Exit.WARNING}[report["severity"]], report
    assert found["device"]["text"] == "veth"
    assert found["zero-copy"]["text"].startswith("copies: a virtual device")
    assert found["rss"]["text"] == "one queue: nothing to choose"
    assert found["queue-busy"]["text"] == "queue 0 is free"
    assert found["af-xdp"]["text"] == "sockets can be made"
    assert found["numa"]["severity"] == found["irq-affinity"]["severity"] == "ok"
    assert "native-xdp" not in found, "veth is generic by choice"
    assert not xdp_attached(host)


def test_check_without_an_interface_examines_all(lab: Lab) -> None:
    host = lab.hosts[0]
    report, status = check(host)
    assert [each["interface"] for each in report["interfaces"]] == [host.ifname]
    assert {"kernel", "processors", "harpd"} <= {each["name"] for each in report["host"]}
    assert status in (Exit.OK, Exit.WARNING)
    host.run("ip", "address", "flush", "dev", host.ifname)
    report, status = check(host)
    assert (report["interfaces"], status) == ([], Exit.MISSING)


def test_the_verdict_comes_first_then_only_problems(lab: Lab) -> None:
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
    found = findings(report)
    assert (found["queue-busy"]["severity"], status) == ("fail", Exit.FAILURE)
    assert found["queue-busy"]["text"].startswith("queue 0 has an AF_XDP socket")
    assert found["default-route"]["severity"] == "warn"
    assert found["xdp-program"]["severity"] == "fail"
    assert found["ports-used"]["severity"] == "ok", "the kernel does not list a held port"
    assert findings(check(host, host.ifname, "--queue", "3")[0])["queue"]["severity"] == "fail"
    server.kill()
    server.communicate()

    def free() -> bool:
        return findings(check(host, host.ifname)[0])["queue-busy"]["severity"] == "ok"

    wait_until(free, "the queue of a dead process is free again")


def test_several_queues_are_reported(need_root: None) -> None:
    with Lab(LabOptions(queues=2)) as lab:
        host = lab.hosts[0]
        found = findings(check(host, host.ifname)[0])["queue"]
        assert found["severity"] == "warn"
        assert found["text"].startswith("2 receive queues")
        assert found["remedy"] == f"ethtool -L {host.ifname} combined 1"


def test_ports_that_other_programs_may_get_or_have(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    host.sysctl("ipv4/ip_local_port_range", "32768 65000")
    for reserved, is_warned in (("", True), ("1,7-9,61000-65535", False), ("61001-65535", True)):
        host.sysctl("ipv4/ip_local_reserved_ports", reserved)
        found = findings(check(host, host.ifname)[0])
        assert (found["ports-reserved"]["severity"] == "warn") is is_warned
    host.sysctl("ipv4/ip_local_port_range", "32768 60999")
    tools.serve_tcp(host, "kernel", 61005)
    found = findings(check(host, host.ifname)[0])
    assert found["ports-reserved"]["severity"] == "ok"
    assert found["ports-used"]["severity"] == "warn"
    assert "(such as 61005)" in found["ports-used"]["text"]


def is_duplicate(host: Host) -> bool:
    shown = json.loads(host.run("ip", "-j", "-6", "address", "show", "dev", host.ifname))
    return any(each.get("dadfailed") for link in shown for each in link.get("addr_info", ()))


def test_the_addresses_that_peers_are_given(lab: Lab) -> None:
    host, other = lab.hosts

    def found(name: str) -> tuple[str, str]:
        """In this process: a start of harpctl for each question takes a second."""
        severity, text = inside(
            host, lambda: {each: rest[:2] for each, *rest in host_check(host.ifname, 0)}[name]
        )
        return SEVERITIES[severity], text

    def change(*words: str) -> None:
        host.run("ip", "address", *words, "dev", host.ifname)

    assert found("ipv4") == ("ok", "10.77.0.1")
    severity, text = found("ipv6")
    assert severity == "ok"
    assert text.startswith("only the link-local fe80::")
    assert text.endswith("not used if there is IPv4")
    change("add", "fd77::1/64", "nodad", "preferred_lft", "0")
    assert found("ipv6") == ("ok", "fd77::1 (deprecated: it will expire)")
    change("add", "fd77::5/64", "nodad")
    assert found("ipv6") == ("ok", "fd77::5")
    for address in ("fd77::1/64", "fd77::5/64", "10.77.0.1/24"):
        change("del", address)
    severity, text = found("ipv6")
    assert severity == "warn", "without IPv4"
    assert text.endswith("only hosts on this link can reach")
    host.sysctl(f"ipv6/conf/{host.ifname}/accept_dad", 1)
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1000)
    change("add", "fd77::1/64")
    assert found("ipv6") == ("fail", "fd77::1 is being checked for duplicates")
    change("del", "fd77::1/64")
    host.sysctl(f"ipv6/conf/{host.ifname}/dad_transmits", 1)
    other.run("ip", "address", "add", "fd77::1/64", "dev", other.ifname, "nodad")
    change("add", "fd77::1/64")
    wait_until(lambda: is_duplicate(host), "the duplicate's discovery")
    assert found("ipv6") == ("fail", "another host has fd77::1 too")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 1)
    assert found("ipv6") == ("fail", "disabled")
    host.sysctl(f"ipv6/conf/{host.ifname}/disable_ipv6", 0)
    host.run("ip", "link", "set", host.ifname, "mtu", "1200")
    assert found("ipv6") == ("fail", "needs an MTU of 1280, not 1200")


def test_unexpected_devices_are_refused(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "tuntap", "add", "tun0", "mode", "tun")
    found = findings(check(host, "tun0")[0])
    assert found["device"]["text"] == "carries no Ethernet frames"
    for kind, words in (
        (["link", host.ifname, "type", "macvlan"], f"a macvlan on {host.ifname}"),
        (["type", "bridge"], "a bridge: generic XDP alone"),
        (["link", host.ifname, "type", "vlan", "id", "7"], f"a VLAN on {host.ifname}"),
        (["type", "bond"], "a bond: sockets on it receive nothing"),
    ):
        out, err, status = outcome(host, ["ip", "link", "add", "x0", *kind])
        if status:
            assert "Unknown device type" in err or "not supported" in err, out + err
            continue
        report, _ = check(host, "x0")
        assert words in findings(report)["device"]["text"]
        host.run("ip", "link", "delete", "x0")


def test_a_port_of_a_bridge_is_one(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "link", "set", host.ifname, "master", "br0")
    found = findings(check(host, host.ifname)[0])
    assert found["device"]["text"] == "veth, member of bridge br0"
    assert host.ifname in findings(check(host, "br0")[0])["device"]["remedy"]


def test_check_runs_as_user_nobody(lab: Lab) -> None:
    """Reads as much as it can, and says what nobody lacks."""
    report, status = check(lab.hosts[0], lab.hosts[0].ifname, nobody=True)
    found = findings(report)
    assert status == Exit.FAILURE
    assert found["privilege"]["severity"] == found["af-xdp"]["severity"] == "fail"
    assert "unprivileged jobs get kernel lanes" in found["harpd"]["text"]
    assert found["device"]["text"] == "veth"
