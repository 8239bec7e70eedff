# SPDX-License-Identifier: Apache-2.0
"""Tables for people on a terminal, JSON for scripts; messages go to stderr."""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

# Piped output is not cut at 80 columns, so that grep works.
_width = None if sys.stdout is not None and sys.stdout.isatty() else 120
WIDEST = 10_000  # columns
FOLDED = 16  # minimum width of a column of words on a narrow terminal
out = Console(width=_width, highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


def discard_stdout() -> None:
    """stdout can't be written or has no reader: discard the rest."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_json(value: Any) -> None:
    """Print one JSON document and nothing else on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_line(text: str, console: Console = out) -> None:
    """Print text as it is: brackets are no markup, and a long line is not broken."""
    console.print(text, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Tell on stderr what a long command does now."""
    print_line(text, err)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    folded: Collection[int] = (),
) -> Table:
    """Make a table. The first column and those in `left` are words; others are numbers. The folded
    ones, by index, are words that may take several lines.
    """
    result = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if index == 0 or column in left else "right"
        if index in folded:
            result.add_column(column, overflow="fold")
        else:
            result.add_column(column, justify=side, no_wrap=True)
    for row in rows:
        # Text, not a string: a job's name is no markup.
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def _width_of(made: Table) -> int:
    """Return the width of a table with its words folded."""
    words = [column for column in made.columns if not column.no_wrap]
    for column in words:
        column.max_width = FOLDED
    whole = Console(width=WIDEST)
    wide = Measurement.get(whole, whole.options, made).maximum
    for column in words:
        column.max_width = None
    return wide


def _parts(made: RenderableType) -> Iterator[RenderableType]:
    if isinstance(made, Group):
        for each in made.renderables:
            yield from _parts(each)
    else:
        yield made


def print_whole(made: RenderableType, console: Console = out) -> None:
    """Print tables and lines completely, even if they are wider than the terminal, because a number
    or a key must not be cut. A narrow terminal folds their lines.
    """
    for each in _parts(made):
        if isinstance(each, Table):
            wide = max(_width_of(each), console.width)
            Console(file=console.file, width=wide, highlight=False).print(each)
        else:
            console.print(each, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print_whole(table("", columns, rows))
