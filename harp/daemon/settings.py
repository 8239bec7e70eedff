# SPDX-License-Identifier: Apache-2.0
"""harpd's settings: [daemon] of harp.toml, and what harpd uses of the other tables."""

from dataclasses import dataclass, field
from typing import Any

from harp.config import Config, DaemonConfig, DpdkConfig, MetricsConfig, NicConfig


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonConfig):
    """All settings. job: lines of NAME=VALUE for WELCOME; source: the whole configuration."""

    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    page_flows: int = 256
    job: str = ""
    nics: tuple[NicConfig, ...] = ()
    dpdk: tuple[DpdkConfig, ...] = ()
    source: Any = field(default=None, compare=False)

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
