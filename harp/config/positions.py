# SPDX-License-Identifier: Apache-2.0
"""Positions of elements in a TOML document that tomllib has read: path of keys -> line, column.

tomllib reports the position of syntax errors only. This module scans the text once. Since the
document is valid, it only needs to find the boundaries of elements.
"""

import re
import tomllib

Keys = tuple[str | int, ...]
Position = tuple[int, int]  # line and column, both from 1

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Longest first: three quotes must not be read as an empty string.
_STRING = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3,5}(?!\")|'{3}.*?'{3,5}(?!')|\"(?:\\.|[^"\\])*\"|'[^']*'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


class _Walker:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Keys, int] = {}
        self.arrays: dict[Keys, int] = {}  # [[a]]: number of its elements so far

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise AssertionError(f"tomllib read what this does not understand, at {self.at}")
        self.at = match.end()
        return match[0]

    def key(self) -> list[str]:
        """A dotted key."""
        parts = []
        while True:
            self.skip(_SPACE)
            if self.text[self.at] in "\"'":
                quoted = self.skip(_STRING)
                parts.append(str(tomllib.loads(f"k = {quoted}")["k"]))
            else:
                parts.append(self.skip(_BARE))
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def name(self, base: Keys, parts: list[str], start: int) -> Keys:
        """Record every prefix of a dotted key; the first one that names a table is its position."""
        path = base
        for index, part in enumerate(parts):
            path = (*path, part)
            last = index == len(parts) - 1
            # An element of an array of tables is named by its latest index.
            if not last and path in self.arrays:
                path = (*path, self.arrays[path] - 1)
            self.found.setdefault(path, start)
        return path

    def pair(self, base: Keys) -> None:
        """Scan key = value."""
        start = self.at
        path = self.name(base, self.key(), start)
        self.at += 1  # =
        self.skip(_SPACE)
        self.value(path)

    def value(self, path: Keys) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self.skip(_STRING)
        elif first == "[":
            self.array(path)
        elif first == "{":
            self.inline(path)
        else:
            self.skip(_SCALAR)

    def array(self, path: Keys) -> None:
        self.at += 1
        index = 0
        self.skip(_BLANK)
        while self.text[self.at] != "]":
            self.found[(*path, index)] = self.at
            self.value((*path, index))
            index += 1
            self.skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self.skip(_BLANK)
        self.at += 1

    def inline(self, path: Keys) -> None:
        self.at += 1
        self.skip(_BLANK)
        while self.text[self.at] != "}":
            self.pair(path)
            self.skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self.skip(_BLANK)
        self.at += 1

    def header(self) -> Keys:
        """Scan [table] or [[array]], which contains the following keys."""
        start = self.at
        double = self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        path = self.name((), self.key(), start)
        self.at += 2 if double else 1
        if double:
            index = self.arrays.get(path, 0)
            self.arrays[path] = index + 1
            path = (*path, index)
        self.found.setdefault(path, start)
        return path

    def document(self) -> None:
        base: Keys = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                base = self.header()
            else:
                self.pair(base)
            self.skip(_BLANK)


def positions(text: str) -> dict[Keys, Position]:
    """Return line and column of every table, key and element of a valid TOML document."""
    walker = _Walker(text.replace("\r\n", "\n"))
    walker.document()
    lines: dict[Keys, Position] = {}
    ends = [match.start() for match in re.finditer("\n", walker.text)]
    line = 0
    for path, offset in sorted(walker.found.items(), key=lambda item: item[1]):
        while line < len(ends) and ends[line] < offset:
            line += 1
        lines[path] = (line + 1, offset - (ends[line - 1] if line else -1))
    return lines
