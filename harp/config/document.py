# SPDX-License-Identifier: Apache-2.0
"""Reads and parses harp.toml, which is untrusted, with the position of each key and mistake."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp import files
from harp.errors import Exit, HarpError

# A hundred times the size of a file with 32 NICs. The parser takes less than a second for it.
FILE_BYTES_MAX = 256 * 1024
# tomllib's time and memory for a dotted key grow with the square of its parts.
_DOTS_MAX = 100
_AT = re.compile(r" \(at line (\d+), column (\d+)\)$")
# A table's header or a key at the beginning of a line.
_HEADER = re.compile(r"[ \t]*(\[\[?)[ \t]*([\w.\"'-]+)")
_KEY = re.compile(r"[ \t]*([\w.\"'\\-]+)[ \t]*=")
Keys = tuple[str | int, ...]
Position = tuple[int, int]  # line and column, both from 1


@dataclass(frozen=True)
class Problem:
    """One mistake. place: file:line:column or "environment"; key: tcp.ecn, HARP_ECN or ""."""

    place: str
    key: str
    message: str

    @property
    def position(self) -> tuple[bool, tuple[int, ...]]:
        """Sort key: a file's problems first, from top to bottom."""
        match = re.search(r":(\d+)(?::(\d+))?$", self.place)
        return match is None, tuple(int(number or 0) for number in match.groups()) if match else ()

    def __str__(self) -> str:
        return f"{self.place}: {self.key}{' ' if self.key else ''}{self.message}"


class ConfigError(HarpError):
    """An invalid configuration; problems lists every mistake, and so does the message."""

    def __init__(self, problems: Sequence[Problem], code: Exit = Exit.FAILURE) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), code)
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Document:
    """A parsed file. where: path of keys -> line and column."""

    file: str
    tree: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[Keys, Position] = field(default_factory=dict)

    def line(self, *keys: str | int) -> int:
        return self._position(keys)[0]

    def place(self, *keys: str | int) -> str:
        line, column = self._position(keys)
        return f"{self.file}:{line}:{column}"

    def _position(self, keys: Keys) -> Position:
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.where:
                return self.where[keys[:length]]
        return (1, 1)


def positions(text: str) -> dict[Keys, Position]:
    """Return the positions of the tables and keys of a valid document.

    A key that does not begin a line (in an inline table) has none. A line of a multi-line string
    that looks like a key is taken for one.
    """
    result: dict[Keys, Position] = {}
    entries: Counter[Keys] = Counter()  # of each array of tables
    table: Keys = ()
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.match(line)
        match = header or _KEY.match(line)
        if match is None:
            continue
        name = match[2] if header else match[1]
        keys: Keys = tuple(part.strip("\"'") for part in name.split("."))
        at = number, match.start(1) + 1
        if header is None:
            keys = (*table, *keys)
        else:
            table = keys
            if header[1] == "[[":
                table = (*keys, entries[keys])
                entries[keys] += 1
        for length in range(1, len(keys) + 1):
            result.setdefault(keys[:length], at)
        result.setdefault(table or keys, at)
    return result


def _refuse(file: str, message: str, code: Exit = Exit.FAILURE) -> ConfigError:
    return ConfigError([Problem(file, "", message)], code)


def _decode(file: str, data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise _refuse(file, f"is larger than {FILE_BYTES_MAX // 1024} KiB: not a harp.toml")
    if data.startswith(b"\xef\xbb\xbf"):
        raise _refuse(file, "begins with a byte order mark: save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8: save it as UTF-8"
        raise _refuse(f"{file}:{line}:{column}", message) from None


def _syntax(file: str, text: str, error: tomllib.TOMLDecodeError) -> ConfigError:
    message = str(error)
    match = _AT.search(message)
    line = int(match[1]) if match else max(1, len(text.splitlines()))
    column = int(match[2]) if match else 1
    message = _AT.sub("", message).replace(" (at end of document)", " at the end of the file")
    return _refuse(f"{file}:{line}:{column}", f"{message[:200]} (TOML syntax)")


def parse(file: str, text: str) -> Document:
    """Parse text; file: its name in messages. ConfigError has the position of a syntax error."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _DOTS_MAX and not line.lstrip().startswith("#"):
            raise _refuse(f"{file}:{number}:1", f"has more than {_DOTS_MAX} dots in a line")
    try:
        tree = tomllib.loads(text)
        return Document(file, tree, positions(text))
    except tomllib.TOMLDecodeError as error:
        raise _syntax(file, text, error) from None
    except RecursionError:
        raise _refuse(file, "is nested too deeply: not a harp.toml") from None
    except ValueError as error:
        # tomllib does not catch Python's limit on the digits of a number.
        raise _refuse(file, f"{str(error)[:200]} (TOML syntax)") from None


def read(path: Path) -> Document:
    """Read the file at path. ConfigError, with Exit.MISSING if it does not exist."""
    file = str(path)
    try:
        data = files.read(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        remedy = "no such file; `harpctl config init` writes one"
        raise _refuse(file, remedy, Exit.MISSING) from None
    except PermissionError:
        raise _refuse(
            file, "this user may not read it; chmod a+r it, or run as root", Exit.PRIVILEGE
        ) from None
    except files.NotRegularError:
        raise _refuse(file, files.NOT_REGULAR) from None
    except files.UntrustedError as error:
        raise _refuse(file, f"is not trusted: {error.strerror}") from None
    except OSError as error:
        raise _refuse(file, f"cannot be read: {error.strerror}") from None
    return parse(file, _decode(file, data))
