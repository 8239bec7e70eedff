# SPDX-License-Identifier: Apache-2.0
"""harpctl bench failover: a NIC fails under a stream, and recovers."""

from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import failover as runner
from harp.bench import plot as plots
from harp.cli.lab_options import (
    channels_option,
    lab_options,
    lab_shape,
    path_option,
    plot_option,
    rounds_option,
)
from harp.cli.options import FiniteRange, output_option
from harp.cli.result import VERDICT, show
from harp.lab import RAILS_MAX


@click.command()
@click.option(
    "--rate",
    "mbit_per_s",
    type=FiniteRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Of each rail, Mbit/s.",
)
@rounds_option(5)
@click.option(
    "--seconds", type=FiniteRange(0.5, 60), default=2, show_default=True, help="Before the cut."
)
@click.option(
    "--cut",
    type=click.Choice(runner.CUTS),
    default="silent",
    show_default=True,
    help="The switch drops all packets; the receiver's cable is pulled; the sender's NIC is down.",
)
@click.option(
    "--use",
    type=click.Choice(["backup", "all"]),
    default="all",
    show_default=True,
    help="HARP_RAILS.",
)
@click.option(
    "--cut-for",
    "cut_s",
    type=FiniteRange(0.5, 60),
    default=3,
    show_default=True,
    help="Seconds until the rail is restored.",
)
@click.option(
    "--after",
    "after_s",
    type=FiniteRange(0.5, 60),
    default=8,
    show_default=True,
    help="Seconds after that.",
)
@plot_option
@click.option(
    "--rails", type=click.IntRange(2, RAILS_MAX), default=2, show_default=True, help="NICs."
)
@channels_option
@lab_options
@path_option
@output_option
def failover(plot: Path | None, output: str, **given: Any) -> None:
    """Measure a verified stream whose first NIC fails in the middle, and recovers.

    Pause: the longest time after the cut without a byte at the receiver. Back: from the rail's
    return to data on it. Goals: every pause below a second, the rail used again in every round.
    Exit code 1 when a goal is missed, or a byte is lost, repeated or wrong. The JSON has the
    timelines.

    \b
    harpctl bench failover --plot failover.png
    harpctl bench failover --cut unplug --use backup --rounds 3 -o json
    """
    plots.check(plot)
    options = runner.FailoverOptions(shape=lab_shape(given), **given)
    report = runner.run_failover(options, console.err.print)
    if plot is not None:
        runner.write_plot(report, plot)
    show(report, output, lambda report: _print_failover(report, options), is_good=report["ok"])


def _print_failover(report: dict[str, Any], options: runner.FailoverOptions) -> None:
    console.out.print(
        f"{options.rails} rails of {options.mbit_per_s:.0f} Mbit/s, {options.lab.words},"
        f" HARP_PATH={options.path}, HARP_RAILS={options.use}; rail 0 cut ({options.cut})"
        f" for {options.cut_s:g} s"
    )
    columns = ("round", "pause ms", "back ms", "Mbit/s before", "cut", "after")
    keys = ("pause_ms", "back_ms", "before_mbit_per_s", "cut_mbit_per_s", "after_mbit_per_s")
    rows = []
    for name, found in [
        *((str(index + 1), found) for index, found in enumerate(report["rounds"])),
        ("median", report["median"]),
    ]:
        cells = ["never" if found[key] is None else f"{found[key]:.0f}" for key in keys]
        rows.append((name, *cells))
    console.print_table(columns, rows)
    console.out.print(
        f"longest pause: {report['longest_pause_ms']:.0f} ms (goal: below"
        f" {runner.PAUSE_GOAL_MS:.0f}), used again: "
        f"{sum(found['back_ms'] is not None for found in report['rounds'])} of {options.rounds}:"
        f" {VERDICT[report['ok']]}"
    )
