# SPDX-License-Identifier: Apache-2.0
"""Run a page of docs/ as a reader types it: its commands, their exit codes and their output.

A block of the page is ```console, followed by words that the page defines. `# exit code 0 or 5`
after a command gives the expected codes.
"""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Step:
    """One command of the page."""

    number: int  # its line
    kind: str  # of its block: the words behind console
    user: bool
    command: str
    codes: tuple[int, ...]
    shown: list[str]


def steps(page: Path, others: frozenset[str] = frozenset()) -> list[Step]:
    """All of them, in the page's order. others: kinds of blocks that are not typed."""
    found: list[Step] = []
    kind: str | None = None
    other = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            words = line.removeprefix("```").split()
            if other or (kind is None and words[:1] and words[0] in others):
                other = not other
                continue
            assert kind is not None or words[:1] == ["console"], f"line {number}: {line}"
            kind = " ".join(words[1:]) if kind is None else None
        elif kind is not None and line[:2] in ("# ", "$ "):
            command, _, codes = line[2:].partition("# exit code")
            wanted = tuple(map(int, re.findall(r"\d+", codes))) or (0,)
            found.append(Step(number, kind, line[0] == "$", command.strip(), wanted, []))
        elif kind is not None and line.strip():
            found[-1].shown.append(line)
    return found


def missing(shown: list[str], out: str) -> str | None:
    """The first line of the page that is not in the output, in order; None when all are."""
    lines = iter([" ".join(line.split()) for line in out.splitlines()])
    for line in shown:
        words = " ".join(line.split())
        pattern = re.compile(".*".join(map(re.escape, words.split("..."))))
        if not any(pattern.match(printed) for printed in lines):
            return line
    return None
