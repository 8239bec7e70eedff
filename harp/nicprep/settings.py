# SPDX-License-Identifier: Apache-2.0
"""Converts harp.toml's [[nic]] and [daemon] for NIC preparation (keys: harp_config.h)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harp.nicprep import ranges
from harp.nicprep.plan import HostConfig, NicConfig

# Key -> the kernel's names. One offload has several names because drivers differ.
OFFLOADS: dict[str, tuple[str, ...]] = {
    "lro": ("rx-lro",),
    "gro_hw": ("rx-gro-hw",),
    "gro": ("rx-gro",),
    "tso": ("tx-tcp-segmentation", "tx-tcp6-segmentation"),
    "rx_checksum": ("rx-checksum",),
    "tx_checksum": ("tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"),
}


def nic_config(nic: Mapping[str, Any]) -> NicConfig:
    """Convert one [[nic]] with checked values; absent keys, 0 where it means that, and "keep" leave
    the NIC as it is.
    """
    adaptive, rx_us, tx_us = _coalescing(nic)
    return NicConfig(
        ifname=str(nic["ifname"]),
        queues=nic.get("queues") or None,
        rx_ring=nic.get("rx_ring") or None,
        tx_ring=nic.get("tx_ring") or None,
        adaptive=adaptive,
        rx_usecs=rx_us,
        tx_usecs=tx_us,
        offloads={
            name: nic[key] == "on"
            for key, names in OFFLOADS.items()
            if nic.get(key, "keep") != "keep"
            for name in names
        },
        defer_irqs=nic.get("defer_irqs") or None,
        gro_flush_us=nic.get("gro_flush_us") or None,
        irq_affinity=_interrupts(nic),
    )


def host_config(daemon: Mapping[str, Any], nics: Iterable[Mapping[str, Any]]) -> HostConfig:
    """Convert [daemon] and every [[nic]], whose ports are reserved."""
    ports: set[tuple[int, int]] = set()
    for nic in nics:
        given = nic.get("ports", "61000-65535")
        numbers = sorted(ranges.parse(given)) if isinstance(given, str) else list(given)
        if numbers:
            ports.add((int(numbers[0]), int(numbers[-1])))
    return HostConfig(tuple(sorted(ports)), int(daemon.get("huge_pages", 0)))


def _coalescing(nic: Mapping[str, Any]) -> tuple[bool | None, int | None, int | None]:
    match nic.get("coalesce", "keep"):
        case "low":
            return False, 0, 0
        case "adaptive":
            return True, None, None
        case "set":
            return False, nic.get("coalesce_rx_us", 8), nic.get("coalesce_tx_us", 8)
    return None, None, None


def _interrupts(nic: Mapping[str, Any]) -> Any:
    match nic.get("irq_affinity", "keep"):
        case "local":
            return "local"
        case "cores":
            return _cores(nic.get("irq_cores", ()))
    return None


def _cores(value: str | Sequence[int]) -> list[int]:
    """In the given order: queue 0's first."""
    if not isinstance(value, str):
        return [int(core) for core in value]
    return [core for part in value.split(",") for core in sorted(ranges.parse(part))]
