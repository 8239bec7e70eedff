# SPDX-License-Identifier: Apache-2.0
"""Prepares NICs as harp.toml asks and restores them, with the results logged (harp.nicprep)."""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from harp import nicprep
from harp.daemon.settings import Settings
from harp.errors import HarpError

log = logging.getLogger("harpd")
Record = Callable[[Any], None]  # writes the list of changes, as JSON; None: there are none


def _undo(value: Any) -> nicprep.Undo:
    try:
        return nicprep.Undo.from_json(value)
    except HarpError as error:
        log.error("%s; what an earlier harpd changed stays as it is", error)
        return nicprep.Undo()


def _json(undo: nicprep.Undo) -> Any:
    return undo.to_json() if undo.entries else None


def _finish(result: nicprep.Result, record: Record) -> None:
    for outcome in result.outcomes:
        trouble = outcome.status not in ("done", "restored", "gone")
        log.log(logging.WARNING if trouble else logging.INFO, "%s", outcome.line)
    # A failure to write was logged; harpd must still be able to end.
    with contextlib.suppress(OSError):
        record(_json(result.undo))


class Preparation:
    """Prepares and restores the NICs of this host."""

    def prepare(self, settings: Settings, undo: Any, record: Record) -> None:
        """Prepare the NICs; record() after each change. undo: changes of an earlier harpd."""
        result = nicprep.prepare(
            settings.nics,
            settings.huge_pages,
            nicprep.Host(),
            lambda changes: record(_json(changes)),
            _undo(undo),
        )
        _finish(result, record)

    def restore(self, undo: Any, record: Record) -> None:
        """Restore everything; record() what can't be restored. HarpError: the list is invalid, and
        nothing was done.
        """
        changes = nicprep.Undo.from_json(undo)
        result = nicprep.restore(changes, nicprep.Host(), lambda left: record(_json(left)))
        _finish(result, record)
