# SPDX-License-Identifier: Apache-2.0
"""NIC preparation on a real kernel: it changes and restores settings of a veth, and reports those
that a veth does not support."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netns_tools
import pytest

from harp.config import NicConfig
from harp.lab import Host as LabHost
from harp.lab import Lab, LabOptions
from harp.nicprep import Host, Undo, prepare, restore

PORTS = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")


def inside(host: LabHost, work: Callable[[Host], Any]) -> Any:
    return netns_tools.inside(host, lambda: work(Host()))


def channels(host: LabHost) -> list[int]:
    shown = host.run("ethtool", "-l", host.ifname).split("Current hardware settings:")[1]
    numbers = dict(line.split(":") for line in shown.split("\n") if ":" in line)
    return [int(numbers[name]) for name in ("RX", "TX")]


def features(host: LabHost) -> dict[str, Any]:
    shown: list[dict[str, Any]] = json.loads(host.run("ethtool", "--json", "-k", host.ifname))
    return {name: value["active"] for name, value in shown[0].items() if isinstance(value, dict)}


@pytest.fixture
def queues_lab(need_root: None) -> Any:
    with Lab(LabOptions(queues=4)) as lab:
        yield lab


def test_a_veth_is_prepared_and_restored(queues_lab: Lab) -> None:
    host = queues_lab.hosts[0]
    nic = NicConfig(
        ifname=host.ifname,
        queues=2,
        rx_ring=4096,
        coalesce="low",
        tso="off",
        gro="off",
        irq_affinity="local",
    )
    host.sysctl("ipv4/ip_local_reserved_ports", "5000-5005")
    before = channels(host), features(host), inside(host, lambda _: PORTS.read_text())
    records: list[Undo] = []
    result = inside(host, lambda kernel: prepare([nic], 0, kernel, records.append))
    by_name = {outcome.name.removeprefix(f"{host.ifname} "): outcome for outcome in result.outcomes}
    assert by_name["queues"].status == by_name["offloads"].status == "done"
    assert by_name["61000-65535 reserved ports"].status == "done"
    for name in ("ring sizes", "interrupt coalescing", "interrupt affinity"):
        assert by_name[name].status == "not supported", by_name[name]
    assert channels(host) == [2, 2]
    now = features(host)
    assert (now["tx-tcp-segmentation"], now["generic-receive-offload"]) == (False, False)
    assert inside(host, lambda _: PORTS.read_text()) == "5000-5005,61000-65535\n"
    outcomes = inside(host, lambda kernel: restore(records[-1], kernel)).outcomes
    assert {outcome.status for outcome in outcomes} == {"restored"}
    after = channels(host), features(host), inside(host, lambda _: PORTS.read_text())
    assert after == before


def test_by_default_only_the_reserved_ports_change(lab: Lab) -> None:
    host, other = lab.hosts
    nic = NicConfig(ifname=host.ifname)
    before = channels(host), features(host)
    result = inside(host, lambda kernel: prepare([nic], 0, kernel))
    assert [outcome.name for outcome in result.outcomes] == ["61000-65535 reserved ports"]
    assert (channels(host), features(host)) == before
    assert inside(host, lambda _: PORTS.read_text()) == "61000-65535\n"
    assert inside(other, lambda _: PORTS.read_text()) == "\n", "each namespace has its own"
    inside(host, lambda kernel: restore(result.undo, kernel))
    assert inside(host, lambda _: PORTS.read_text()) == "\n"
