# SPDX-License-Identifier: Apache-2.0
"""Formats texts for people and command lines."""

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """Return text of another program as one line without escape sequences."""
    return "".join(char if char.isprintable() else "?" for char in text)


def endpoint(address: str, port: int) -> str:
    """Format an address and a port: 10.0.0.1:61000 or [fd00::1]:61000."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def plural(count: int, noun: str) -> str:
    """Format a number of things: 1 channel, 2,000 channels, 2 processes."""
    if count != 1:
        noun += "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the closest of the known words, if one is close enough."""
    near = difflib.get_close_matches(word.lower()[:100], [known.lower() for known in words], 1, 0.6)
    return near[0] if near else None


def suggestion(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean WORD?" for the nearest of the words; empty if none is near."""
    near = nearest(word, words)
    return f"; did you mean {near}?" if near else ""
