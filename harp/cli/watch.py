# SPDX-License-Identifier: Apache-2.0
"""Repeats a view on the terminal, for the --watch option of several commands."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live

from harp import output as console
from harp.cli.options import FiniteRange

# The terminal's width; otherwise wide enough for all columns.
WIDE = Console(width=None if sys.stdout.isatty() else 240, highlight=False)

interval_option = click.option(
    "--interval",
    type=FiniteRange(0.05),
    default=1.0,
    show_default=True,
    help="Seconds from one look to the next, with --watch.",
)
watch_option = click.option("--watch", "-w", is_flag=True, help="Repeat until Ctrl-C.")


def _ticks(interval_s: float) -> Iterator[None]:
    """Yield at once, then every interval_s seconds, independent of the time that each step
    takes.
    """
    due = time.monotonic()
    while True:
        yield
        due += interval_s
        time.sleep(max(0.0, due - time.monotonic()))


def watch(
    look: Callable[[], Any],
    draw: Callable[[Any], RenderableType],
    interval_s: float,
    as_json: bool = False,
) -> None:
    """Show the result of look() repeatedly until an exception ends it.

    Parameters
    ----------
    as_json
        Whether to print the result, a document, as one line with its time instead of drawing it.
    """
    if as_json:
        for _ in _ticks(interval_s):
            json.dump({"time_s": time.time(), **look()}, sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()
    elif not sys.stdout.isatty():
        for _ in _ticks(interval_s):
            console.print_whole(draw(look()), WIDE)
            sys.stdout.flush()
    else:
        with Live(console=WIDE, auto_refresh=False, screen=True) as live:
            for _ in _ticks(interval_s):
                live.update(draw(look()), refresh=True)
