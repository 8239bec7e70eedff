# SPDX-License-Identifier: Apache-2.0
"""harpctl check."""

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from harp import output as console
from harp.errors import Exit, HarpError
from harp.options import output_option

_WORDS = ("good", "costs", "no")
_STYLES = ("green", "yellow", "red")
_VERDICTS = (
    "HARP works on {ifname}",
    "HARP works on {ifname}, but something costs performance",
    "HARP can't use {ifname}; it would carry its lanes on kernel TCP",
)


def findings(ifname: str, queue: int) -> list[dict[str, Any]]:
    """What the C stack finds; HarpError when there is no such interface."""
    if not (Path("/sys/class/net") / ifname).exists():
        there = ", ".join(sorted(path.name for path in Path("/sys/class/net").iterdir()))
        raise HarpError(f"no interface {ifname}; there are: {there}", Exit.MISSING)
    from harp._core import host_check

    try:
        items = host_check(ifname, queue)
    except OSError as error:
        raise HarpError(str(error.strerror)) from error
    names = ("name", "severity", "text", "remedy")
    return [dict(zip(names, item, strict=True)) for item in items]


@click.command()
@click.argument("interface")
@click.option(
    "--queue", type=click.IntRange(0), default=0, show_default=True, help="NIC queue to look at."
)
@output_option
def check(interface: str, queue: int, output: str) -> None:
    """Would HARP work on this host and INTERFACE, in which mode, and what is missing?

    Attaches nothing and changes nothing. Exit code 0: works; 5: works at a cost; 1: can't.

    \b
    harpctl check eth0
    harpctl check eth1 --queue 3 -o json
    """
    items = findings(interface, queue)
    worst = max((item["severity"] for item in items), default=0)
    verdict = _VERDICTS[worst].format(ifname=interface)
    if output == "json":
        report = {"interface": interface, "queue": queue, "severity": worst, "verdict": verdict}
        console.print_json({**report, "findings": items})
    else:
        rows = [
            (item["name"], Text(_WORDS[item["severity"]], _STYLES[item["severity"]]), item)
            for item in items
        ]
        table = console.table(f"{interface} queue {queue}", ("what", "", "found"), [])
        for column in table.columns[1:]:
            column.justify = "left"
        table.columns[2].no_wrap = False
        for name, word, item in rows:
            remedy = f"\n→ {item['remedy']}" if item["remedy"] else ""
            table.add_row(name, word, Text(item["text"] + remedy))
        console.out.print(table)
        console.out.print(verdict, markup=False)
    if worst:
        raise click.exceptions.Exit(Exit.WARNING if worst == 1 else Exit.FAILURE)
