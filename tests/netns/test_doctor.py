# SPDX-License-Identifier: Apache-2.0
"""harpctl check on a host of the laboratory: its findings about real interfaces."""

import json
import sys
from typing import Any

from netns_tools import Tools, outcome, wait_until

from harp.errors import Exit
from harp.lab import Host, Lab

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
    assert lines[0] == f"HARP can't use {host.ifname}; it would carry its lanes on kernel TCP"
    assert any(line.startswith("link") and " fail " in line for line in lines)
    assert any("→ ip link set dev" in line for line in lines)
    assert not any(line.startswith(("kernel", "driver")) for line in lines)
    assert "--verbose shows them" in lines[-1]
    out, _, _ = outcome(host, [*CHECK, host.ifname, "--verbose"])
    assert any(line.startswith("kernel") and " ok " in line for line in out.splitlines())


def test_a_queue_in_use_is_reported(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    server = tools.serve_tcp(host, "harp", 61000)
    report, status = check(host, host.ifname)
    busy = findings(report)["queue-busy"]
    assert (busy["severity"], status) == ("fail", Exit.FAILURE)
    assert busy["text"].startswith("queue 0 has an AF_XDP socket")
    server.kill()
    server.communicate()

    def free() -> bool:
        return findings(check(host, host.ifname)[0])["queue-busy"]["severity"] == "ok"

    wait_until(free, "the queue of a dead process is free again")


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
