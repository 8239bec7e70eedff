# SPDX-License-Identifier: Apache-2.0
"""Prepares NICs and their host for HARP as harp.toml specifies, and restores them.

    host = Host()
    result = prepare(config.nics, config.daemon.huge_pages, host, record, old)
    ...
    restore(result.undo, host, record)

By default only the reserved ports are changed; the MTU never is. `record` stores the Undo for a
restarted harpd. undo.py has the theory of operation.
"""

from harp.nicprep.host import Host, interrupts
from harp.nicprep.undo import Entry, Preparation, Record, Undo, prepare, restore

__all__ = ["Entry", "Host", "Preparation", "Record", "Undo", "interrupts", "prepare", "restore"]
