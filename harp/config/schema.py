# SPDX-License-Identifier: Apache-2.0
"""A document against the list of keys: the values it sets, and all that is wrong with it."""

from collections.abc import Callable, Mapping
from typing import Any

from harp.config import values
from harp.config.document import Document
from harp.config.keys import NIC_TABLE, Key, global_keys, nearest, tables
from harp.config.model import Source, Value
from harp.config.problems import Problem

NICS_MAX = 32  # HARP_LEASE_DEVICES_MAX: as many as WELCOME can name


class Reading:
    """What one document says. values by variable, nics by key, problems in no order."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values: dict[str, Value] = {}
        self.nics: list[dict[str, Value]] = []
        self.problems: list[Problem] = []
        for name, content in document.tree.items():
            self._top(name, content)
        self._nic_names()

    def _wrong(self, message: str, key: str, *keys: str | int) -> None:
        self.problems.append(Problem(self.document.place(*keys), key, message))

    def _top(self, name: str, content: Any) -> None:
        if name not in tables():
            self._unknown_top(name, content)
        elif name == NIC_TABLE:
            self._nics(content)
        elif isinstance(content, dict):
            self._table(name, content, (name,), self._set)
        else:
            example = next(iter(tables()[name]))
            self._wrong(f"must be a table: [{name}], and beneath it {example} = ...", name, name)

    def _unknown_top(self, name: str, content: Any) -> None:
        shown = values.quote(name)[1:-1]
        if not isinstance(content, (dict, list)):
            homes = [key.table for key in global_keys() if key.key == name]
            if homes:
                self._wrong(f"belongs into the table [{homes[0]}]", shown, name)
                return
        what = "unknown table" if isinstance(content, (dict, list)) else "unknown key"
        hint = nearest(name, tables())
        there = ", ".join(table for table in tables())
        self._wrong(
            f"is an {what}: " + (f"did you mean {hint}?" if hint else f"there are {there}"),
            shown,
            name,
        )

    def _unknown_key(self, table: str, name: str, path: tuple[str | int, ...]) -> None:
        own = tables()[table]
        elsewhere = [key.place for key in global_keys() if key.key == name and key.table]
        hint = nearest(name, own)
        if elsewhere and not hint:
            advice = f"did you mean {elsewhere[0]}?"
        elif hint:
            advice = f"did you mean {hint}?"
        else:
            advice = f"[{table}] has {', '.join(own)}"
        self._wrong(f"is an unknown key: {advice}", f"{table}.{values.quote(name)[1:-1]}", *path)

    def _table(
        self,
        table: str,
        content: Mapping[str, Any],
        path: tuple[str | int, ...],
        store: Callable[[Key, Value], None],
    ) -> None:
        for name, raw in content.items():
            key = tables()[table].get(name)
            if key is None:
                self._unknown_key(table, name, (*path, name))
                continue
            try:
                value = values.from_toml(raw, key)
            except ValueError as error:
                found = values.quote(raw) if not isinstance(raw, dict) else "a table"
                self._wrong(f"= {found}: {error}", key.place, *path, name)
                continue
            line = self.document.line(*path, name)
            store(key, Value(key, value, Source("file", self.document.file, line)))

    def _set(self, key: Key, value: Value) -> None:
        self.values[key.name] = value

    def _nics(self, content: Any) -> None:
        if not isinstance(content, list) or not all(isinstance(nic, dict) for nic in content):
            self._wrong("must be an array of tables: write [[nic]], once for each", "nic", "nic")
            return
        if len(content) > NICS_MAX:
            self._wrong(f"comes {len(content)} times, and {NICS_MAX} are allowed", "nic", "nic")
            return
        for index, nic in enumerate(content):
            found: dict[str, Value] = {}
            self._table(
                NIC_TABLE,
                nic,
                (NIC_TABLE, index),
                lambda key, value, found=found: found.__setitem__(key.key, value),  # type: ignore[misc]
            )
            self.nics.append(found)

    def _nic_names(self) -> None:
        seen: dict[object, int] = {}
        for index, nic in enumerate(self.nics):
            written = "ifname" in self.document.tree[NIC_TABLE][index]
            if not written:
                self._wrong('needs ifname = "..."', "nic", NIC_TABLE, index)
            if "ifname" not in nic:
                continue
            name = nic["ifname"].value
            if name in seen:
                self._wrong(
                    f'= "{name}": line {seen[name]} has it already',
                    "nic.ifname",
                    NIC_TABLE,
                    index,
                    "ifname",
                )
            seen.setdefault(name, nic["ifname"].source.line)
