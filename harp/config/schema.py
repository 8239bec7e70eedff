# SPDX-License-Identifier: Apache-2.0
"""Checks a document against the list of keys: returns its values and all mistakes."""

from collections.abc import Callable, Mapping
from typing import Any

from harp.config import values
from harp.config.document import Document, Problem
from harp.config.keys import ARRAYS, DPDK_TABLE, NIC_TABLE, did_you_mean, global_keys, tables
from harp.config.model import Source, Value

DEVICES_MAX = 32  # HARP_LEASE_DEVICES_MAX: NICs and ports that fit in WELCOME


class Reading:
    """The contents of one document: values by variable, arrays by key, unsorted problems."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values: dict[str, Value] = {}
        self.arrays: dict[str, list[dict[str, Value]]] = {name: [] for name in ARRAYS}
        self.problems: list[Problem] = []
        for name, content in document.tree.items():
            self._top(name, content)
        for table, key in ARRAYS.items():
            self._check_required(table, key)
        self._check_unique(NIC_TABLE, "ifname", str)
        self._check_unique(DPDK_TABLE, "device", lambda device: device.partition(",")[0])
        self._check_unique(DPDK_TABLE, "name", str)
        self._check_count()

    def _report(self, message: str, key: str, *keys: str | int) -> None:
        self.problems.append(Problem(self.document.place(*keys), key, message))

    def _top(self, name: str, content: Any) -> None:
        if name not in tables():
            self._unknown_top(name, content)
        elif name in ARRAYS:
            self._array(name, content)
        elif isinstance(content, dict):
            table = self._table(name, content, (name,)).values()
            self.values |= {value.key.name: value for value in table}
        else:
            example = next(iter(tables()[name]))
            self._report(f"must be a table: [{name}], then {example} = ... below it", name, name)

    def _unknown_top(self, name: str, content: Any) -> None:
        shown = values.quote(name)[1:-1]
        if not isinstance(content, (dict, list)):
            owners = [key.table for key in global_keys() if key.key == name]
            if owners:
                self._report(f"belongs in the table [{owners[0]}]", shown, name)
                return
        what = "unknown table" if isinstance(content, (dict, list)) else "unknown key"
        advice = did_you_mean(name, tables(), f"the tables are {', '.join(tables())}")
        self._report(f"is an {what}: {advice}", shown, name)

    def _unknown_key(self, table: str, name: str, path: tuple[str | int, ...]) -> None:
        own = tables()[table]
        others = [key.place for key in global_keys() if key.key == name and key.table]
        otherwise = f"did you mean {others[0]}?" if others else f"[{table}] has {', '.join(own)}"
        advice = did_you_mean(name, own, otherwise)
        self._report(f"is an unknown key: {advice}", f"{table}.{values.quote(name)[1:-1]}", *path)

    def _table(
        self, table: str, content: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for name, raw in content.items():
            key = tables()[table].get(name)
            if key is None:
                self._unknown_key(table, name, (*path, name))
                continue
            try:
                value = values.from_toml(raw, key)
            except ValueError as error:
                shown = values.quote(raw) if not isinstance(raw, dict) else "a table"
                self._report(f"= {shown}: {error}", key.place, *path, name)
                continue
            line = self.document.line(*path, name)
            result[name] = Value(key, value, Source("file", self.document.file, line))
        return result

    def _array(self, table: str, content: Any) -> None:
        if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
            self._report(
                f"must be an array of tables: write [[{table}]], once for each", table, table
            )
            return
        if len(content) > DEVICES_MAX:
            self._report(f"appears {len(content)} times; at most {DEVICES_MAX}", table, table)
            return
        self.arrays[table] = [
            self._table(table, item, (table, index)) for index, item in enumerate(content)
        ]

    def _check_required(self, table: str, name: str) -> None:
        """Check that each element of the array names its device."""
        for index in range(len(self.arrays[table])):
            if name not in self.document.tree[table][index]:
                self._report(f'needs {name} = "..."', table, table, index)

    def _check_unique(self, table: str, name: str, identity: Callable[[str], str]) -> None:
        """Check that no two elements of the array have the same identity in this key."""
        seen: dict[str, int] = {}
        for index, element in enumerate(self.arrays[table]):
            value = element.get(name)
            if value is None or value.value == "":
                continue
            key = identity(str(value.value))
            if key in seen:
                self._report(
                    f"= {values.quote(value.value)}: line {seen[key]} has it already",
                    f"{table}.{name}",
                    table,
                    index,
                    name,
                )
            seen.setdefault(key, value.source.line)

    def _check_count(self) -> None:
        count = sum(map(len, self.arrays.values()))
        if count > DEVICES_MAX and all(self.arrays.values()):
            counts = " and ".join(f"{len(array)} [[{name}]]" for name, array in self.arrays.items())
            self._report(f"makes {counts}; at most {DEVICES_MAX} together", DPDK_TABLE, DPDK_TABLE)
