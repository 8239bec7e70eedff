# SPDX-License-Identifier: Apache-2.0
"""Tables for people on a terminal, JSON for scripts; messages go to stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

# Tables keep their columns when piped: a table cut at 80 columns is no use to grep.
_width = None if sys.stdout.isatty() else 120
out = Console(width=_width, highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


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
        result.add_row(*(str(cell) for cell in row))
    return result
