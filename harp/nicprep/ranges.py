# SPDX-License-Identifier: Apache-2.0
"""Sets of small numbers in the kernel's notation: "0-3,8" for processors, ports and interrupts."""

from collections.abc import Iterable

from harp.config.values import spans

NUMBER_MAX = 65535


def parse(text: str) -> set[int]:
    """Return the numbers of "0-3,8"; ValueError names an invalid range."""
    numbers: set[int] = set()
    for part in text.replace("\n", ",").replace(" ", ",").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part!r} is not a number or range")
        low, high = int(first), int(last or first)
        if low > high or high > NUMBER_MAX:
            raise ValueError(f"{part!r} is not a range within 0..{NUMBER_MAX}")
        numbers.update(range(low, high + 1))
    return numbers


def text(numbers: Iterable[int]) -> str:
    """Return the shortest notation; empty without numbers."""
    return spans(sorted(set(numbers)))
