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
    """The contents of one document: values by variable, arrays by key, problems in no order."""

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
            found = self._table(name, content, (name,)).values()
            self.values |= {value.key.name: value for value in found}
        else:
            example = next(iter(tables()[name]))
            self._report(f"must be a table: [{name}], and beneath it {example} = ...", name, name)

    def _unknown_top(self, name: str, content: Any) -> None:
        shown = values.quote(name)[1:-1]
        if not isinstance(content, (dict, list)):
            homes = [key.table for key in global_keys() if key.key == name]
            if homes:
                self._report(f"belongs into the table [{homes[0]}]", shown, name)
                return
        what = "unknown table" if isinstance(content, (dict, list)) else "unknown key"
        advice = did_you_mean(name, tables(), f"there are {', '.join(tables())}")
        self._report(f"is an {what}: {advice}", shown, name)

    def _unknown_key(self, table: str, name: str, path: tuple[str | int, ...]) -> None:
        own = tables()[table]
        elsewhere = [key.place for key in global_keys() if key.key == name and key.table]
        there = f"did you mean {elsewhere[0]}?" if elsewhere else f"[{table}] has {', '.join(own)}"
        advice = did_you_mean(name, own, there)
        self._report(f"is an unknown key: {advice}", f"{table}.{values.quote(name)[1:-1]}", *path)

    def _table(
        self, table: str, content: Mapping[str, Any], path: tuple[str | int, ...]
    ) -> dict[str, Value]:
        found: dict[str, Value] = {}
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
            found[name] = Value(key, value, Source("file", self.document.file, line))
        return found

    def _array(self, table: str, content: Any) -> None:
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
            self._report(
                f"must be an array of tables: write [[{table}]], once for each", table, table
            )
            return
        if len(content) > DEVICES_MAX:
            self._report(f"comes {len(content)} times, and {DEVICES_MAX} are allowed", table, table)
            return
        self.arrays[table] = [
            self._table(table, each, (table, index)) for index, each in enumerate(content)
        ]

    def _check_required(self, table: str, name: str) -> None:
        """Check that each element of the array names its device."""
        for index in range(len(self.arrays[table])):
            if name not in self.document.tree[table][index]:
                self._report(f'needs {name} = "..."', table, table, index)

    def _check_unique(self, table: str, name: str, identity: Callable[[str], str]) -> None:
        """Check that no two elements of the array have the same value there."""
        seen: dict[str, int] = {}
        for index, each in enumerate(self.arrays[table]):
            value = each.get(name)
            if value is None or value.value == "":
                continue
            which = identity(str(value.value))
            if which in seen:
                self._report(
                    f"= {values.quote(value.value)}: line {seen[which]} has it already",
                    f"{table}.{name}",
                    table,
                    index,
                    name,
                )
            seen.setdefault(which, value.source.line)

    def _check_count(self) -> None:
        count = sum(map(len, self.arrays.values()))
        if count > DEVICES_MAX and all(self.arrays.values()):
            words = " and ".join(f"{len(each)} [[{name}]]" for name, each in self.arrays.items())
            self._report(
                f"makes {words}; {DEVICES_MAX} are allowed together", DPDK_TABLE, DPDK_TABLE
            )
