# SPDX-License-Identifier: Apache-2.0
"""Prepares NICs and their host for HARP as harp.toml asks, and restores them.

    host = Host()
    result = prepare(config.nics, config.daemon.huge_pages, host, record, old)
    ...
    restore(result.undo, host, record)

By default only the reserved ports are changed; an MTU never is. `record` writes the Undo
where a restarted harpd finds it. undo.py has the theory of operation.
"""

from harp.nicprep.host import Host, interrupts
from harp.nicprep.kinds import KINDS
from harp.nicprep.plan import Change, plan, plan_host
from harp.nicprep.transport import Ethtool
from harp.nicprep.undo import (
    Entry,
    Outcome,
    Preparation,
    Record,
    Result,
    Undo,
    apply,
    prepare,
    restore,
)

__all__ = [
    "KINDS",
    "Change",
    "Entry",
    "Ethtool",
    "Host",
    "Outcome",
    "Preparation",
    "Record",
    "Result",
    "Undo",
    "apply",
    "interrupts",
    "plan",
    "plan_host",
    "prepare",
    "restore",
]
