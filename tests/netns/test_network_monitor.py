# SPDX-License-Identifier: Apache-2.0
"""harpd's network monitor resolves and confirms neighbors of a real kernel."""

import contextlib
import json
import select
import socket
from collections.abc import Callable
from typing import Any

import pytest
from netns_tools import inside

from harp.daemon.netlink import NetworkMonitor
from harp.lab import Host, Lab

V4 = b"\0" * 10 + b"\xff\xff"


def raw(address: str) -> bytes:
    is_v6 = ":" in address
    return socket.inet_pton(socket.AF_INET6, address) if is_v6 else V4 + socket.inet_aton(address)


def with_monitor(host: Host, work: Callable[[NetworkMonitor, int], Any]) -> Any:
    def body() -> Any:
        with contextlib.closing(NetworkMonitor()) as monitor:
            return work(monitor, socket.if_nametoindex(host.ifname))

    return inside(host, body)


def mac_of(monitor: NetworkMonitor, addr: bytes) -> bytes:
    """Return the MAC address in the kernel's next event of the neighbor."""
    while select.select([monitor], [], [], 30)[0]:
        for _, neighbor, mac in monitor.read().neighbors:
            if neighbor == addr:
                return mac
    pytest.fail("no event from the kernel")


def states(host: Host, address: str) -> list[str]:
    shown = json.loads(host.run("ip", "-j", "neigh", "show", "to", address))
    result: list[str] = shown[0]["state"]
    return result


def test_a_neighbor_is_resolved_or_not(family_lab: Lab) -> None:
    here, there = family_lab.hosts
    absent = "fd77::99" if ":" in there.address else "10.77.0.99"
    family = "ipv6" if ":" in there.address else "ipv4"
    here.sysctl(f"{family}/neigh/{here.ifname}/retrans_time_ms", 100)
    mac = json.loads(there.run("ip", "-j", "link", "show", there.ifname))[0]["address"]

    def work(monitor: NetworkMonitor, ifindex: int) -> None:
        monitor.resolve([(ifindex, raw(address)) for address in (there.address, absent)])
        assert mac_of(monitor, raw(there.address)) == bytes.fromhex(mac.replace(":", ""))
        assert mac_of(monitor, raw(absent)) == b""
        # The kernel reports a known neighbor at once.
        monitor.resolve([(ifindex, raw(there.address))])
        assert mac_of(monitor, raw(there.address)) == bytes.fromhex(mac.replace(":", ""))

    with_monitor(here, work)


def test_a_confirmation_neither_changes_permanent_entries_nor_adds_any(family_lab: Lab) -> None:
    """NUD_REACHABLE would turn an operator's permanent entry into one that expires."""
    here, there = family_lab.hosts
    dev = ["dev", here.ifname]
    mac = ["lladdr", "02:00:00:00:00:55"]
    here.run("ip", "neigh", "replace", there.address, *mac, *dev, "nud", "permanent")
    absent = "fd77::99" if ":" in there.address else "10.77.0.99"

    def work(monitor: NetworkMonitor, ifindex: int) -> None:
        monitor.confirm(ifindex, raw(there.address))
        monitor.confirm(ifindex, raw(absent))

    with_monitor(here, work)
    assert states(here, there.address) == ["PERMANENT"]
    assert absent not in here.run("ip", "neigh", "show")


def test_a_confirmed_neighbor_is_not_probed(family_lab: Lab) -> None:
    """A packet to a stale neighbor starts a delay. Without a confirmation the kernel then sends
    probes, which this neighbor does not answer."""
    here, there = family_lab.hosts
    family = "ipv6" if ":" in there.address else "ipv4"
    here.sysctl(f"{family}/neigh/{here.ifname}/delay_first_probe_time", 1)
    entry = [there.address, "lladdr", "02:00:00:00:00:55", "dev", here.ifname]
    here.run("ip", "neigh", "replace", *entry, "nud", "stale")

    def work(monitor: NetworkMonitor, ifindex: int) -> None:
        kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET
        with socket.socket(kind, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", (there.address, 9))
        monitor.confirm(ifindex, raw(there.address))
        while states(here, there.address) == ["DELAY"]:
            monitor.confirm(ifindex, raw(there.address))

    with_monitor(here, work)
    assert states(here, there.address) == ["REACHABLE"]
