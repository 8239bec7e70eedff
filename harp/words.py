# SPDX-License-Identifier: Apache-2.0
"""Makes text of other programs safe to print."""


def printable(words: str) -> str:
    """Return one line without escape sequences."""
    return "".join(char if char.isprintable() else "?" for char in words)
