# SPDX-License-Identifier: Apache-2.0
"""The settings of dataplane/include/harp_config.h, with Python's types."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, IntEnum
from functools import cache

from harp._core import config_keys
from harp.words import nearest

VARIABLE_PREFIX = "HARP_"
COLLECTIVES_PREFIX = "HARP_COLL_"  # variables of libharp-coll (docs/collectives.md)
NIC_TABLE = "nic"
DPDK_TABLE = "dpdk"
# The arrays of tables, and the key that identifies an entry of each.
ARRAYS = {NIC_TABLE: "ifname", DPDK_TABLE: "device"}
# HARP_CONFIG_CORE_MAX, HARP_CONFIG_FILE of harp_config.h.
CORE_MAX = 1024
DEFAULT_FILE = "/etc/harp/harp.toml"


class Type(IntEnum):
    BOOL = 0
    U32 = 1
    MS = 2
    US = 3
    CHOICE = 4
    TEXT = 5
    LIST = 6
    CORES = 7
    PORTS = 8


class Reader(Flag):
    JOB = 1
    DAEMON = 2
    TOOL = 4


@dataclass(frozen=True)
class Key:
    """One setting. name: its variable; for a key of [[nic]] or [[dpdk]] the name in capitals."""

    name: str
    table: str
    key: str
    type: Type
    unit: str
    min: int
    max: int
    preset: str
    readers: Reader
    help: str

    @property
    def variable(self) -> str | None:
        """The environment variable; None for a key of [[nic]] or [[dpdk]]."""
        return self.name if self.name.startswith(VARIABLE_PREFIX) else None

    @property
    def place(self) -> str:
        """The name in messages: tcp.ecn, nic.queues; the variable if there is no key."""
        return f"{self.table}.{self.key}" if self.table else self.name

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.unit.split("|")) if self.type is Type.CHOICE else ()

    @property
    def accepts(self) -> str:
        """The valid values, for messages."""
        match self.type:
            case Type.BOOL:
                return "true or false"
            case Type.CHOICE:
                return "one of " + ", ".join(self.choices)
            case Type.TEXT:
                least = f"{self.min} to " if self.min else "at most "
                return f"a text of {least}{self.max} bytes without control characters"
            case Type.LIST:
                return f"a list of at most {self.max} words without commas or spaces"
            case Type.CORES:
                return f'at most {self.max} distinct numbers below {CORE_MAX}, like "2,4-7"'
            case Type.PORTS:
                return f'a range of ports within {self.min}-{self.max}, like "61000-65535"'
        what = f"number of {self.unit}" if self.unit else "number"
        return f"a whole {what} from {self.min} to {self.max}"


@cache
def all_keys() -> tuple[Key, ...]:
    return tuple(
        Key(**{**row, "type": Type(row["type"]), "readers": Reader(row["readers"])})
        for row in config_keys()
    )


@cache
def global_keys() -> tuple[Key, ...]:
    """Return keys with a single value: all except those of [[nic]] and [[dpdk]]."""
    return tuple(key for key in all_keys() if key.variable is not None)


@cache
def tables() -> dict[str, dict[str, Key]]:
    """Return harp.toml's tables: name -> key -> Key, in the order of the list, including ARRAYS."""
    result: dict[str, dict[str, Key]] = {}
    for key in all_keys():
        if key.table:
            result.setdefault(key.table, {})[key.key] = key
    return result


@cache
def by_name() -> dict[str, Key]:
    return {key.name: key for key in global_keys()}


def did_you_mean(word: str, words: Iterable[str], otherwise: str) -> str:
    """Return advice on an unknown word: the closest of the known words, else `otherwise`."""
    hint = nearest(word, words)
    return f"did you mean {hint}?" if hint else otherwise


def nearest_variable(name: str) -> str | None:
    """Return the closest variable; the common prefix does not count."""
    names = [known.removeprefix(VARIABLE_PREFIX) for known in by_name()]
    closest = nearest(name.removeprefix(VARIABLE_PREFIX), names)
    return VARIABLE_PREFIX + closest.upper() if closest else None


def find(text: str) -> Key | None:
    """Return the key for tcp.ecn, HARP_ECN, or ecn if only one table has it."""
    if text in by_name():
        return by_name()[text]
    matches = [key for key in all_keys() if key.place == text]
    matches = matches or [key for key in global_keys() if key.key == text]
    return matches[0] if len(matches) == 1 else None
