# SPDX-License-Identifier: Apache-2.0
"""harpctl check."""

from collections.abc import Iterable

import click
from rich.table import Table
from rich.text import Text

from harp import output as console
from harp.cli.options import complete_interface, output_option, show
from harp.doctor.examine import PORT_PREFIX, Examined, Report, examine, examine_all
from harp.doctor.finding import Finding, Severity
from harp.doctor.view import View
from harp.errors import Exit

_STYLES = {Severity.GOOD: "green", Severity.COSTS: "yellow", Severity.NO: "red"}


def _table(title: str, findings: Iterable[Finding], verbose: bool) -> Table | None:
    shown = [finding for finding in findings if finding.severity or verbose]
    if not shown:
        return None
    rows = [
        (
            finding.name,
            Text(finding.severity.word, _STYLES[finding.severity]),
            finding.text + (f"\n→ {finding.remedy}" if finding.remedy else ""),
        )
        for finding in shown
    ]
    return console.table(title, ("check", "", "result"), rows, left=("",), folded=(2,))


def _title(ifname: str, queue: int) -> str:
    return ifname if ifname.startswith(PORT_PREFIX) else f"{ifname} queue {queue}"


def _sections(examined: Report | Examined) -> dict[str, list[Finding]]:
    if isinstance(examined, Examined):
        return {_title(examined.ifname, examined.queue): examined.findings}
    interfaces = {_title(each.ifname, each.queue): each.findings for each in examined.interfaces}
    return {"this host": examined.host, **interfaces}


def print_check(examined: Report | Examined, verbose: bool) -> None:
    """Print the verdict, then what is not ok, or everything."""
    console.print_line(examined.verdict)
    sections = _sections(examined)
    for title, findings in sections.items():
        table = _table(title, findings, verbose)
        if table is not None:
            console.out.print()
            console.print_whole(table)
    good = sum(not each.severity for findings in sections.values() for each in findings)
    if good and not verbose:
        console.out.print(f"\n{good} checks are ok; --verbose shows them")


@click.command()
@click.argument("interface", required=False, shell_complete=complete_interface)
@click.option("--queue", type=click.IntRange(0), default=0, help="NIC queue to look at.")
@click.option("--verbose", "-v", is_flag=True, help="Also show what is ok.")
@click.option(
    "--take-default-route",
    "take",
    is_flag=True,
    help="Accept a DPDK port that has the host's default route.",
)
@output_option
def check(interface: str | None, queue: int, verbose: bool, take: bool, output: str) -> None:
    """Check whether HARP works on this host and INTERFACE, and what is missing.

    Without INTERFACE: on every one that is up and has an address, and on the DPDK ports of
    harp.toml. Attaches nothing and changes nothing. Exit code 0: works; 5: works at a cost; 1:
    cannot work. docs/check.md lists all checks.

    \b
    harpctl check
    harpctl check eth0
    harpctl check eth0 --verbose
    harpctl check eth1 --queue 3 -o json
    harpctl check dpdk:0000:01:00.0    open a DPDK port, and close it again
    harpctl check dpdk:eth1            how to give eth1 to DPDK
    """
    view = View()
    if interface is None:
        examined: Report | Examined = examine_all(view, queue)
    else:
        examined = examine(view, interface, queue, take)
    show(examined.to_json(), output, lambda _: print_check(examined, verbose))
    if isinstance(examined, Report) and not examined.interfaces:
        raise click.exceptions.Exit(Exit.MISSING)
    if examined.severity:
        worst = Exit.WARNING if examined.severity == Severity.COSTS else Exit.FAILURE
        raise click.exceptions.Exit(worst)
