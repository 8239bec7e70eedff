# SPDX-License-Identifier: Apache-2.0
"""Words that others chose, before they are shown."""


def printable(words: str) -> str:
    """One line, and nothing in it that a terminal obeys."""
    return "".join(char if char.isprintable() else "?" for char in words)
