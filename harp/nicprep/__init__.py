# SPDX-License-Identifier: Apache-2.0
"""Prepares NICs and their host for HARP as harp.toml asks, and restores them.

    host = Host()
    result = prepare([NicConfig("eth1", queues=8)], HostConfig(), host, record, Undo.from_json(old))
    ...
    restore(result.undo, host, record)

nic_config() and host_config() convert harp.toml's values. Only the reserved ports are changed
unless more is requested, and never an MTU. `record` writes Undo.to_json() where a restarted harpd
finds it. undo.py has the theory of operation.
"""

from harp.nicprep.host import Host
from harp.nicprep.plan import Change, HostConfig, NicConfig, plan, plan_host
from harp.nicprep.prepare import prepare
from harp.nicprep.settings import host_config, nic_config
from harp.nicprep.topology import cores_of_queues, interrupts
from harp.nicprep.transport import Ethtool, KernelEthtool
from harp.nicprep.undo import Outcome, Result, Undo, apply, restore

__all__ = [
    "Change",
    "Ethtool",
    "Host",
    "HostConfig",
    "KernelEthtool",
    "NicConfig",
    "Outcome",
    "Result",
    "Undo",
    "apply",
    "cores_of_queues",
    "host_config",
    "interrupts",
    "nic_config",
    "plan",
    "plan_host",
    "prepare",
    "restore",
]
