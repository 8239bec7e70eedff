# SPDX-License-Identifier: Apache-2.0
"""A configuration as a document: the output of `harpctl config show -o json` and harpd's answer."""

from collections.abc import Mapping
from typing import Any

from harp.config import values
from harp.config.keys import Reader, Type
from harp.config.model import Config, Value


def row(value: Value, of: str = "") -> dict[str, Any]:
    key = value.key
    return {
        "name": f"{key.table} {of}.{key.key}" if of else key.place,
        "key": key.place,
        "of": of or None,
        "variable": key.variable,
        "value": values.to_json(value.value),
        "unit": "" if key.type in (Type.CHOICE, Type.BOOL) else key.unit,
        "source": value.source.kind,
        "file": value.source.file or None,
        "line": value.source.line or None,
        "default": values.to_json(values.preset(key)),
        "readers": [
            reader.name.lower() for reader in Reader if reader in key.readers and reader.name
        ],
    }


def document(config: Config) -> dict[str, Any]:
    rows = [row(value) for value in config.values.values()]
    for nic in config.nic_values:
        rows += [
            row(value, str(nic["ifname"].value)) for key, value in nic.items() if key != "ifname"
        ]
    for name, port in config.dpdk_named.items():
        rows += [row(value, name) for value in port.values()]
    return {"file": config.file or None, "warnings": list(config.warnings), "settings": rows}


def against_defaults(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": setting["name"], "other": setting["default"], **_shown(setting)}
        for setting in settings["settings"]
        if setting["value"] != setting["default"]
    ]


def against(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of harpd or jobs that differ; value None: that side lacks the NIC."""
    mine, theirs = ({row["name"]: row for row in side["settings"]} for side in (own, other))
    result = []
    for name in {**mine, **theirs}:
        a, b = mine.get(name), theirs.get(name)
        if a and b and a["value"] == b["value"]:
            continue
        setting = a or b or {}
        if "daemon" not in setting["readers"] and "job" not in setting["readers"]:
            continue
        shown = _shown(setting) | ({} if a else {"value": None, "source": "", "line": None})
        result.append({"key": name, "other": b["value"] if b else None, **shown})
    return result


def _shown(setting: Mapping[str, Any]) -> dict[str, Any]:
    return {name: setting[name] for name in ("value", "source", "file", "line")}
