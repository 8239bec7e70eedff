# SPDX-License-Identifier: Apache-2.0
"""The answers to harpctl's queries: harpd's state, its NICs, its leases."""

import os
import time
from typing import Any

from harp import __version__
from harp.config import report
from harp.daemon.leasing import Leasing
from harp.daemon.netlink import Address
from harp.daemon.nics import Nic
from harp.daemon.settings import Settings
from harp.daemon.table import Lease, QueueState


def instance(lease: Lease) -> dict[str, Any]:
    return {
        "lease_id": f"{lease.lease_id:016x}",
        "ifname": lease.ifname,
        "queue": lease.queue,
        "ports": [lease.ports.first, lease.ports.last] if lease.ports else None,
        "device": lease.device or None,
        "queues": lease.queues,
        "pid": lease.owner.pid,
        "start_ticks": lease.owner.start_ticks,
        "uid": lease.owner.uid,
        "label": lease.label,
        "frame_count": lease.frame_count,
        "frame_size": lease.frame_size,
        "since_s": lease.since_s,
        "age_s": max(0.0, time.time() - lease.since_s),
        "marks": list(lease.marks),
        "active": lease.active,
    }


def config(settings: Settings) -> dict[str, Any]:
    """Return the settings in force, in the form of `harpctl config show -o json`."""
    assert settings.source is not None, "these settings are not of a configuration"
    return report.document(settings.source)


def instances(leasing: Leasing) -> dict[str, Any]:
    leases = sorted(leasing.table.leases.values(), key=lambda lease: (lease.ifname, lease.queue))
    return {"instances": [instance(lease) for lease in leases]}


def _verdicts(nic: Nic) -> dict[str, int]:
    if nic.steering is None:
        return {}
    try:
        return nic.steering.verdicts()
    except OSError:
        return {}


def nic_document(nic: Nic, leasing: Leasing) -> dict[str, Any]:
    table = leasing.table.nics.get(nic.ifname)
    link, hardware = nic.link, nic.hardware
    leasing.nics.check_reachability(nic)
    now_s = leasing.now_s()
    waiting = {
        str(queue): {"pid": recovery.pid, "for_s": now_s - recovery.since_s}
        for (ifname, queue), recovery in leasing.recovering.items()
        if ifname == nic.ifname
    }
    ports = table.ports if table else None
    return {
        "ifname": nic.ifname,
        "ifindex": link.ifindex if link else 0,
        "up": bool(link and link.up),
        "mtu_bytes": link.mtu_bytes if link else 0,
        "mode": "" if nic.steering is None else "native" if nic.steering.native else "generic",
        "mode_why": "" if nic.steering is None else nic.mode_why,
        "problem": nic.problem,
        "pinned": nic.pins is not None and nic.steering is not None,
        "default_route": hardware.default_route,
        "queues": {str(q): state.value for q, state in sorted(table.queues.items())}
        if table
        else {},
        "queues_free": table.count(QueueState.FREE) if table else 0,
        "queues_waiting": waiting,
        "queues_unreachable": table.unreachable if table else [],
        "queues_unreachable_why": table.one_queue_why if table else "",
        "nic_queues": hardware.queues,
        "rss": ("none", "unknown", "toeplitz")[min(hardware.rss_kind, 2)],
        "ports": list(nic.settings.ports),
        "ports_per_instance": ports.size if ports else 0,
        "port_blocks_resting": len(ports.quarantined) if ports else 0,
        "addresses": sorted(str(Address(raw, 0, 0)) for raw in nic.addresses),
        "allow_sources": None if nic.sources is None else list(nic.sources),
        "verdicts": _verdicts(nic),
    }


def status(leasing: Leasing, since_s: float, extra: dict[str, Any]) -> dict[str, Any]:
    return {
        "daemon": "harpd",
        "version": __version__,
        "pid": os.getpid(),
        "since_s": since_s,
        "uptime_s": max(0.0, time.time() - since_s),
        "leases": len(leasing.table.leases),
        "granted": leasing.granted,
        "refused": dict(leasing.refused),
        "nics": [nic_document(nic, leasing) for nic in leasing.nics.all.values()],
        "dpdk": [leasing.ports.status(name) for name in leasing.ports.all],
        **extra,
    }
