# SPDX-License-Identifier: Apache-2.0
"""harpd's status and instances, as much as its metrics need."""

from typing import Any

Documents = tuple[dict[str, Any], dict[str, Any]]


def nic(ifname: str = "eth1", *queues: str, **changes: Any) -> dict[str, Any]:
    """A NIC with queues of these states."""
    return {
        "ifname": ifname,
        "up": True,
        "problem": "",
        "queues": {str(number): state for number, state in enumerate(queues)},
        "queues_unreachable": [],
        "verdicts": {},
        **changes,
    }


def documents(*nics: dict[str, Any], leases: Any = (), **changes: Any) -> Documents:
    """Documents of these NICs; leases: NIC, queue and process."""
    status = {
        "since_s": 1000.0, "nics": list(nics), "dpdk": [], "granted": 0, "refused": {}, "reloads": 0
    }  # fmt: skip
    instances = [
        {"ifname": ifname, "queue": queue, "pid": pid, "device": None, "queues": 1}
        for ifname, queue, pid in leases
    ]
    return status | changes, {"instances": instances}
