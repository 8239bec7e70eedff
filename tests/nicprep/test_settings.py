# SPDX-License-Identifier: Apache-2.0
"""harp.toml's values as NIC preparation takes them."""

import re
from dataclasses import asdict
from pathlib import Path

from harp import config
from harp.nicprep import HostConfig, NicConfig, host_config, nic_config

KEEP = {"lro": "keep", "gro_hw": "keep", "coalesce": "keep", "irq_affinity": "keep"}
ZERO = {"queues": 0, "rx_ring": 0, "tx_ring": 0, "defer_irqs": 0, "gro_flush_us": 0}


def test_settings_with_the_value_keep_are_not_requested() -> None:
    assert nic_config({"ifname": "eth1"}) == NicConfig("eth1")
    assert nic_config({"ifname": "eth1", **KEEP, **ZERO}) == NicConfig("eth1")


def test_defaults_change_only_the_reserved_ports() -> None:
    """harp.toml's own defaults: HARP must never hurt a host that was not asked about it."""
    found = config.parse('[[nic]]\nifname = "eth1"\n')
    nics = [asdict(nic) for nic in found.nics]
    assert [nic_config(nic) for nic in nics] == [NicConfig("eth1")]
    assert host_config(asdict(found.daemon), nics) == HostConfig(((61000, 65535),), 0)


def test_all_settings_are_converted() -> None:
    made = nic_config(
        {
            "ifname": "eth1",
            "queues": 4,
            "rx_ring": 4096,
            "tx_ring": 1024,
            "coalesce": "set",
            "coalesce_rx_us": 5,
            "coalesce_tx_us": 6,
            "lro": "off",
            "tso": "on",
            "defer_irqs": 2,
            "gro_flush_us": 20,
            "irq_affinity": "cores",
            "irq_cores": "6,2-4",
        }
    )
    assert made == NicConfig(
        "eth1",
        queues=4,
        rx_ring=4096,
        tx_ring=1024,
        adaptive=False,
        rx_usecs=5,
        tx_usecs=6,
        offloads={
            "rx-lro": False,
            "tx-tcp-segmentation": True,
            "tx-tcp6-segmentation": True,
        },
        defer_irqs=2,
        gro_flush_us=20,
        irq_affinity=[6, 2, 3, 4],
    )


def test_coalescing_and_interrupts_by_word() -> None:
    low = nic_config({"ifname": "a", "coalesce": "low", "irq_affinity": "local"})
    assert (low.adaptive, low.rx_usecs, low.tx_usecs) == (False, 0, 0)
    assert low.irq_affinity == "local"
    adaptive = nic_config({"ifname": "a", "coalesce": "adaptive", "irq_cores": [1]})
    assert (adaptive.adaptive, adaptive.rx_usecs, adaptive.irq_affinity) == (True, None, None)
    cores = nic_config({"ifname": "a", "irq_affinity": "cores", "irq_cores": [5, 3]})
    assert cores.irq_affinity == [5, 3]


def test_ports_of_every_nic() -> None:
    nics = [{"ifname": "a"}, {"ifname": "b", "ports": "62000-63000"}, {"ports": (61000, 65535)}]
    made = host_config({"huge_pages": 7}, nics)
    assert made == HostConfig(((61000, 65535), (62000, 63000)), 7)
    assert host_config({}, []) == HostConfig(())


def test_the_keys_are_those_of_the_list(root_dir: Path) -> None:
    """Every key that is read here is one of harp_config.h."""
    listed = (root_dir / "dataplane/include/harp_config.h").read_text()
    known = set(re.findall(r'KEY\([A-Z_]+, [A-Z0-9]+, "(?:nic|daemon)", "([a-z_]+)"', listed))
    source = (root_dir / "harp/nicprep/settings.py").read_text()
    used = set(re.findall(r'(?:nic|daemon)(?:\.get\(|\[)"([a-z_]+)"', source))
    from harp.nicprep.settings import OFFLOADS

    assert used | OFFLOADS.keys() <= known
    assert len(used) > 8
