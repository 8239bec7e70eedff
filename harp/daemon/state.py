# SPDX-License-Identifier: Apache-2.0
"""harpd's state across restarts, in run_dir/state.json.

Every change rewrites the file and renames it into place, so that it is always complete. When it
can't be written (disk full, read-only), harpd logs that once and continues. It retries with the
next change, every few seconds, and before a restart, which it refuses while there are leases.
"""

import functools
import itertools
import json
import logging
import math
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from harp import files
from harp.daemon.ports import Block
from harp.daemon.table import Lease
from harp.errors import HarpError
from harp.nicprep import Entry, Undo
from harp.words import printable

log = logging.getLogger("harpd")
VERSION = 2
FILE_BYTES_MAX = 64 << 20  # 65536 leases take 40
FILE = "state.json"
U64_MAX = 2**64 - 1
# What a value of a wrong type or range raises.
_MALFORMED = (
    TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError
)  # fmt: skip


class BadStateError(Exception):
    """The file exists and is invalid; one line with the reason."""


@dataclass
class NicState:
    """A NIC with our program: its index, and addresses in the map, in hex."""

    ifindex: int
    addresses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for address in self.addresses:
            if len(bytes.fromhex(address)) != 16:
                raise ValueError(f"{address[:40]!r} is no address")


@dataclass
class State:
    """The contents of the file. rests: per NIC, first and last port of blocks and the epoch second
    at which their quarantine ends; undo: changes of NICs to restore.
    """

    pid: int = 0
    start_ticks: int = 0
    version: str = ""
    nics: dict[str, NicState] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    rests: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)
    undo: Undo = field(default_factory=Undo)
    format: int = VERSION

    def __post_init__(self) -> None:
        for first, last, _ in itertools.chain(*self.rests.values()):
            Block(first, last)
        if any((lease.ports is None) != bool(lease.device) for lease in self.leases):
            raise ValueError("a lease has ports, or a device")


@functools.cache
def _type_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(kind: Any, value: Any) -> Any:
    """Convert JSON to a type of a dataclass; fields that it lacks are ignored. ValueError,
    TypeError.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        kinds = _type_hints(kind)
        known = [each.name for each in fields(kind) if each.name in value]
        return kind(**{name: _typed(kinds[name], value[name]) for name in known})
    if origin is UnionType:  # a dataclass or None
        return None if value is None else _typed(arguments[0], value)
    if origin is list and isinstance(value, list):
        return [_typed(arguments[0], each) for each in value]
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(each, one) for each, one in zip(arguments, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {printable(name): _typed(arguments[1], each) for name, each in value.items()}
    if kind is str and isinstance(value, str):
        return printable(value)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    # The kernel gets numbers.
    if type(value) is kind and (kind is bool or (kind is int and 0 <= value <= U64_MAX)):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")


def _decode_undo(raw: Any) -> tuple[Undo, list[str]]:
    """Return the valid entries, and a line for each other one."""
    entries = raw.get("entries", []) if isinstance(raw, dict) else None
    if not isinstance(entries, list):
        return Undo(), ["undo is no list of entries"]
    valid: list[Entry] = []
    problems: list[str] = []
    for number, each in enumerate(entries):
        try:
            entry: Entry = _typed(Entry, each)
            if not entry.before:
                raise ValueError("no values")
            valid.append(entry)
        except _MALFORMED as error:
            words = [each.get("kind"), each.get("target")] if isinstance(each, dict) else []
            name = " ".join(printable(word[:40]) for word in words if isinstance(word, str))
            problems.append(f"undo entry {number} ({name}): {str(error)[:200]}")
    return Undo(valid), problems


def _other_format(raw: Any) -> str:
    """Return the reason for refusing a state that another version of harpd wrote."""
    number = raw.get("format") if isinstance(raw, dict) else None
    name = f"format {number}" if type(number) is int and 0 <= number <= U64_MAX else "no format"
    return (
        f"it has {name} and this harpd reads only format {VERSION}, so its leases end and their "
        "jobs lose the connections through HARP; end jobs before a change of the format"
    )


def decode(text: str) -> tuple[State, list[str]]:
    """Parse the text; return the state and a line for each undo entry that it lacks, because a
    setting that can't be restored must not end leases. BadStateError with the reason.
    """
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("format") != VERSION:
            raise ValueError(_other_format(raw))
        undo, problems = _decode_undo(raw.pop("undo", {}))
        state: State = _typed(State, raw)
        state.undo = undo
    except _MALFORMED as error:
        raise BadStateError(f"{type(error).__name__}: {error}") from error
    return state, problems


class StateFile:
    """The file in its directory."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE
        self._aside = self.path.with_suffix(".bad")

    def read(self) -> State | None:
        """Read the state of the previous harpd; None without one. BadStateError, OSError, or
        HarpError if other users can change it, because harpd acts on it as root.
        """
        try:
            raw = files.read(self.path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except files.UntrustedError as error:
            raise HarpError(f"the state is not trusted: {error.strerror}, or remove it") from error
        except (files.NotRegularError, IsADirectoryError) as error:
            raise BadStateError(str(error.strerror)) from error
        if len(raw) > FILE_BYTES_MAX:
            raise BadStateError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
        try:
            state, problems = decode(raw.decode())
        except UnicodeDecodeError as error:
            raise BadStateError(str(error)) from error
        if problems:
            self._keep_copy(raw, problems)
        return state

    def _keep_copy(self, raw: bytes, problems: list[str]) -> None:
        """The next write drops the invalid undo entries."""
        for problem in problems:
            log.error("%s: %s; harpd does not restore it", self.path, problem)
        try:
            files.write_whole(self._aside, raw, mode=0o600, durable=False)
        except OSError as error:
            log.error("%s can't be written: %s", self._aside, error.strerror)
        else:
            log.error("%s is a copy of the state with these entries", self._aside)

    def write(self, state: State) -> None:
        """Replace the file as a whole; OSError leaves the old one unchanged.

        A crash of the host ends all leases and resets the NICs, so that waiting for a disk has no
        use.
        """
        text = json.dumps(asdict(state), indent=1)
        files.write_whole(self.path, text, mode=0o600, durable=False)

    def remove_temporary(self) -> None:
        """Remove what a killed harpd left of its writes. The caller holds the directory's lock."""
        for path in (self.path, self._aside):
            files.remove_temporary(path)

    def set_aside(self) -> Path:
        """Rename an unreadable file, so that a person may examine it."""
        self.path.replace(self._aside)
        return self._aside

    def remove(self) -> None:
        """Remove the file: there is no state."""
        self.path.unlink(missing_ok=True)
