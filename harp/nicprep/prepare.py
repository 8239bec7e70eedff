# SPDX-License-Identifier: Apache-2.0
"""prepare() at harpd's start and when a NIC appears; and what harpd uses of this package."""

import logging
from collections.abc import Sequence

from harp.config import NicConfig
from harp.nicprep.host import Host
from harp.nicprep.plan import Change, plan, plan_host
from harp.nicprep.undo import Record, Result, Undo, apply, no_record, restore

log = logging.getLogger("harpd")


def prepare(
    nics: Sequence[NicConfig],
    huge_pages: int,
    host: Host,
    record: Record = no_record,
    undo: Undo | None = None,
) -> Result:
    """Prepare the host and its NICs; restore first what an earlier call changed and is no longer
    requested. Blocks: a NIC may take a second to change its rings.

    Parameters
    ----------
    nics
        Requests of harp.toml.
    huge_pages
        Huge pages of 2 MiB that the host must have; 0: unchanged.
    record
        Writes the list of changes, before and after each change.
    undo
        Changes of earlier calls.
    """

    def requests() -> list[Change]:
        found = plan_host(nics, huge_pages, host)
        for nic in nics:
            found += plan(nic, host)
        return found

    result = restore(undo or Undo(), host, record, requests())
    # The number of queues comes first and the rest is read after it, because the interrupts change
    # with the queues.
    for of_queues in (True, False):
        changes = [each for each in requests() if (each.kind == "channels") is of_queues]
        made = apply(changes, host, record, result.undo)
        result = Result(result.outcomes + made.outcomes, made.undo)
    return result


class Preparation:
    """Prepares and restores the NICs of this host, and logs the results. Tests replace it."""

    def prepare(
        self, nics: Sequence[NicConfig], huge_pages: int, undo: Undo, record: Record
    ) -> None:
        """Prepare the NICs. undo: changes of an earlier harpd."""
        _log(prepare(nics, huge_pages, Host(), record, undo))

    def restore(self, undo: Undo, record: Record) -> None:
        """Restore everything that can be restored."""
        _log(restore(undo, Host(), record))


def _log(result: Result) -> None:
    for outcome in result.outcomes:
        trouble = outcome.status not in ("done", "restored", "gone")
        log.log(logging.WARNING if trouble else logging.INFO, "%s", outcome.line)
