# SPDX-License-Identifier: Apache-2.0
"""Tables for people on a terminal, JSON for scripts; messages go to stderr."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

# What is piped is not cut at 80 columns, which would be no use to grep.
_width = None if sys.stdout is not None and sys.stdout.isatty() else 120
WIDEST = 10_000  # columns
out = Console(width=_width, highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


def discard_stdout() -> None:
    """Nobody reads what is printed, or it can't be written: what is left goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def print_json(value: Any) -> None:
    """One JSON document and nothing else on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose columns after the first are numbers, aligned right."""
    result = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        result.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        # Text, not a string: what a job calls itself is no markup.
        result.add_row(*(Text(str(cell)) for cell in row))
    return result


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table whole: numbers that are cut are none. A narrow terminal folds its lines."""
    made = table("", columns, rows)
    whole = Console(file=out.file, width=WIDEST, highlight=False)
    wide = Measurement.get(whole, whole.options, made).maximum
    Console(file=out.file, width=max(wide, out.width), highlight=False).print(made)
