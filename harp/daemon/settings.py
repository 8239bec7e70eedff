# SPDX-License-Identifier: Apache-2.0
"""harpd's settings: [daemon] and parts of other tables of harp.toml. Also the rule that says which
users may have leases.
"""

import grp
import logging
import pwd
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harp import config
from harp.config import Config, DaemonConfig, DpdkConfig, MetricsConfig, NicConfig

log = logging.getLogger("harpd")
EVERYBODY = "*"


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonConfig):
    """All settings. job: lines of NAME=VALUE for WELCOME; source: the complete configuration."""

    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    page_flows: int = 256
    job: str = ""
    nics: tuple[NicConfig, ...] = ()
    dpdk: tuple[DpdkConfig, ...] = ()
    source: Config | None = field(default=None, compare=False)

    @classmethod
    def of(cls, source: Config) -> "Settings":
        return cls(
            **vars(source.daemon),
            metrics=source.metrics,
            page_flows=int(str(source["HARP_PAGE_FLOWS"])),
            job=source.job_settings(),
            nics=source.nics,
            dpdk=source.dpdk,
            source=source,
        )

    @property
    def port_rest_s(self) -> float:
        return self.port_rest_ms / 1000


def read(path: Path | None) -> Settings:
    """Read the file (None: HARP_CONFIG, or the default) and harpd's environment; ConfigError."""
    source = config.load(path, readers=config.Reader.DAEMON)
    for warning in source.warnings:
        log.warning("%s", warning)
    return Settings.of(source)


# ---- Access to leases: root, the named users, members of the named groups ----
def _number(name: str, look_up: Callable[[str], int]) -> int | None:
    try:
        return int(name) if name.isdecimal() else look_up(name)
    except KeyError:
        return None


def user_number(name: str) -> int | None:
    return _number(name, lambda known: pwd.getpwnam(known).pw_uid)


def group_number(name: str) -> int | None:
    return _number(name, lambda known: grp.getgrnam(known).gr_gid)


@dataclass(frozen=True)
class Access:
    """The rule, with numeric ids. unknown: names that this host does not have, for the log."""

    everybody: bool
    uids: frozenset[int]
    gids: frozenset[int]
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, users: Iterable[str], groups: Iterable[str]) -> "Access":
        users = list(users)
        uids = {name: user_number(name) for name in users if name != EVERYBODY}
        gids = {name: group_number(name) for name in groups}
        unknown = [f"user {name}" for name, uid in uids.items() if uid is None]
        unknown += [f"group {name}" for name, gid in gids.items() if gid is None]
        return cls(
            EVERYBODY in users,
            frozenset(uid for uid in uids.values() if uid is not None),
            frozenset(gid for gid in gids.values() if gid is not None),
            tuple(unknown),
        )

    def allows(self, uid: int, gids: Iterable[int]) -> bool:
        """Tell whether this user, with these groups, may have a lease."""
        return self.everybody or uid == 0 or uid in self.uids or bool(self.gids & set(gids))
