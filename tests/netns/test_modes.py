# SPDX-License-Identifier: Apache-2.0
"""HARP chooses native or generic XDP, and logs the choice."""

import contextlib
import json
import sys
from pathlib import Path

import pytest
from netns_tools import AUTO, Tools, attach, outcome, xdp_attached

from harp.lab import Host, Lab

# A tap device has a carrier while a process holds it open.
HOLD_TAP = """
import fcntl, os, struct, sys
fd = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"tap0", 0x1002))  # TUNSETIFF, no header
print("ready", flush=True)
sys.stdin.read()
"""


def generic(reason: str) -> str:
    return (
        f"generic XDP ({reason}): the kernel copies all packets that it receives on this interface "
        "once more and disables GRO before XDP; its bulk throughput drops by up to a third"
    )


@pytest.fixture
def tap(tools: Tools, lab: Lab) -> Host:
    host = lab.hosts[0]
    tools.started.append(
        holder := host.popen(
            [sys.executable, "-c", HOLD_TAP], stdin=-1
        )  # -1: a pipe that stays open
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        pytest.skip("no /dev/net/tun")
    host.run("ip", "link", "set", "tap0", "up")
    host.run("ip", "address", "add", "10.78.0.1/24", "dev", "tap0")
    return Host(host.netns, 0, "10.78.0.1", "tap0")


def logged_mode(tools: Tools, host: Host, requested: str) -> str:
    """Return the mode that a client logs before its connection attempt fails."""
    options = [*tools.options(host, "harp"), "--xdp", requested, "--timeout", "1"]
    args = [tools.tcp, "send", "10.78.0.9", "7000", *options]
    _, err, status = outcome(host, args)
    assert status == 1
    assert not xdp_attached(host)
    return err.splitlines()[0].removeprefix(f"harp-tcp: {host.ifname}: ")


def test_native_mode_is_used_if_it_changes_no_settings(tools: Tools, tap: Host) -> None:
    native = "native XDP: MTU, queues and offloads stay the same"
    assert logged_mode(tools, tap, "auto") == native
    assert logged_mode(tools, tap, "native-or-none") == native
    assert logged_mode(tools, tap, "native") == "native XDP: as requested"
    assert logged_mode(tools, tap, "generic") == generic("as requested")


@pytest.fixture
def bridge(lab: Lab) -> Host:
    """A host whose interface is a bridge: a driver without native XDP."""
    host = lab.hosts[0]
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "link", "set", host.ifname, "master", "br0")
    host.run("ip", "link", "set", "br0", "up")
    host.run("ip", "address", "add", "10.78.0.1/24", "dev", "br0")
    return Host(host.netns, 0, "10.78.0.1", "br0")


def test_generic_mode_is_used_if_the_driver_has_no_other(tools: Tools, bridge: Host) -> None:
    assert logged_mode(tools, bridge, "auto") == generic("driver bridge")
    assert logged_mode(tools, bridge, "native-or-none") == (
        "AF_XDP is available in generic copy mode only (driver bridge): nothing is attached"
    )
    options = tools.options(bridge, "harp")
    args = [tools.tcp, "serve", bridge.address, "61000", *options, "--xdp", "native"]
    _, err, status = outcome(bridge, args)
    assert status == 1
    assert err == "harp-tcp: br0: the driver has no native XDP; use generic mode\n"


def program_count() -> int:
    count = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(fd.readlink()) == "anon_inode:bpf-prog"
    return count


def test_a_failed_native_attach_leaves_no_program(lab: Lab) -> None:
    """ifb has no native XDP, which only an attempt reveals."""
    host = lab.hosts[0]
    host.run("ip", "link", "add", "ifb7", "type", "ifb")
    before = program_count()
    steering = attach(Host(host.netns, 0, "", "ifb7"), AUTO)
    assert program_count() == before + 1
    steering.close()
    assert program_count() == before


def test_a_forced_mode_carries_a_connection(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = tools.serve_tcp(there, "harp", 61000, "--xdp", "native")
    report = tools.call_tcp(here, "harp", "send", there.address, 61000, "--bytes", "1000000")
    assert report["bytes"] == 1000000
    server_report = json.loads(server.communicate(timeout=30)[0].splitlines()[-1])
    assert server_report["bytes_received"] >= 1000000
