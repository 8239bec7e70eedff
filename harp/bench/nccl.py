# SPDX-License-Identifier: Apache-2.0
"""Compares HARP's paths and NCCL's own sockets in the shapes of NCCL's traffic, alternated.

Shapes: ring all-reduce, all-to-all, streams (8 messages in flight on each comm) and ping-pong. In
each round every transport runs the shape, and each round begins with another transport, because
the machine's speed changes within minutes. Times are compared within a round only: a cell's result
is the median of the rounds' ratios with an interval from resampling the rounds (bootstrap).
Among 260 cells some miss a goal by chance. A cell that misses one is measured again, with twice the
rounds, and the second measurement decides.

"sockets" is NCCL's socket transport as tools/driver implements it (one socket per connection, no
helper threads, as NCCL does outside of clouds), in a process without HARP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from harp import _paths
from harp import output as console
from harp.bench import runner
from harp.bench.runner import (
    KIB,
    MIB,
    SOCKETS,
    BenchOptions,
    Say,
    Shape,
    alternate,
    path,
    run_bench,
    size_text,
    time_us,
    transport_words,
)
from harp.cli.lab_options import plot_option, rounds_option
from harp.cli.options import output_option, show
from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions
from harp.words import plural

AUTO, XDP, KERNEL = "auto", "xdp", "kernel"
TRANSPORTS = (AUTO, XDP, KERNEL, SOCKETS)
# The hosts' veth has generic copy mode only, for which the path policy chooses only kernel lanes.
JUDGED = (KERNEL,)
# The speed of auto relative to the best forced path and to NCCL's sockets: at least.
FORCED_GOAL, SOCKETS_GOAL = 0.95, 1.0
_RESAMPLES = 2000
_BYTES_A_RUN = 64 * MIB  # moved for each size, approximately
_RUNS_MIN, _RUNS_MAX = 4, 1000

Times = dict[int, float]  # us, by size in bytes
# us by transport and size, a value for each round; path by transport
Runs = tuple[dict[str, dict[int, list[float]]], dict[str, str]]


def shape_words(shape: Shape) -> str:
    if shape.mode == "bw":
        return f"stream, {plural(shape.channels, 'comm')}, 8 messages in flight"
    if shape.mode == "lat":
        return "ping-pong"
    channels = f", {plural(shape.channels, 'channel')}" if shape.mode == "allreduce" else ""
    return f"{shape.name}, {shape.ranks} ranks{channels}"


_ALLREDUCE = (8, KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB)
SHAPES = (
    *(
        Shape("allreduce", "allreduce", _ALLREDUCE, ranks, channels)
        for ranks in (2, 4)
        for channels in (1, 2, 4)
    ),
    *(Shape("alltoall", "alltoall", (64, 8 * KIB, 256 * KIB, 8 * MIB), ranks) for ranks in (2, 4)),
    *(Shape("stream", "bw", (64 * KIB, 512 * KIB, 4 * MIB), 2, comms) for comms in (1, 4, 16)),
    Shape("pingpong", "lat", (8, 512, 4 * KIB, 16 * KIB, 64 * KIB)),
)
SHAPE_NAMES = tuple(dict.fromkeys(shape.name for shape in SHAPES))


def bench_options(mode: str, transport: str, sizes: str, channels: int) -> BenchOptions:
    """Return the options for a run of harp-bench over the transport."""
    sockets = transport == SOCKETS
    return BenchOptions(
        mode,
        plugin=str(_paths.find(_paths.SOCKET_PLUGIN)) if sockets else None,
        path=KERNEL if sockets else transport,
        sizes=sizes,
        channels=channels,
        datacheck=False,
        environment={"NCCL_DEBUG": "INFO"},
    )


def run_shape(lab: Lab, shape: Shape, transport: str) -> tuple[Times, str]:
    sockets = transport == SOCKETS
    most = _RUNS_MAX if shape.mode != "lat" else 2 * _RUNS_MAX
    sizes = shape.argument(_BYTES_A_RUN, (_RUNS_MIN, most))
    options = bench_options(shape.mode, transport, sizes, shape.channels)
    report = run_bench(lab, options)
    if not report["ok"]:
        raise HarpError(f"{shape_words(shape)}, {transport}: {report['error']}")
    times = {row["size_bytes"]: time_us(shape.mode, row) for row in report["results"]}
    return times, "" if sockets else path(report)


def interval(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median of the rounds' relative speeds, and the 95 % interval of that median."""
    ratios = np.array(others, dtype=float) / np.array(times, dtype=float)
    draw = np.random.default_rng(1).integers(0, ratios.size, (_RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[draw], axis=1), [2.5, 97.5])
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def judge(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a cell: each transport's median, auto's relative speeds, and the missed goals."""
    median = {name: float(np.median(values)) for name, values in times.items()}
    forced = min((name for name in JUDGED if name in times), key=median.__getitem__)
    speed = {name: interval(times[AUTO], values) for name, values in times.items() if name != AUTO}
    missed = []
    if speed[forced]["high"] < FORCED_GOAL:
        missed.append(f"{speed[forced]['ratio']:.2f} of the speed of {forced}")
    if SOCKETS in speed and speed[SOCKETS]["high"] < SOCKETS_GOAL:
        missed.append(f"{speed[SOCKETS]['ratio']:.2f} of the speed of NCCL's sockets")
    return {"median_us": median, "best_forced": forced, "speed": speed, "missed": missed}


def _alternate(lab: Lab, shape: Shape, transports: Sequence[str], rounds: int, say: Say) -> Runs:
    """Return each transport's times by size and round, and the path that its log names."""
    times: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in shape.sizes} for name in transports
    }
    paths: dict[str, str] = {}
    for name in alternate(transports, rounds, say):
        run, paths[name] = run_shape(lab, shape, name)
        for size in shape.sizes:
            times[name][size].append(run[size])
    return times, paths


def _cells(shape: Shape, times: Mapping[str, Mapping[int, list[float]]]) -> list[dict[str, Any]]:
    cells = []
    for size in shape.sizes:
        of_size = {name: by_size[size] for name, by_size in times.items()}
        cells.append({"size_bytes": size, "rounds_us": of_size, **judge(of_size)})
    return cells


def measure_shape(setting: LabOptions, shape: Shape, rounds: int, say: Say) -> dict[str, Any]:
    """Measure the cells of a shape; those that miss a goal are measured twice."""
    lab_options = LabOptions(shape.ranks, setting.mtu_bytes, setting.offload, ipv6=setting.ipv6)
    # tools/driver's plugin of NCCL's sockets supports IPv4 only.
    transports = TRANSPORTS[:-1] if setting.ipv6 else TRANSPORTS
    title = f"{setting.words}: {shape_words(shape)}: "
    with Lab(lab_options) as lab:
        times, paths = _alternate(lab, shape, transports, rounds, lambda text: say(title + text))
        cells = _cells(shape, times)
        missed = replace(shape, sizes=tuple(c["size_bytes"] for c in cells if c["missed"]))
        if missed.sizes:
            times, _ = _alternate(
                lab, missed, transports, 2 * rounds, lambda text: say(f"{title}again: {text}")
            )
            second = {cell["size_bytes"]: cell for cell in _cells(missed, times)}
            for index, cell in enumerate(cells):
                if cell["size_bytes"] in second:
                    cells[index] = {**second[cell["size_bytes"]], "first": cell}
    return {**asdict(shape), "words": shape_words(shape), "paths": paths, "cells": cells}


def run_nccl(
    settings: Sequence[LabOptions], shapes: Sequence[Shape], rounds: int, say: Say
) -> dict[str, Any]:
    """Measure all settings and shapes; return a document. ok: no cell misses a goal."""
    results: list[dict[str, Any]] = []
    for setting in settings:
        tables = [measure_shape(setting, shape, rounds, say) for shape in shapes]
        results.append({"lab": asdict(setting), "words": setting.words, "shapes": tables})
    missed = [
        f"{setting['words']}: {shape['words']}, {cell['size_bytes']} B: {goal}"
        for setting in results
        for shape in setting["shapes"]
        for cell in shape["cells"]
        for goal in cell["missed"]
    ]
    return {"rounds": rounds, "settings": results, "missed": missed, "ok": not missed}


def limit_sizes(shape: Shape, max_bytes: int | None) -> Shape:
    """Return the shape with only its sizes up to max_bytes; None: no limit."""
    most = max_bytes or max(shape.sizes)
    return replace(shape, sizes=tuple(size for size in shape.sizes if size <= most))


def plot_allreduce(report: Mapping[str, Any], file: Path) -> None:
    """Plot time over size of the two-rank all-reduces, a panel for each setting."""
    panels = [
        (
            setting["words"],
            [cell["size_bytes"] for cell in shape["cells"]],
            {
                transport_words(name): [cell["median_us"][name] for cell in shape["cells"]]
                for name in shape["cells"][0]["median_us"]
            },
        )
        for setting in report["settings"]
        for shape in setting["shapes"]
        if shape["name"] == "allreduce" and shape["ranks"] == 2 and shape["channels"] == 1
    ]
    if not panels:
        raise HarpError("--plot needs the all-reduce of 2 ranks: measure it, too", Exit.USAGE)
    runner.plot_times(panels, file)


_SETTINGS = {
    f"{mtu}-{offload}": LabOptions(mtu_bytes=mtu, offload=offload == "on")
    for mtu in (1500, 9000)
    for offload in ("on", "off")
}


def time_words(time_us: float) -> str:
    """Format a number with three significant digits."""
    return f"{time_us:,.0f}" if time_us >= 100 else f"{time_us:.1f}"


def interval_words(interval: dict[str, float]) -> str:
    """Format a ratio and its interval: 1.02 (0.94 to 1.04)."""
    return f"{interval['ratio']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"


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
    type=click.Choice(SHAPE_NAMES),
    multiple=True,
    help="Traffic; may be repeated.  [default: all]",
)
@click.option("--ranks", type=click.Choice(["2", "4"]), help="Only shapes of 2 or 4 ranks.")
@click.option("--channels", type=click.IntRange(1, 16), help="Only shapes of this number of comms.")
@click.option("--max-bytes", type=click.IntRange(8), help="No larger sizes.")
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
    rounds: int,
    check: bool,
    plot: Path | None,
    output: str,
) -> None:
    """Compare HARP's paths and NCCL's own sockets in the shapes of NCCL's traffic.

    Ring all-reduce, all-to-all, streams and ping-pong alternate between HARP_PATH=auto, xdp and
    kernel, and NCCL's socket transport. Times are us for an operation, medians of the rounds.
    "auto/best" is auto's speed relative to the best forced path that the path policy may choose,
    "auto/sockets" relative to NCCL's sockets, each with a 95 % interval. A goal is missed if the
    whole interval is below 0.95 or 1.0, and again in a second measurement of the cell with twice
    the rounds (marked "again"). The hosts' NICs have generic copy mode only, for which the policy
    chooses kernel lanes, so forced xdp is shown and not judged.

    \b
    harpctl bench nccl --check
    harpctl bench nccl --setting 1500-on --shape allreduce --ranks 2 --rounds 3
    harpctl bench nccl --setting 9000-on --shape stream -o json
    """
    selection = tuple(
        sized
        for shape in SHAPES
        if (not shapes or shape.name in shapes)
        and (ranks is None or shape.ranks == int(ranks))
        and (channels is None or shape.channels == channels)
        and (sized := limit_sizes(shape, max_bytes)).sizes
    )
    if not selection:
        raise HarpError("no shape has such ranks, channels and sizes", Exit.USAGE)
    runner.check_plot(plot)
    report = run_nccl(
        [_SETTINGS[name] for name in settings or _SETTINGS], selection, rounds, console.say
    )
    if plot is not None:
        plot_allreduce(report, plot)
    show(report, output, _print, is_good=report["ok"] or not check)


def _print(report: dict[str, Any]) -> None:
    columns = ("size", *TRANSPORTS, "auto/best", "auto/sockets", "")
    for setting in report["settings"]:
        for shape in setting["shapes"]:
            console.out.print(
                f"\n{setting['words']}: {shape['words']} (us, {report['rounds']} rounds)"
            )
            console.print_table(columns, [_row(cell) for cell in shape["cells"]])
            console.print_line(f"auto: {shape['paths'][AUTO]}")
    for goal in report["missed"]:
        console.print_line(f"MISSED: {goal}")
    console.out.print("xdp is shown and not judged: auto does not choose it in generic copy mode")
    if report["ok"]:
        console.out.print("auto meets its goals in every cell")


def _row(cell: dict[str, Any]) -> list[str]:
    median, speed = cell["median_us"], cell["speed"]
    times = [time_words(median[name]) if name in median else "" for name in TRANSPORTS]
    sockets = interval_words(speed[SOCKETS]) if SOCKETS in speed else ""
    verdict = "MISSED" if cell["missed"] else "again" if "first" in cell else ""
    best = interval_words(speed[cell["best_forced"]])
    return [size_text(cell["size_bytes"]), *times, best, sockets, verdict]
