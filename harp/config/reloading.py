# SPDX-License-Identifier: Apache-2.0
"""What SIGHUP changes, and what needs a restart."""

from collections.abc import Mapping
from dataclasses import dataclass

from harp.config.keys import Reader
from harp.config.model import Config, Value, frozen


@dataclass(frozen=True)
class Change:
    """One key that differs. nic: the [[nic]] it is of, or empty. A NIC that came has no old, one
    that went no new; their name is "nic"."""

    name: str
    old: Value | None
    new: Value | None
    nic: str = ""

    def __str__(self) -> str:
        which = f" of {self.nic}" if self.nic else ""
        if self.old is None:
            return f"{self.name}{which} is new"
        if self.new is None:
            return f"{self.name}{which} is gone"
        return f"{self.name}{which}: {self.old.toml} -> {self.new.toml}"


@dataclass(frozen=True)
class Reload:
    """live: in force at once; restart: after a restart; effective: what to go by until then."""

    live: tuple[Change, ...]
    restart: tuple[Change, ...]
    effective: Config


def _changes(old: Mapping[str, Value], new: Mapping[str, Value], nic: str) -> list[Change]:
    return [
        Change(old[name].key.place, old[name], new[name], nic)
        for name in old
        if old[name].value != new[name].value
    ]


def _may_change(change: Change) -> bool:
    return change.new is not None and change.old is not None and change.new.key.live


def _merge(old: Mapping[str, Value], new: Mapping[str, Value]) -> Mapping[str, Value]:
    """The new values where they may change live, else the old ones."""
    return frozen({name: new[name] if new[name].key.live else old[name] for name in old})


def reload(old: Config, new: Config) -> Reload:
    """What differs. A NIC that comes or goes needs a restart; the order of NICs means nothing.

    Keys that only tools read (HARP_SEEDS) are no concern of harpd's and left out.
    """
    changes = [
        change
        for change in _changes(old.values, new.values, "")
        if change.old is not None and change.old.key.readers & (Reader.DAEMON | Reader.JOB)
    ]
    old_nics = {str(nic["ifname"].value): nic for nic in old.nic_values}
    new_nics = {str(nic["ifname"].value): nic for nic in new.nic_values}
    for name, nic in old_nics.items():
        if name in new_nics:
            changes += _changes(nic, new_nics[name], name)
        else:
            changes.append(Change("nic", nic["ifname"], None, name))
    changes += [
        Change("nic", None, nic["ifname"], name)
        for name, nic in new_nics.items()
        if name not in old_nics
    ]
    effective = Config(
        values=_merge(old.values, new.values),
        nic_values=tuple(
            _merge(nic, new_nics[name]) if name in new_nics else nic
            for name, nic in old_nics.items()
        ),
        file=new.file,
        warnings=new.warnings,
    )
    live = tuple(change for change in changes if _may_change(change))
    restart = tuple(change for change in changes if not _may_change(change))
    return Reload(live, restart, effective)
