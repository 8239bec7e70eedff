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
FOLDED = 16  # minimum width of a column of text on a narrow terminal


def new_console(**options: Any) -> Console:
    """Return a console that prints text literally: an IPv6 address may contain a code of rich's
    markup or emoji.
    """
    return Console(highlight=False, markup=False, emoji=False, **options)


out = new_console(width=_width)
err = new_console(stderr=True)


def discard_stdout() -> None:
    """Discard further output, because stdout has no reader or can't be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_json(value: Any) -> None:
    """Print one JSON document and nothing else on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_line(text: str, console: Console = out) -> None:
    """Print text without adding line breaks."""
    console.print(text, soft_wrap=True)


def say(text: str) -> None:
    """Print the progress of a long command on stderr."""
    print_line(text, err)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    folded: Collection[int] = (),
) -> Table:
    """Return a table. The first column and those in `left` are text; others are numbers. folded:
    indexes of columns whose text may take several lines.
    """
    result = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        side: Literal["left", "right"] = "left" if index == 0 or column in left else "right"
        if index in folded:
            result.add_column(column, overflow="fold")
        else:
            result.add_column(column, justify=side, no_wrap=True)
    for row in rows:
        # Text, not a string: a job's name must not be parsed as markup.
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def _width_of(grid: Table) -> int:
    """Return the width of a table with its text columns folded."""
    columns = [column for column in grid.columns if not column.no_wrap]
    for column in columns:
        column.max_width = FOLDED
    console = new_console(width=WIDEST)
    width = Measurement.get(console, console.options, grid).maximum
    for column in columns:
        column.max_width = None
    return width


def _parts(content: RenderableType) -> Iterator[RenderableType]:
    if isinstance(content, Group):
        for child in content.renderables:
            yield from _parts(child)
    else:
        yield content


def print_whole(content: RenderableType, console: Console = out) -> None:
    """Print tables and lines completely, even if they are wider than the terminal, because a number
    or a key must not be cut. A narrow terminal wraps their lines.
    """
    for part in _parts(content):
        if isinstance(part, Table):
            width = max(_width_of(part), console.width)
            new_console(file=console.file, width=width).print(part)
        else:
            console.print(part, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print_whole(table("", columns, rows))
