# SPDX-License-Identifier: Apache-2.0
"""Loads harp.toml for harpd, and prepares NICs with harp.nicprep."""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harp import config, nicprep
from harp.daemon.daemon import Documents, Metrics, Preparation
from harp.daemon.settings import Settings
from harp.errors import HarpError

log = logging.getLogger("harpd")


def read(path: Path | None) -> Settings:
    """Load the file (None: HARP_CONFIG, or the default) and harpd's own environment;
    ConfigError.
    """
    found = config.load(path, readers=config.Reader.DAEMON)
    for warning in found.warnings:
        log.warning("%s", warning)
    return Settings.of(found)


def read_again(path: Path | None) -> Callable[[Settings], Settings]:
    """Reload for SIGHUP: apply what may change live; log what needs a restart."""

    def again(old: Settings) -> Settings:
        new = config.load(path, readers=config.Reader.DAEMON)
        difference = config.reload(old.source, new)
        for change in difference.live:
            log.info("now %s", change)
        for change in difference.restart:
            log.warning("%s: needs `harpctl restart`", change)
        return Settings.of(difference.effective)

    return again


def start_metrics(settings: Settings, documents: Callable[[], Documents]) -> Metrics | None:
    """Start the Prometheus endpoint; None if harp.toml disables it. ExporterError."""
    if settings.metrics.port == 0:
        return None
    # prometheus_client takes a while to import.
    from harp.daemon import exporter, families

    return exporter.start(
        settings.metrics.address,
        settings.metrics.port,
        lambda: families.daemon_view(*documents()),
    )


class NicPreparation(Preparation):
    """harp.nicprep, with its results logged."""

    def __init__(self, host: nicprep.Host | None = None) -> None:
        self._host = host or nicprep.Host()

    @staticmethod
    def _undo(value: Any) -> nicprep.Undo:
        try:
            return nicprep.Undo.from_json(value)
        except HarpError as error:
            log.error("%s; what an earlier harpd changed stays as it is", error)
            return nicprep.Undo()

    @staticmethod
    def _log(outcomes: list[nicprep.Outcome]) -> None:
        for outcome in outcomes:
            trouble = outcome.status not in ("done", "restored", "gone")
            log.log(logging.WARNING if trouble else logging.INFO, "%s", outcome.line)

    @staticmethod
    def _record(record: Callable[[Any], None]) -> Callable[[nicprep.Undo], None]:
        return lambda undo: record(undo.to_json() if undo.entries else None)

    def prepare(self, settings: Settings, undo: Any, record: Callable[[Any], None]) -> None:
        """Prepare the NICs as harp.toml asks."""
        result = nicprep.prepare(
            settings.nics, settings.huge_pages, self._host, self._record(record), self._undo(undo)
        )
        self._log(result.outcomes)

    def restore(self, undo: Any, record: Callable[[Any], None]) -> None:
        """Restore the NICs."""
        result = nicprep.restore(self._undo(undo), self._host, self._record(record))
        self._log(result.outcomes)
        # A failure to write was logged; harpd must still be able to end.
        with contextlib.suppress(OSError):
            record(result.undo.to_json() if result.undo.entries else None)
