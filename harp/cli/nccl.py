# SPDX-License-Identifier: Apache-2.0
"""harpctl bench nccl: HARP's paths and NCCL's sockets in the shapes of NCCL's traffic."""

from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import nccl as runner
from harp.bench import plot as plots
from harp.cli.lab_options import plot_option, rounds_option
from harp.cli.options import output_option
from harp.cli.result import show
from harp.errors import Exit, HarpError
from harp.lab import LabOptions

_SETTINGS = {
    f"{mtu}-{offload}": LabOptions(mtu_bytes=mtu, offload=offload == "on")
    for mtu in (1500, 9000)
    for offload in ("on", "off")
}


def size_words(size: int) -> str:
    """Format a size: 8, 4K, 64M."""
    for letter, unit in (("M", runner.MIB), ("K", runner.KIB)):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def time_words(time_us: float) -> str:
    """Format a number with three significant digits."""
    return f"{time_us:,.0f}" if time_us >= 100 else f"{time_us:.1f}"


def interval_words(found: dict[str, float]) -> str:
    """Format a ratio and its interval: 1.02 (0.94 to 1.04)."""
    return f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


@click.command()
@click.option(
    "--setting",
    "settings",
    type=click.Choice(list(_SETTINGS)),
    multiple=True,
    help="MTU and offloads; may be repeated.  [default: all four]",
)
@click.option(
    "--shape",
    "shapes",
    type=click.Choice(runner.SHAPE_NAMES),
    multiple=True,
    help="Traffic; may be repeated.  [default: all]",
)
@click.option("--ranks", type=click.Choice(["2", "4"]), help="Only shapes of 2 or 4 ranks.")
@click.option("--channels", type=click.IntRange(1, 16), help="Only shapes of this number of comms.")
@click.option("--max-bytes", type=click.IntRange(8), help="No larger sizes.")
@click.option("--min-bytes", type=click.IntRange(8), help="No smaller sizes.")
@rounds_option(5)
@click.option("--check", is_flag=True, help="Exit code 1 when auto misses a goal.")
@plot_option
@output_option
def nccl(
    settings: tuple[str, ...],
    shapes: tuple[str, ...],
    ranks: str | None,
    channels: int | None,
    max_bytes: int | None,
    min_bytes: int | None,
    rounds: int,
    check: bool,
    plot: Path | None,
    output: str,
) -> None:
    """Compare HARP's paths and NCCL's own sockets in the shapes of NCCL's traffic.

    Ring all-reduce, all-to-all, streams and ping-pong over HARP_PATH=auto, xdp and kernel and over
    NCCL's socket transport, alternated for some rounds. Times are us for an operation, medians of
    the rounds. "auto/best" is auto's speed relative to the best forced path that the path policy
    may choose, "auto/sockets" relative to NCCL's sockets, each with a 95 % interval. A goal is
    missed where the whole interval is below 0.95 or 1.0, and is still when the cell is measured
    again with twice the rounds (marked "again"). The hosts' NICs have generic copy mode only, where
    the policy chooses kernel lanes: forced xdp is shown and not judged.

    \b
    harpctl bench nccl --check
    harpctl bench nccl --setting 1500-on --shape allreduce --ranks 2 --rounds 3
    harpctl bench nccl --setting 9000-on --shape stream -o json
    """
    wanted = tuple(
        sized
        for shape in runner.SHAPES
        if (not shapes or shape.name in shapes)
        and (ranks is None or shape.ranks == int(ranks))
        and (channels is None or shape.channels == channels)
        and (sized := runner.replace_sizes(shape, min_bytes, max_bytes)).sizes
    )
    if not wanted:
        raise HarpError("no shape has such ranks, channels and sizes", Exit.USAGE)
    plots.check(plot)
    options = runner.NcclOptions(
        tuple(_SETTINGS[name] for name in settings or _SETTINGS), wanted, rounds
    )
    report = runner.run_nccl(options, console.err.print)
    if plot is not None:
        runner.plot_allreduce(report, plot)
    show(report, output, _print, is_good=report["ok"] or not check)


def _print(report: dict[str, Any]) -> None:
    columns = ("size", *runner.TRANSPORTS, "auto/best", "auto/sockets", "")
    for setting in report["settings"]:
        for shape in setting["shapes"]:
            console.out.print(
                f"\n{setting['words']}: {shape['words']} (us, {report['rounds']} rounds)"
            )
            console.print_table(columns, [_row(cell) for cell in shape["cells"]])
            console.out.print(f"auto: {shape['paths'][runner.AUTO]}", markup=False)
    for words in report["missed"]:
        console.out.print(f"MISSED: {words}", markup=False)
    console.out.print("xdp is shown and not judged: auto does not choose it in generic copy mode")
    if report["ok"]:
        console.out.print("auto meets its goals in every cell")


def _row(cell: dict[str, Any]) -> list[str]:
    median, speed = cell["median_us"], cell["speed"]
    times = [time_words(median[name]) if name in median else "" for name in runner.TRANSPORTS]
    sockets = interval_words(speed[runner.SOCKETS]) if runner.SOCKETS in speed else ""
    verdict = "MISSED" if cell["missed"] else "again" if "first" in cell else ""
    best = interval_words(speed[cell["best_forced"]])
    return [size_words(cell["size_bytes"]), *times, best, sockets, verdict]
