# SPDX-License-Identifier: Apache-2.0
"""DPDK ports: harp.toml's [[dpdk]], each leased to one job at a time.

harpd never opens a port and never starts DPDK. It sends the port's specification and a statistics
page for each queue. The job opens the device itself, with its own permissions. So a lease excludes
only jobs that use harpd; permissions of the device exclude others (docs/security.md).
"""

import errno
import ipaddress

from harp import _core, _host
from harp.config import DpdkConfig
from harp.daemon.kernel import Kernel
from harp.daemon.messages import Device
from harp.daemon.settings import Settings
from harp.daemon.table import Lease, LeaseTable, Owner, RefusedError


class Ports:
    """All ports, by name."""

    def __init__(self, settings: Settings, kernel: Kernel, table: LeaseTable) -> None:
        self._kernel, self._table = kernel, table
        # A lease of a port that harp.toml no longer has continues.
        self.all: dict[str, DpdkConfig] = {port.port: port for port in settings.dpdk}

    def reserve(
        self, owner: Owner, name: str, queues: int, label: str, *, since_s: float, held: int
    ) -> Lease:
        """Reserve a port; RefusedError with the reason."""
        port = self.all[name]
        problem = self._kernel.port(port).problem
        if problem:
            raise RefusedError(errno.ENODEV, f"DPDK port {name} can't be leased: {problem}")
        granted = min(queues or 1, port.queues)
        return self._table.reserve_port(
            owner, name, port.device, granted, label, since_s=since_s, held=held
        )

    def spec(self, lease: Lease) -> str:
        """Return the specification of a leased port."""
        return self.all[lease.ifname].spec(lease.queues)

    # ---- for WELCOME and status ----

    def device(self, name: str) -> Device:
        port = self.all[name]
        facts, spec = self._kernel.port(port), _core.port_spec(port.text)
        holder = self._table.holder(name, port.device)
        queues = 0 if facts.problem else port.queues
        return Device(
            ifname=name,
            ifindex=0,
            flags=_host.DEVICE_DPDK | (0 if facts.problem else _host.DEVICE_UP),
            mtu_bytes=spec.mtu_bytes,
            speed_mbps=0,
            queues=queues,
            queues_free=0 if holder else queues,
            numa_node=facts.numa_node,
            mac=bytes(6),
            netns=0,
            guid=0,
            addr_v4=_first(spec.addresses, 4),
            addr_v6=_first(spec.addresses, 6),
            pci_path=facts.pci_path,
        )

    def status(self, name: str) -> dict[str, object]:
        port = self.all[name]
        holder = self._table.holder(name, port.device)
        spec = _core.port_spec(port.text)
        return {
            "name": name,
            "device": port.device,
            "problem": self._kernel.port(port).problem,
            "queues": port.queues,
            "mtu_bytes": spec.mtu_bytes,
            "vlan_id": spec.vlan_id,
            "addresses": list(spec.addresses),
            "pid": holder.owner.pid if holder else None,
            "uid": holder.owner.uid if holder else None,
            "label": holder.label if holder else "",
            "queues_leased": holder.queues if holder else 0,
        }


def _first(addresses: tuple[str, ...], version: int) -> bytes:
    """Return the first address of a family, as struct harp_addr; empty without one."""
    for text in addresses:
        address = ipaddress.ip_interface(text).ip
        if address.version == version:
            return (bytes(10) + b"\xff\xff" if version == 4 else b"") + address.packed
    return b""
