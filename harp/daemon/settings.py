# SPDX-License-Identifier: Apache-2.0
"""harpd's settings: [daemon] of harp.toml, and what harpd uses of the other tables."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from harp import config
from harp.config import Config, DaemonConfig, DpdkConfig, MetricsConfig, NicConfig

log = logging.getLogger("harpd")


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonConfig):
    """All settings. job: lines of NAME=VALUE for WELCOME; source: the whole configuration."""

    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    page_flows: int = 256
    job: str = ""
    nics: tuple[NicConfig, ...] = ()
    dpdk: tuple[DpdkConfig, ...] = ()
    source: Config | None = field(default=None, compare=False)

    @classmethod
    def of(cls, found: Config) -> "Settings":
        """Return the settings of a configuration."""
        return cls(
            **vars(found.daemon),
            metrics=found.metrics,
            page_flows=int(str(found["HARP_PAGE_FLOWS"])),
            job=found.job_settings(),
            nics=found.nics,
            dpdk=found.dpdk,
            source=found,
        )

    @property
    def port_rest_s(self) -> float:
        """Return the time of the port quarantine in seconds."""
        return self.port_rest_ms / 1000

    def reloaded(self, new: "Settings") -> "Settings":
        """Return the new settings, except those that need a restart, which are logged."""
        if self.source is None or new.source is None:
            return new
        difference = config.reload(self.source, new.source)
        for change in difference.live:
            log.info("now %s", change)
        for change in difference.restart:
            log.warning("%s: needs `harpctl restart`", change)
        return Settings.of(difference.effective)


def read(path: Path | None) -> Settings:
    """Load the file (None: HARP_CONFIG, or the default) and harpd's own environment;
    ConfigError.
    """
    found = config.load(path, readers=config.Reader.DAEMON)
    for warning in found.warnings:
        log.warning("%s", warning)
    return Settings.of(found)
