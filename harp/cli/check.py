# SPDX-License-Identifier: Apache-2.0
"""harpctl check."""

from collections.abc import Iterable

import click
from rich.table import Table
from rich.text import Text

from harp import output as console
from harp.cli.options import complete_interface, output_option, show
from harp.doctor.examine import PORT_PREFIX, Examination, Report, examine, examine_all
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


def _sections(result: Report | Examination) -> dict[str, list[Finding]]:
    if isinstance(result, Examination):
        return {_title(result.ifname, result.queue): result.findings}
    interfaces = {_title(nic.ifname, nic.queue): nic.findings for nic in result.interfaces}
    return {"this host": result.host, **interfaces}


def print_check(result: Report | Examination, verbose: bool) -> None:
    """Print the verdict, then the findings: those that are not ok, or all."""
    console.print_line(result.verdict)
    sections = _sections(result)
    for title, findings in sections.items():
        table = _table(title, findings, verbose)
        if table is not None:
            console.out.print()
            console.print_whole(table)
    count = sum(not finding.severity for findings in sections.values() for finding in findings)
    if count and not verbose:
        console.out.print(f"\n{count} checks are ok; --verbose shows them")


@click.command()
@click.argument("interface", required=False, shell_complete=complete_interface)
@click.option("--queue", type=click.IntRange(0, 65535), default=0, help="NIC queue to look at.")
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

    Without INTERFACE: check all interfaces that are up and have an address, and the DPDK ports of
    harp.toml. Changes nothing. Exit code 0: works; 5: works at a cost; 1: cannot work.
    docs/check.md lists all checks.

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
        result: Report | Examination = examine_all(view, queue)
    else:
        result = examine(view, interface, queue, take)
    show(result.to_json(), output, lambda _: print_check(result, verbose))
    if isinstance(result, Report) and not result.interfaces:
        raise click.exceptions.Exit(Exit.MISSING)
    if result.severity:
        worst = Exit.WARNING if result.severity == Severity.COSTS else Exit.FAILURE
        raise click.exceptions.Exit(worst)
