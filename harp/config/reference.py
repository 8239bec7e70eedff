# SPDX-License-Identifier: Apache-2.0
"""Describes the keys: conf/harp.toml, and texts for docs/configuration.md and the manual."""

import textwrap
from collections.abc import Iterator

from harp.config import values
from harp.config.keys import ARRAYS, DEFAULT_FILE, Key, Type, tables

# harp.toml's tables in the order in which an operator needs them, with their purpose.
TABLES = {
    "daemon": "harpd, the daemon of a host: its files, and who may have leases.",
    "nic": "A NIC whose queues harpd leases; one [[nic]] for each. harpd restores its changes when "
    "it stops.",
    "dpdk": "A DPDK port that harpd leases, to one job at a time; one [[dpdk]] for each. The job "
    "opens it with its own DPDK (docs/dpdk.md).",
    "metrics": "harpd's Prometheus endpoint.",
    "job": "Settings of jobs. A variable in a job's environment overrides them.",
    "drive": "Which thread of a job polls its stacks.",
    "lanes": "The lanes of a comm: their number, NICs, timeouts and encryption.",
    "tcp": "HARP's TCP, in jobs.",
}

# Required keys have no default.
EXAMPLES = {"IFNAME": "eth1", "DEVICE": "0000:00:06.0"}

_TOML_HEAD = f"""\
# SPDX-License-Identifier: Apache-2.0
# harp.toml - HARP's settings. `harpctl config init` writes this file to {DEFAULT_FILE}.
#
# Every key is here with its default, commented out: remove the # to change it. The named variable
# overrides this file. After a change run `harpctl config validate`, then `harpctl restart`, which
# running jobs survive."""


def range_of(key: Key) -> str:
    match key.type:
        case Type.BOOL:
            return "true or false"
        case Type.CHOICE:
            return ", ".join(key.choices)
        case Type.TEXT:
            return f"{key.unit}, at most {key.max} bytes"
        case Type.LIST | Type.CORES:
            return f"list of {key.unit}, at most {key.max}"
        case Type.PORTS:
            return f"range within {key.min}-{key.max}"
    return f"{key.min} to {key.max}{' ' if key.unit else ''}{key.unit}"


def title(table: str) -> str:
    return f"[[{table}]]" if table in ARRAYS else f"[{table}]"


def _example(key: Key) -> str:
    """Return the line in harp.toml: the default, or an example for a required key."""
    value = EXAMPLES.get(key.name, values.preset(key))
    return f"{key.key} = {values.to_toml(value, key)}"


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def to_toml() -> str:
    lines = [_TOML_HEAD]
    for table, purpose in TABLES.items():
        lines += ["", *_comment(purpose)]
        lines.append(f"#{title(table)}" if table in ARRAYS else title(table))
        for key in tables()[table].values():
            named = f"{key.variable}; " if key.variable else ""
            lines += ["", *_comment(key.help + ".")]
            lines += _comment(f"({named}{range_of(key)})")
            lines.append("#" + _example(key))
    return "\n".join(lines) + "\n"
