# SPDX-License-Identifier: Apache-2.0
"""harpctl bench failover: a NIC fails under a stream, and recovers."""

from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import failover as runner
from harp.cli.lab_options import lab_options, path_option
from harp.cli.options import FiniteRange, output_option
from harp.cli.result import show
from harp.lab import RAILS_MAX

_WORDS = {True: "met", False: "MISSED"}


def _shape(given: dict[str, Any], **more: Any) -> runner.RailsOptions:
    return runner.RailsOptions(
        mbit_per_s=given.pop("rate"),
        rails=given.pop("rails"),
        rounds=given.pop("rounds"),
        seconds=given.pop("seconds"),
        mtu_bytes=given.pop("mtu"),
        offload=given.pop("offload") == "on",
        ipv6=given.pop("ipv6"),
        path=given.pop("path"),
        channels=given.pop("channels"),
        **more,
    )


@click.command()
@click.option(
    "--rate",
    type=FiniteRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Of each rail, Mbit/s.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option(
    "--seconds", type=FiniteRange(0.5, 60), default=2, show_default=True, help="Before it."
)
@click.option(
    "--cut",
    type=click.Choice(runner.CUTS),
    default="silent",
    show_default=True,
    help="The middle loses all; the receiver's cable is out; the sender's NIC is switched off.",
)
@click.option(
    "--use",
    type=click.Choice(["backup", "all"]),
    default="all",
    show_default=True,
    help="HARP_RAILS.",
)
@click.option("--cut-for", type=FiniteRange(0.5, 60), default=3, show_default=True, help="Seconds.")
@click.option("--after", type=FiniteRange(0.5, 60), default=8, show_default=True, help="Seconds.")
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), help="All timelines.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot of the median round (.png or .svg); needs matplotlib.",
)
@click.option(
    "--rails", type=click.IntRange(2, RAILS_MAX), default=2, show_default=True, help="NICs."
)
@click.option("--channels", type=click.IntRange(1, 32), default=1, show_default=True)
@lab_options
@path_option
@output_option
def failover(
    output: str,
    cut: str,
    use: str,
    cut_for: float,
    after: float,
    csv: Path | None,
    plot: Path | None,
    **given: Any,
) -> None:
    """Measure a verified stream whose first NIC fails in the middle, and recovers.

    Pause: the longest time after the cut without a byte at the receiver. Back: from the rail's
    return to data on it. Goals: every pause below a second, the rail used again in every round.
    Exit code 1 when one is missed; 1, too, when a byte is lost, repeated or wrong.

    \b
    harpctl bench failover --plot failover.png
    harpctl bench failover --cut unplug --use backup --rounds 3 -o json
    """
    shape = _shape(given, message_bytes=65536)
    options = runner.FailoverOptions(shape, cut, use, cut_for, after)
    runner.check_output(csv, plot)
    report = runner.run_failover(options, console.err.print)
    if csv is not None:
        runner.write_csv(report, csv)
    if plot is not None:
        runner.write_plot(report, plot)
    show(report, output, lambda report: _print_failover(report, options), is_good=report["ok"])


def _print_failover(report: dict[str, Any], options: runner.FailoverOptions) -> None:
    shape = options.shape
    console.out.print(
        f"{shape.rails} rails of {shape.mbit_per_s:.0f} Mbit/s, {shape.lab.words},"
        f" HARP_PATH={shape.path}, HARP_RAILS={options.use}; rail 0 cut ({options.cut})"
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
        f"{sum(found['back_ms'] is not None for found in report['rounds'])} of {shape.rounds}:"
        f" {_WORDS[report['ok']]}"
    )
