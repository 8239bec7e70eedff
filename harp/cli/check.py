# SPDX-License-Identifier: Apache-2.0
"""harpctl check."""

from collections.abc import Iterable

import click
from rich.table import Table
from rich.text import Text

from harp import output as console
from harp.cli.options import output_option
from harp.doctor.examine import PORT_PREFIX, Examined, Report, examine, examine_all
from harp.doctor.finding import Finding, Severity
from harp.doctor.view import this_host
from harp.errors import Exit

_WORDS = {Severity.GOOD: "good", Severity.COSTS: "costs", Severity.NO: "no"}
_STYLES = {Severity.GOOD: "green", Severity.COSTS: "yellow", Severity.NO: "red"}


def _table(title: str, findings: Iterable[Finding], problems: bool) -> Table | None:
    """Name, severity, what was found and what to do; None where nothing is to be shown."""
    shown = [finding for finding in findings if finding.severity or not problems]
    if not shown:
        return None
    table = console.table(title, ("what", "", "found"), [])
    table.columns[1].justify = "left"
    console.fold(table, 2)
    for finding in shown:
        remedy = f"\n→ {finding.remedy}" if finding.remedy else ""
        word = Text(_WORDS[finding.severity], _STYLES[finding.severity])
        table.add_row(finding.name, word, Text(finding.text + remedy))
    return table


def _title(ifname: str, queue: int) -> str:
    return ifname if ifname.startswith(PORT_PREFIX) else f"{ifname} queue {queue}"


@click.command()
@click.argument("interface", required=False)
@click.option(
    "--queue", type=click.IntRange(0), default=0, show_default=True, help="NIC queue to look at."
)
@click.option("--problems", is_flag=True, help="Leave out what is good.")
@click.option(
    "--take-default-route",
    "take",
    is_flag=True,
    help="A DPDK port may be taken though the default route leaves by it.",
)
@output_option
def check(interface: str | None, queue: int, problems: bool, take: bool, output: str) -> None:
    """Would HARP work on this host and INTERFACE, in which mode, and what is missing?

    Without INTERFACE: on every one that is up and has an address, and on the DPDK ports of
    harp.toml. Attaches nothing and changes nothing. Exit code 0: works; 5: works at a cost; 1:
    can't. docs/check.md lists what is looked at.

    \b
    harpctl check
    harpctl check eth0
    harpctl check eth0 --problems
    harpctl check eth1 --queue 3 -o json
    harpctl check dpdk:0000:01:00.0        a DPDK port: it is opened, and closed again
    harpctl check dpdk:eth1                what it takes to give eth1 to DPDK
    """
    view = this_host()
    if interface is None:
        examined: Report | Examined = examine_all(view, queue)
    else:
        examined = examine(view, interface, queue, take)
    if output == "json":
        console.print_json(examined.to_json())
    else:
        if isinstance(examined, Report):
            tables = [_table("this host", examined.host, problems)]
            tables += [
                _table(_title(each.ifname, each.queue), each.findings, problems)
                for each in examined.interfaces
            ]
        else:
            tables = [_table(_title(examined.ifname, queue), examined.findings, problems)]
        for table in filter(None, tables):
            console.print_whole(table)
            console.out.print()
        console.out.print(examined.verdict, markup=False, soft_wrap=True)
    if isinstance(examined, Report) and not examined.interfaces:
        raise click.exceptions.Exit(Exit.MISSING)
    if examined.severity:
        worst = Exit.WARNING if examined.severity == Severity.COSTS else Exit.FAILURE
        raise click.exceptions.Exit(worst)
