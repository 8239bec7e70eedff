# SPDX-License-Identifier: Apache-2.0
"""Classifies changes of a configuration: effective after SIGHUP, or after a restart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harp.config.keys import ARRAYS, DPDK_TABLE, NIC_TABLE, Reader
from harp.config.model import Config, Value, frozen

_Array = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True)
class Change:
    """One key that differs. nic: its [[nic]] or [[dpdk]], or empty. An added entry has no old
    value, a removed one no new value; its name is "nic" or "dpdk".
    """

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
    """live: effective at once; restart: after a restart; effective: the configuration until
    then.
    """

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
    if change.old is None or change.new is None:
        return change.name == DPDK_TABLE  # harpd does nothing to a port that a change would undo
    return change.new.key.live


def _merge(old: Mapping[str, Value], new: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the new values of keys that may change live, and the old values of the others."""
    return frozen({name: new[name] if new[name].key.live else old[name] for name in old})


def _of_arrays(table: str, old: _Array, new: _Array) -> Iterator[Change]:
    """Compare the [[nic]] or [[dpdk]] of two files by their names."""
    key = ARRAYS[table]
    for name, each in old.items():
        if name in new:
            yield from _changes(each, new[name], name)
        else:
            yield Change(table, each[key], None, name)
    for name, each in new.items():
        if name not in old:
            yield Change(table, None, each[key], name)


def _named(nics: Sequence[Mapping[str, Value]]) -> _Array:
    return {str(nic["ifname"].value): nic for nic in nics}


def reload(old: Config, new: Config) -> Reload:
    """Compare two configurations.

    An added or removed NIC needs a restart, a DPDK port does not; their order does not matter. Keys
    that only tools read (HARP_SEEDS) do not concern harpd and are left out.
    """
    changes = [
        change
        for change in _changes(old.values, new.values, "")
        if change.old is not None and change.old.key.readers & (Reader.DAEMON | Reader.JOB)
    ]
    old_nics, new_nics = _named(old.nic_values), _named(new.nic_values)
    changes += _of_arrays(NIC_TABLE, old_nics, new_nics)
    changes += _of_arrays(DPDK_TABLE, old.dpdk_named, new.dpdk_named)
    effective = Config(
        values=_merge(old.values, new.values),
        nic_values=tuple(
            _merge(nic, new_nics[name]) if name in new_nics else nic
            for name, nic in old_nics.items()
        ),
        dpdk_values=new.dpdk_values,
        file=new.file,
        warnings=new.warnings,
    )
    live = tuple(change for change in changes if _may_change(change))
    restart = tuple(change for change in changes if not _may_change(change))
    return Reload(live, restart, effective)
