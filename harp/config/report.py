# SPDX-License-Identifier: Apache-2.0
"""A configuration as a document: the output of `harpctl config show -o json` and harpd's answer."""

from collections.abc import Mapping
from typing import Any

from harp.config import values
from harp.config.keys import Reader
from harp.config.model import Config, Value

ARRAYS = {"nics": "ifname", "dpdk": "name"}  # of a document, and what names an element


def row(value: Value) -> dict[str, Any]:
    """Return one setting as a row."""
    key = value.key
    return {
        "key": key.place,
        "variable": key.variable,
        "value": values.to_json(value.value),
        "unit": key.unit_name,
        "source": value.source.kind,
        "file": value.source.file or None,
        "line": value.source.line or None,
        "default": values.to_json(values.preset(key)),
        "live": key.live,
        "readers": [
            reader.name.lower() for reader in Reader if reader in key.readers and reader.name
        ],
    }


def document(config: Config) -> dict[str, Any]:
    """Return all settings."""
    return {
        "file": config.file or None,
        "warnings": list(config.warnings),
        "settings": [row(value) for value in config.values.values()],
        "nics": [
            {
                "ifname": nic["ifname"].value,
                "settings": [row(value) for key, value in nic.items() if key != "ifname"],
            }
            for nic in config.nic_values
        ],
        "dpdk": [
            {"name": name, "settings": [row(value) for value in port.values()]}
            for name, port in config.dpdk_named.items()
        ],
    }


def flat(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a document by their names: tcp.ecn, nic eth1.queues, dpdk p0.queues."""
    rows = {row["key"]: row for row in found["settings"]}
    for array, name in ARRAYS.items():
        for each in found[array]:
            for setting in each["settings"]:
                table, _, key = setting["key"].partition(".")
                rows[f"{table} {each[name]}.{key}"] = setting
    return rows


def against_defaults(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that differ from their defaults."""
    return [
        {"key": name, "other": setting["default"], **_mine(setting)}
        for name, setting in flat(found).items()
        if setting["value"] != setting["default"]
    ]


def against(found: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of harpd or jobs that differ; None if one side lacks the NIC."""
    mine, theirs = flat(found), flat(other)
    result = []
    for name in {**mine, **theirs}:
        a, b = mine.get(name), theirs.get(name)
        if a and b and a["value"] == b["value"]:
            continue
        setting = a or b or {}
        if "daemon" not in setting["readers"] and "job" not in setting["readers"]:
            continue
        shown = _mine(a) if a else {**_mine(setting), "value": None, "source": "", "line": None}
        result.append({"key": name, "other": b["value"] if b else None, **shown})
    return result


def _mine(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {name: setting[name] for name in ("value", "source", "file", "line", "live")}
