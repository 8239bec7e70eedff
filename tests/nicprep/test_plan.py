# SPDX-License-Identifier: Apache-2.0
"""A plan has only differences from the current state, and reports what is not possible."""

from typing import Any

import pytest
from fake_host import FakeHost, FakeNic, nic

from harp import config
from harp.config import NicConfig
from harp.nicprep import interrupts, ranges, restore
from harp.nicprep.plan import Change, plan, plan_host
from harp.nicprep.undo import apply


def needed_changes(fake: FakeHost, **keys: Any) -> list[Change]:
    return [change for change in plan(nic(**keys), fake.host) if change.is_needed]


def needed_host_changes(fake: FakeHost, *nics: NicConfig, huge_pages: int = 0) -> list[Change]:
    return [change for change in plan_host(nics, huge_pages, fake.host) if change.is_needed]


def test_defaults_change_only_the_reserved_ports(fake: FakeHost) -> None:
    settings = config.parse('[[nic]]\nifname = "eth1"\n')
    assert plan(settings.nics[0], fake.host) == []
    (change,) = needed_host_changes(fake, *settings.nics, huge_pages=settings.daemon.huge_pages)
    assert change.kind == "reserved-ports"
    assert change.after == {"ports": "61000-65535"}
    assert needed_host_changes(fake) == []


def test_planning_writes_nothing(fake: FakeHost) -> None:
    assert needed_changes(fake, queues=4, rx_ring=4096, coalesce="low")
    assert fake.ethtool.log == []


def test_settings_that_already_match_need_no_change(fake: FakeHost) -> None:
    keys = {"queues": 8, "rx_ring": 512, "coalesce": "adaptive", "gro": "on"}
    assert needed_changes(fake, **keys) == []
    assert len(plan(nic(**keys), fake.host)) == 4


def test_each_setting_is_planned(fake: FakeHost) -> None:
    changes = needed_changes(
        fake,
        queues=4,
        rx_ring=4096,
        tx_ring=1024,
        coalesce="set",
        lro="off",
        gro="off",
        irq_affinity="local",
    )
    by_kind = {change.kind: change for change in changes}
    assert by_kind["channels"].after == {"combined": 4}
    assert by_kind["rings"].after == {"rx": 4096, "tx": 1024}
    assert by_kind["rings"].line == (
        "eth1 ring sizes: rx 512 -> 4096, tx 512 -> 1024 (the link may pause for a moment)"
    )
    times = {"rx_usecs": 8, "tx_usecs": 8}
    assert by_kind["coalesce"].after == {"adaptive_rx": 0, "adaptive_tx": 0, **times}
    assert by_kind["features"].after == {"rx-lro": False, "rx-gro": False}
    assert by_kind["features"].line == "eth1 offloads: rx-lro on -> off, rx-gro on -> off"
    assert by_kind["irq-affinity"].target == "eth1 irq 47"
    assert by_kind["irq-affinity"].after == {"processors": "7"}, "processors of the NIC's node only"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"coalesce": "low"}, {"adaptive_rx": 0, "adaptive_tx": 0, "rx_usecs": 0, "tx_usecs": 0}),
        (
            {"coalesce": "set", "coalesce_rx_us": 5, "coalesce_tx_us": 6},
            {"adaptive_rx": 0, "adaptive_tx": 0, "rx_usecs": 5, "tx_usecs": 6},
        ),
    ],
)
def test_coalescing(fake: FakeHost, keys: dict[str, Any], expected: dict[str, int]) -> None:
    (change,) = needed_changes(fake, **keys)
    assert change.after == expected
    del fake.nic.parts["coalesce"]["adaptive_tx"]
    (change,) = needed_changes(fake, **keys)
    assert "adaptive_tx" not in change.after, "one switch for both directions"


def test_requests_above_the_maximum_are_reduced_and_reported(fake: FakeHost) -> None:
    (channels,) = needed_changes(fake, queues=64)
    assert channels.after == {"combined": 16}
    assert "combined 64 requested, 16 is the limit" in channels.note


def test_queues_for_each_direction(fake: FakeHost) -> None:
    fake.nic.parts["channels"] = {"rx": 1, "rx_max": 8, "tx": 1, "tx_max": 8}
    (channels,) = needed_changes(fake, queues=4)
    assert channels.after == {"rx": 4, "tx": 4}


def test_a_nic_without_any_setting_reports_each_problem(fake: FakeHost) -> None:
    fake.ethtool.nics["eth1"] = FakeNic("veth", "")
    changes = needed_changes(
        fake,
        queues=2,
        rx_ring=64,
        coalesce="low",
        lro="on",
        irq_affinity="local",
        defer_irqs=2,
    )
    kinds = ["channels", "rings", "coalesce", "features", "napi", "irq-affinity"]
    assert [change.kind for change in changes] == kinds
    assert all(change.absent and change.problem for change in changes)


def test_one_missing_offload_does_not_block_others(fake: FakeHost) -> None:
    (change,) = needed_changes(fake, lro="off", gro_hw="on")
    assert change.after == {"rx-lro": False}
    assert "can't be set here: rx-gro-hw" in change.line


def test_a_node_without_usable_processors_is_a_problem(fake: FakeHost) -> None:
    fake.allowed.clear()
    (change,) = needed_changes(fake, irq_affinity="local")
    assert "none of the processors" in change.problem
    (outcome,) = apply([change], fake.host).outcomes
    assert outcome.status == "refused"


def test_an_unknown_interface_is_refused(fake: FakeHost) -> None:
    (change,) = plan(nic("eth9", rx_ring=64), fake.host)
    assert change.problem == "no device matches name"


def test_reserved_ports_are_added_to_those_of_others(fake: FakeHost) -> None:
    path = "proc/sys/net/ipv4/ip_local_reserved_ports"
    fake.write(path, "5000,62000-62005")
    (change,) = needed_host_changes(
        fake, nic(ports=(61000, 61999)), nic("eth2", ports=(63000, 63001))
    )
    assert change.after == {"ports": "5000,61000-62005,63000-63001"}
    fake.write(path, "1-65535")
    assert needed_host_changes(fake, nic()) == []


def test_huge_pages_are_on_the_nodes_of_nics_and_never_shrink(fake: FakeHost) -> None:
    (_, near) = needed_host_changes(fake, nic(), huge_pages=65)
    assert (near.target, near.after) == ("node1/2048kB", {"pages": 65})
    everywhere = needed_host_changes(fake, huge_pages=65)
    assert [change.after["pages"] for change in everywhere] == [33, 32]
    fake.write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", 100)
    assert [change.kind for change in needed_host_changes(fake, nic(), huge_pages=65)] == [
        "reserved-ports"
    ]


def test_only_interrupts_of_queues_are_listed(fake: FakeHost) -> None:
    listed = interrupts(fake.host, "eth1")
    assert [(interrupt.number, interrupt.queue) for interrupt in listed] == [
        (40 + queue, queue) for queue in range(8)
    ]


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
def test_interrupt_names_of_drivers(fake: FakeHost, name: str, queue: int | None) -> None:
    fake.write("proc/interrupts", f"   CPU0\n 40:  9  PCI-MSIX  2-edge  {name}\n")
    assert [interrupt.queue for interrupt in interrupts(fake.host, "eth1")] == (
        [] if queue is None else [queue]
    )


def test_a_sibling_port_keeps_its_interrupts(fake: FakeHost) -> None:
    (fake.sys / "bus/pci/devices/0000:41:00.0/net/eth2").mkdir()
    lines = " 40:  9  PCI-MSIX  2-edge  mlx4-eth1-0\n 41:  9  PCI-MSIX  3-edge  mlx4-eth2-0\n"
    fake.write("proc/interrupts", "  CPU0\n" + lines)
    assert [interrupt.number for interrupt in interrupts(fake.host, "eth1")] == [40]


def test_interrupts_use_different_cores_first(fake: FakeHost) -> None:
    """One thread per core before the siblings; among equals, processor 0 is the last."""

    def cores(**keys: Any) -> list[str]:
        changes = plan(nic(irq_affinity="local", **keys), fake.host)
        return [change.after["processors"] for change in changes]

    assert cores() == ["4", "5", "6", "7"] * 2
    fake.allowed = {0, 1, 4}
    assert cores() == ["4"] * 8
    (fake.sys / "bus/pci/devices/0000:41:00.0/numa_node").write_text("-1")
    assert cores()[:3] == ["1", "4", "0"]
    changes = plan(nic(irq_affinity="cores", irq_cores=(6, 2)), fake.host)
    assert [change.after["processors"] for change in changes] == ["6", "2"] * 4


def test_a_device_is_identified_by_its_bus(fake: FakeHost) -> None:
    fake.nic.bus = ""
    (fake.sys / "class/net/eth1/device").mkdir(parents=True)
    assert fake.host.device("eth1") is None
    for bus in ("../../../../proc", "..", "."):
        fake.nic.bus = bus
        assert fake.host.device("eth1") is None


@pytest.mark.parametrize("numbers", [set(), {0}, {1, 2, 3, 8}, {65535}, set(range(61000, 65536))])
def test_ranges_are_parsed_and_formatted(numbers: set[int]) -> None:
    assert ranges.parse(ranges.text(numbers)) == numbers


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "0-70000", "1--2"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        ranges.parse(text)


def test_a_missing_offload_counts_as_off(fake: FakeHost) -> None:
    assert needed_changes(fake, gro_hw="off") == []
    (change,) = needed_changes(fake, gro_hw="on")
    assert change.problem == "can't be set here: rx-gro-hw"


def test_irq_deferral_needs_sysfs_of_its_own_namespace(fake: FakeHost) -> None:
    nic_config = nic(defer_irqs=2, gro_flush_us=20)
    fake.write("sys/class/net/eth1/napi_defer_hard_irqs", 0)
    fake.write("sys/class/net/eth1/gro_flush_timeout", 0)
    fake.write("sys/class/net/eth1/ifindex", 77)
    (change,) = plan(nic_config, fake.host)
    assert change.problem == "/sys shows another network namespace"
    fake.write("sys/class/net/eth1/ifindex", 5)
    result = apply(plan(nic_config, fake.host), fake.host)
    assert fake.read("sys/class/net/eth1/napi_defer_hard_irqs") == "2"
    assert fake.read("sys/class/net/eth1/gro_flush_timeout") == "20000"
    restore(result.undo, fake.host)
    assert fake.read("sys/class/net/eth1/gro_flush_timeout") == "0"
