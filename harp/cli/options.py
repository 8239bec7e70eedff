# SPDX-License-Identifier: Apache-2.0
"""Shared by several commands: options, completion of values, --watch. Options of test hosts are in
lab_options.py.
"""

import contextlib
import json
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import RenderableType
from rich.live import Live

from harp import output as console
from harp.errors import Exit, HarpError


class FiniteRange(click.FloatRange):
    """Reject nan, which click accepts in every range, and inf."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class FilePath(click.Path):  # type: ignore[type-arg,unused-ignore]
    """A path as pathlib.Path. An empty one is an error: a shell variable may be unset."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


file_option = click.option(
    "--file",
    metavar="FILE",
    type=FilePath(),
    help="The harp.toml to read (default: HARP_CONFIG, else /etc/harp/harp.toml).",
)
plugin_option = click.option(
    "--plugin", metavar="PATH", type=FilePath(), help="The plugin to use (default: HARP's own)."
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="A table for people, or one JSON document for scripts.",
)


def show(
    report: Any, output: str, print_table: Callable[[Any], None], *, is_good: bool = True
) -> None:
    """Print the report as JSON, or by print_table; exit code 1 if it is not good."""
    if output == "json":
        console.print_json(report)
    else:
        print_table(report)
    if not is_good:
        raise click.exceptions.Exit(Exit.FAILURE)


def _starting(helps: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(value, help=text)
        for value, text in sorted(helps.items())
        if value.startswith(incomplete)
    ]


def complete_interface(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a network interface of this host."""
    return _starting({name: "" for _, name in socket.if_nameindex()}, incomplete)


def complete_key(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a setting: a table (tcp), a key (tcp.ecn) or a variable (HARP_ECN)."""
    from harp.config.keys import all_keys, tables

    helps = {key.place: key.help for key in all_keys()}
    helps |= {key.variable: key.help for key in all_keys() if key.variable}
    return _starting(helps | dict.fromkeys(tables(), ""), incomplete)


def complete_assignment(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete KEY= of KEY=VALUE, then the values of a key that has a list of them."""
    from harp.config.keys import Type, find

    name, equals, _ = incomplete.partition("=")
    if not equals:
        items = complete_key(ctx, param, name)
        return [CompletionItem(f"{item.value}=") for item in items if find(item.value)]
    key = find(name)
    values = ("true", "false") if key and key.type is Type.BOOL else key.choices if key else ()
    return _starting({f"{name}={word}": "" for word in values}, incomplete)


def complete_pid(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the number of a process that publishes statistics."""
    from harp.stats.instance import read_host

    names: dict[str, str] = {}
    with contextlib.suppress(HarpError, OSError):
        host = read_host(flows=False)
        names = {str(page["pid"]): page["comm"] for page in (*host["instances"], *host["jobs"])}
    return _starting(names, incomplete)


# ---- --watch ----
# The terminal's width; otherwise wide enough for all columns.
WIDE = console.new_console(width=None if sys.stdout.isatty() else 240)

interval_option = click.option(
    "--interval",
    type=FiniteRange(0.05, 86400),
    default=1.0,
    help="Seconds between two readings, with --watch.",
)
watch_option = click.option("--watch", "-w", is_flag=True, help="Repeat until Ctrl-C.")


def _ticks(interval_s: float) -> Iterator[None]:
    """Yield at once, then every interval_s seconds, however long each step takes."""
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
    """Show look()'s result repeatedly, until an exception; as_json: as lines with the time."""
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
