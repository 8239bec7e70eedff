# SPDX-License-Identifier: Apache-2.0
"""A plan requests only differences from the current state, and names what is not possible."""

import pytest
from fake_host import FakeHost, FakeNic

from harp.nicprep import (
    HostConfig,
    NicConfig,
    apply,
    cores_of_queues,
    interrupts,
    plan,
    plan_host,
    ranges,
    restore,
)


def test_no_request_changes_nothing(fake: FakeHost) -> None:
    assert plan(NicConfig("eth1"), fake.host) == []
    (change,) = plan_host(HostConfig(), fake.host)
    assert change.kind == "reserved-ports"
    assert change.after == {"ports": "61000-65535"}
    assert plan_host(HostConfig(reserved_ports=()), fake.host) == []


def test_planning_writes_nothing(fake: FakeHost) -> None:
    config = NicConfig("eth1", queues=4, rx_ring="max", adaptive=False, rss="equal")
    assert plan(config, fake.host)
    assert fake.ethtool.log == []


def test_what_is_already_so_is_no_change(fake: FakeHost) -> None:
    config = NicConfig(
        "eth1",
        queues=8,
        rx_ring=512,
        adaptive=True,
        offloads={"rx-gro": True},
        rss=range(8),
    )
    assert plan(config, fake.host) == []


def test_each_setting_is_planned(fake: FakeHost) -> None:
    config = NicConfig(
        "eth1",
        queues=4,
        rx_ring="max",
        tx_ring=1024,
        adaptive=False,
        rx_usecs=8,
        offloads={"rx-lro": False, "rx-gro": True},
        rss=[0, 1],
        irq_affinity="local",
    )
    changes = {change.kind: change for change in plan(config, fake.host)}
    assert changes["channels"].after == {"combined": 4}
    assert changes["rings"].after == {"rx": 4096, "tx": 1024}
    assert changes["rings"].words == (
        "eth1 ring sizes: rx 512 -> 4096, tx 512 -> 1024 (the link may pause for a moment)"
    )
    assert changes["coalesce"].after == {"adaptive_rx": 0, "adaptive_tx": 0, "rx_usecs": 8}
    assert changes["features"].after == {"rx-lro": False, "rx-gro": True}
    assert changes["rss"].after == {"table": [0, 1] * 64}
    assert changes["rss"].words == (
        "eth1 RSS table: table the driver's default -> queues 0-1 (128 entries)"
    )
    assert changes["irq-affinity"].target == "eth1 irq 47"
    assert changes["irq-affinity"].after == {"processors": "7"}, "of the NIC's node alone"


def test_requests_above_the_maximum_are_reduced_and_reported(fake: FakeHost) -> None:
    (channels,) = plan(NicConfig("eth1", queues=64), fake.host)
    assert channels.after == {"combined": 16}
    assert "combined 64 asked for, 16 is the most" in channels.note


def test_queues_for_each_direction(fake: FakeHost) -> None:
    fake.nic.parts["channels"] = {"rx": 1, "rx_max": 8, "tx": 1, "tx_max": 8}
    (channels,) = plan(NicConfig("eth1", queues=4), fake.host)
    assert channels.after == {"rx": 4, "tx": 4}


def test_a_nic_with_nothing_says_so_for_each(fake: FakeHost) -> None:
    fake.ethtool.nics["eth1"] = FakeNic("veth", "")
    config = NicConfig(
        "eth1",
        queues=2,
        rx_ring=64,
        adaptive=False,
        offloads={"rx-lro": True},
        rss="equal",
        irq_affinity="local",
        defer_irqs=2,
    )
    changes = plan(config, fake.host)
    kinds = ["channels", "rings", "coalesce", "features", "napi", "rss", "irq-affinity"]
    assert [change.kind for change in changes] == kinds
    assert all(change.absent and change.problem for change in changes)


def test_one_offload_that_is_not_there_does_not_hinder_the_others(fake: FakeHost) -> None:
    (change,) = plan(NicConfig("eth1", offloads={"rx-lro": False, "warp": True}), fake.host)
    assert change.after == {"rx-lro": False}
    assert "can't be set here: warp" in change.words


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (NicConfig("eth1", queues=0), "at least 1"),
        (NicConfig("eth1", tx_ring=-1), "at least 1"),
        (NicConfig("eth1", rss=[]), "no queue"),
        (NicConfig("eth1", irq_affinity=[]), "no processor"),
    ],
)
def test_what_makes_no_sense_is_a_problem(fake: FakeHost, config: NicConfig, problem: str) -> None:
    (change,) = plan(config, fake.host)
    assert problem in change.problem
    (outcome,) = apply([change], fake.host).outcomes
    assert outcome.status == "refused"


def test_an_empty_rss_table_is_no_table(fake: FakeHost) -> None:
    fake.nic.parts["rss"]["table"] = []
    (change,) = plan(NicConfig("eth1", rss="equal"), fake.host)
    assert change.problem


def test_an_unknown_interface_is_refused(fake: FakeHost) -> None:
    (change,) = plan(NicConfig("eth9", rx_ring=64), fake.host)
    assert change.problem == "no device matches name"


def test_reserved_ports_join_what_is_there(fake: FakeHost) -> None:
    fake.write("proc/sys/net/ipv4/ip_local_reserved_ports", "5000,62000-62005")
    (change,) = plan_host(HostConfig([(61000, 61999)]), fake.host)
    assert change.after == {"ports": "5000,61000-62005"}
    fake.write("proc/sys/net/ipv4/ip_local_reserved_ports", "1-65535")
    assert plan_host(HostConfig(), fake.host) == []


def test_huge_pages_go_to_the_nodes_of_the_nics_and_never_shrink(fake: FakeHost) -> None:
    config = HostConfig((), huge_pages=65)
    (near,) = plan_host(config, fake.host, ["eth1"])
    assert (near.target, near.after) == ("node1/2048kB", {"pages": 65})
    everywhere = plan_host(config, fake.host)
    assert [change.after["pages"] for change in everywhere] == [33, 32]
    fake.write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", 100)
    assert plan_host(config, fake.host, ["eth1"]) == []


def test_interrupts_of_the_queues_alone(fake: FakeHost) -> None:
    found = interrupts(fake.host, "eth1")
    assert [(each.number, each.queue) for each in found] == [(40 + q, q) for q in range(8)]


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("virtio2-input.0", 0),
        ("virtio2-output.3", 3),
        ("virtio2-config", None),
        ("mlx5_comp7@pci:0000:41:00.0", 7),
        ("mlx5_async0@pci:0000:41:00.0", None),
        ("i40e-eth1-TxRx-11", 11),
        ("i40e-0000:41:00.0:misc", None),
        ("ice-eth1-TxRx-2", 2),
        ("ena-mgmnt@pci:0000:41:00.0", None),
        ("eth1-Tx-Rx-5", 5),
        ("gve-ntfy-blk6@pci:0000:41:00.0", 6),
        ("gve-mgmnt@pci:0000:41:00.0", None),
        ("bnxt_en-eth1-TxRx-1", 1),
    ],
)
def test_names_that_drivers_give(fake: FakeHost, name: str, queue: int | None) -> None:
    fake.write("proc/interrupts", f"   CPU0\n 40:  9  PCI-MSIX  2-edge  {name}\n")
    assert [each.queue for each in interrupts(fake.host, "eth1")] == (
        [] if queue is None else [queue]
    )


def test_a_sibling_port_keeps_its_interrupts(fake: FakeHost) -> None:
    (fake.sys / "bus/pci/devices/0000:41:00.0/net/eth2").mkdir()
    lines = " 40:  9  PCI-MSIX  2-edge  mlx4-eth1-0\n 41:  9  PCI-MSIX  3-edge  mlx4-eth2-0\n"
    fake.write("proc/interrupts", "  CPU0\n" + lines)
    assert [each.number for each in interrupts(fake.host, "eth1")] == [40]


def test_cores_are_near_and_their_own_while_they_last(fake: FakeHost) -> None:
    # Node 1 (4-7), one thread of each core before its sibling, then node 0 with processor 0 late.
    order = [4, 5, 6, 7, 1, 0, 2, 3]
    assert cores_of_queues(fake.host, "eth1", 4) == order[:4]
    assert cores_of_queues(fake.host, "eth1", 10) == [*order, *order[:2]]
    fake.allowed = {0, 1}
    assert cores_of_queues(fake.host, "eth1", 3) == [1, 0, 1]


def test_a_device_is_known_by_its_bus_not_by_its_name(fake: FakeHost) -> None:
    fake.nic.bus = ""
    (fake.sys / "class/net/eth1/device").mkdir(parents=True)
    assert fake.host.device("eth1") is None
    for evil in ("../../../../proc", "..", "."):
        fake.nic.bus = evil
        assert fake.host.device("eth1") is None


@pytest.mark.parametrize("numbers", [set(), {0}, {1, 2, 3, 8}, {65535}, set(range(61000, 65536))])
def test_ranges_there_and_back(numbers: set[int]) -> None:
    assert ranges.parse(ranges.text(numbers)) == numbers


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "0-70000", "1--2"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        ranges.parse(text)


def test_an_offload_that_is_not_there_is_off(fake: FakeHost) -> None:
    assert plan(NicConfig("eth1", offloads={"rx-gro-hw": False}), fake.host) == []
    (change,) = plan(NicConfig("eth1", offloads={"rx-gro-hw": True}), fake.host)
    assert change.problem == "can't be set here: rx-gro-hw"


def test_deferral_needs_the_folder_of_our_own_namespace(fake: FakeHost) -> None:
    config = NicConfig("eth1", defer_irqs=2, gro_flush_us=20)
    fake.write("sys/class/net/eth1/napi_defer_hard_irqs", 0)
    fake.write("sys/class/net/eth1/gro_flush_timeout", 0)
    fake.write("sys/class/net/eth1/ifindex", 77)
    (change,) = plan(config, fake.host)
    assert change.problem == "/sys shows another network namespace"
    fake.write("sys/class/net/eth1/ifindex", 5)
    result = apply(plan(config, fake.host), fake.host)
    assert fake.read("sys/class/net/eth1/napi_defer_hard_irqs") == "2"
    assert fake.read("sys/class/net/eth1/gro_flush_timeout") == "20000"
    restore(result.undo, fake.host)
    assert fake.read("sys/class/net/eth1/gro_flush_timeout") == "0"
