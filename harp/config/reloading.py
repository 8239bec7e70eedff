# SPDX-License-Identifier: Apache-2.0
"""Classifies changes of a configuration: effective after SIGHUP, or after a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harp.config.keys import DPDK_TABLE, NIC_TABLE, Reader
from harp.config.model import Config, Value

_Array = Mapping[str, Mapping[str, Value]]
_Changes = Iterator[tuple[bool, str]]  # whether the change is live, and one line


@dataclass(frozen=True)
class Reload:
    """Changes, one line each; effective: the configuration until a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]
    effective: Config


def _changes(old: Mapping[str, Value], new: Mapping[str, Value], of: str = "") -> _Changes:
    for name, before in old.items():
        after = new[name]
        if before.value != after.value:
            yield after.key.live, f"{after.key.place}{of}: {before.toml} -> {after.toml}"


def _merge(old: Mapping[str, Value], new: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the new values of keys that may change live, and the old values of the others."""
    return MappingProxyType({name: new[name] if new[name].key.live else old[name] for name in old})


def _of_arrays(table: str, old: _Array, new: _Array, live: bool) -> _Changes:
    """Compare arrays by name. live: elements may be added and removed without a restart."""
    for name, before in old.items():
        if name in new:
            yield from _changes(before, new[name], f" of {name}")
        else:
            yield live, f"{table} of {name} is gone"
    for name in new:
        if name not in old:
            yield live, f"{table} of {name} is new"


def _nics(config: Config) -> _Array:
    return {str(nic["ifname"].value): nic for nic in config.nic_values}


def reload(old: Config, new: Config) -> Reload:
    """Compare two configurations.

    Adding or removing a NIC needs a restart. Adding or removing a DPDK port does not, because harpd
    changes nothing on it. Their order does not matter. Keys that only tools read (HARP_SEEDS) are
    left out.
    """
    readers = Reader.DAEMON | Reader.JOB
    values = {name: value for name, value in old.values.items() if value.key.readers & readers}
    old_nics, new_nics = _nics(old), _nics(new)
    changes = [
        *_changes(values, new.values),
        *_of_arrays(NIC_TABLE, old_nics, new_nics, live=False),
        *_of_arrays(DPDK_TABLE, old.dpdk_named, new.dpdk_named, live=True),
    ]
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
    return Reload(
        tuple(line for live, line in changes if live),
        tuple(line for live, line in changes if not live),
        effective,
    )
