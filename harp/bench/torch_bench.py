# SPDX-License-Identifier: Apache-2.0
"""harpctl bench torch: torch.distributed over HARP and over Gloo, between hosts made here."""

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import runner
from harp.bench.runner import KIB, MIB, Say, size_text
from harp.cli.lab_options import (
    hosts_option,
    lab_options,
    lab_shape,
    paths_option,
    plot_option,
    rounds_option,
)
from harp.cli.options import FiniteRange, output_option, show
from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails
from harp.lab.team import Team, job_environment

SIZES = (4, 8, 64, KIB, 8 * KIB, 32 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB, 256 * MIB)
# Gloo's time over HARP's in an all-reduce, by the largest size for which it holds.
GOALS = ((256 * KIB, 10.0), (8 * MIB, 1.8), (64 * MIB, 1.5), (1 << 62, 1.2))
PORT = 7950
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True)
class TorchOptions:
    operation: str = OPERATIONS[0]
    ranks: int = 2
    paths: tuple[str, ...] = ("auto",)
    rounds: int = 5
    min_bytes: int = 4
    max_bytes: int = 64 * MIB
    variants: tuple[str, ...] = ()  # "flat": HARP_COLL_ALGO=ring; wire formats
    mbit_per_s: int | None = None  # of the switch, towards each host
    busy: bool = False  # another process computes on each processor
    timeout_s: float = 230

    @property
    def sizes(self) -> list[int]:
        return [size for size in SIZES if self.min_bytes <= size <= self.max_bytes]


def check() -> None:
    if find_spec("torch") is None:
        raise HarpError("PyTorch is not installed: pip install 'harp-nccl[torch]'", Exit.MISSING)


def environment(path: str, ifname: str) -> dict[str, str]:
    return job_environment(
        {
            "HARP_PATH": path,
            "NCCL_SOCKET_IFNAME": f"={ifname}",
            "GLOO_SOCKET_IFNAME": ifname,
            "TP_SOCKET_IFNAME": ifname,
            "OMP_NUM_THREADS": "1",
        }
    )


def compile_backend() -> None:
    command = [sys.executable, "-m", "harp.torch"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise HarpError("the backend could not be compiled: see above", Exit.MISSING)


def run_ranks(
    lab: Lab, options: TorchOptions, path: str, arguments: list[str]
) -> list[dict[str, Any]]:
    """Run the ranks; return rank 0's lines. Neighboring ranks share a host, as with torchrun, and
    the ranks of a host share a processor.
    """
    with Team("harp-torch", f"path {path}: rank {{}} failed: ") as team:
        for rank in range(options.ranks):
            host = lab.hosts[rank * len(lab.hosts) // options.ranks]
            command: list[str | Path] = [sys.executable, "-m", "harp.bench.torch_rank"]
            command += ["--rank", str(rank), "--ranks", str(options.ranks)]
            command += ["--root", lab.hosts[0].endpoint(PORT), "--rounds", str(options.rounds)]
            env = environment(path, host.ifname)
            team.start(host, [*command, *arguments], cpu=host.index, env=env)
        printed = team.finish(options.timeout_s, remedy="; try --max-bytes")
    return [json.loads(line) for line in printed[0].splitlines()]


@contextlib.contextmanager
def laboratory(shape: LabOptions, options: TorchOptions) -> Iterator[Lab]:
    """Create the hosts; optionally limit the wire's rate and keep the processors busy."""
    check()
    compile_backend()
    slow = options.mbit_per_s is not None
    with Lab(replace(shape, switch=shape.switch or slow)) as lab, Team("harp-busy") as busy:
        if options.mbit_per_s is not None:
            Rails(lab).shape(0, options.mbit_per_s)
        for host in lab.hosts if options.busy else ():
            busy.start(host, [sys.executable, "-c", "while True: pass"], cpu=host.index)
        yield lab


def lab_words(shape: LabOptions, options: TorchOptions) -> str:
    rate = f", {options.mbit_per_s} Mbit/s" if options.mbit_per_s is not None else ""
    return shape.words + rate + (", busy processors" if options.busy else "")


def run_topk(shape: LabOptions, options: TorchOptions, ratio: float, say: Say) -> dict[str, Any]:
    """Compare exchanges of the largest gradients and of all gradients, over HARP."""
    runs = {}
    with laboratory(shape, options) as lab:
        for path in options.paths:
            say(f"path {path}")
            (runs[path],) = run_ranks(lab, options, path, ["--topk", str(ratio)])
    return {
        "ratio": ratio,
        "ranks": options.ranks,
        "hosts": shape.hosts,
        "lab": lab_words(shape, options),
        "rounds": options.rounds,
        "paths": runs,
    }


def run_torch(shape: LabOptions, options: TorchOptions, say: Say) -> dict[str, Any]:
    """Return the bench's report. right: all results are; met: all goals are."""
    if not options.sizes:
        raise HarpError(f"--min-bytes {options.min_bytes} is above --max-bytes", Exit.USAGE)
    arguments = [f"--operation={options.operation}"]
    arguments += [*(f"--variant={name}" for name in options.variants), *map(str, options.sizes)]
    runs: dict[str, list[dict[str, Any]]] = {}
    with laboratory(shape, options) as lab:
        for path in options.paths:
            say(f"path {path}")
            runs[path] = run_ranks(lab, options, path, arguments)
    rows = []
    for index, size in enumerate(options.sizes):
        cells = {path: run[index] for path, run in runs.items()}
        rows.append(
            {
                "size_bytes": size,
                "gloo_us": statistics.median(cell["gloo_us"] for cell in cells.values()),
                "paths": cells,
                "goal": next(goal for limit, goal in GOALS if size <= limit)
                if options.operation == OPERATIONS[0]
                else 1.0,
            }
        )
    first = options.paths[0]
    return {
        "operation": options.operation,
        "dtype": "float32",
        "ranks": options.ranks,
        "hosts": shape.hosts,
        "lab": lab_words(shape, options),
        "rounds": options.rounds,
        "variants": options.variants,
        "results": rows,
        "right": all(cell["right"] for row in rows for cell in row["paths"].values()),
        "met": all(row["paths"][first]["speed"] >= row["goal"] for row in rows),
    }


def write_plot(report: dict[str, Any], file: Path) -> None:
    """Plot times by size; the file's name selects PNG or SVG."""
    rows = report["results"]
    times = {"Gloo": [row["gloo_us"] for row in rows]}
    for path in rows[0]["paths"]:
        times[f"harp, path {path}"] = [row["paths"][path]["harp_us"] for row in rows]
    title = f"{report['ranks']} ranks on {report['hosts']} hosts, {report['lab']}"
    runner.plot_times([(title, [row["size_bytes"] for row in rows], times)], file)


@click.command("torch")
@click.option(
    "--operation",
    type=click.Choice(OPERATIONS),
    default=OPERATIONS[0],
    help="Operation of torch.distributed; sizes are sums over the blocks of all ranks.",
)
@click.option("--ranks", type=click.IntRange(2, 16), default=2, help="Ranks on all hosts.")
@hosts_option
@paths_option
@rounds_option(5)
@click.option("--min-bytes", type=click.IntRange(4, 256 << 20), default=4, help="Smallest size.")
@click.option(
    "--max-bytes",
    type=click.IntRange(4, 256 << 20),
    default=64 << 20,
    help="Largest size; up to 256 MiB.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="Also measure HARP's ring over all ranks, for several on a host (HARP_COLL_ALGO=ring).",
)
@click.option(
    "--wire",
    type=click.Choice(["float16", "bfloat16"]),
    help="Also measure HARP with this format between hosts.",
)
@click.option(
    "--mbit",
    "mbit_per_s",
    type=click.IntRange(1, 100_000),
    help="Shape what each host receives to this many Mbit/s.",
)
@click.option("--busy", is_flag=True, help="Run another process on each processor meanwhile.")
@click.option(
    "--topk",
    type=FiniteRange(0, 1, min_open=True),
    help="Instead, compare DDP's exchange of all gradients and of this ratio, the largest.",
)
@plot_option
@lab_options
@output_option
def torch(
    flat: bool,
    wire: str | None,
    topk: float | None,
    plot: Path | None,
    output: str,
    **arguments: Any,
) -> None:
    """Compare torch.distributed over HARP and over Gloo.

    Both run in the same processes, alternated. Times are medians of the rounds; "speed" is Gloo's
    time over HARP's, "of NAME" HARP's time over NAME's. Exit code 1 if a result is wrong.

    \b
    harpctl bench torch
    harpctl bench torch --ranks 4 --path auto --path kernel
    harpctl bench torch --ranks 4 --min-bytes 1048576 --flat --mbit 1000
    harpctl bench torch --ranks 8 --operation reduce_scatter --flat --mbit 1000
    harpctl bench torch --min-bytes 1048576 --wire float16 --mbit 1000
    harpctl bench torch --busy --max-bytes 8388608
    harpctl bench torch --topk 0.01 --mbit 1000
    harpctl bench torch --max-bytes 268435456 --plot torch.png
    """
    shape = lab_shape(arguments, arguments.pop("hosts"))
    variants = (*(["flat"] if flat else []), *([wire] if wire else []))
    options = TorchOptions(variants=variants, **arguments)
    runner.check_plot(plot)
    if topk is not None:
        report = run_topk(shape, options, topk, console.say)
        show(report, output, _print_topk)
        return
    report = run_torch(shape, options, console.say)
    if plot is not None:
        write_plot(report, plot)
    show(report, output, _print, is_good=report["right"])


def _print(report: dict[str, Any]) -> None:
    console.print_line(
        f"{report['operation']} of float32, {report['ranks']} ranks on {report['hosts']} hosts,"
        f" {report['lab']} (us, medians of {report['rounds']} rounds)"
    )
    columns = ["bytes", "Gloo"]
    for path in report["results"][0]["paths"]:
        columns += [f"harp, {path}", "speed"]
        for name in report["variants"]:
            columns += [name, f"of {name}"]
    rows = []
    for row in report["results"]:
        cells = [size_text(row["size_bytes"]), f"{row['gloo_us']:,.0f}"]
        for cell in row["paths"].values():
            wrong = "" if cell["right"] else " WRONG"
            cells += [f"{cell['harp_us']:,.1f}{wrong}", f"{cell['speed']:.1f}"]
            for name in report["variants"]:
                cells += [f"{cell[f'{name}_us']:,.0f}", f"{cell[f'of_{name}']:.2f}"]
        rows.append([*cells, f"{row['goal']:g}"])
    console.print_table([*columns, "goal"], rows)


def _print_topk(report: dict[str, Any]) -> None:
    console.print_line(
        f"gradients, {report['ranks']} ranks on {report['hosts']} hosts, {report['lab']}"
        f" (medians of {report['rounds']} rounds)"
    )
    rows = [
        [
            path,
            f"{cell['full_ms']:.1f}",
            f"{cell['topk_ms']:.1f}",
            f"{cell['select_ms']:.1f}",
            f"{cell['faster']:.2f}",
            f"{cell['loss']['full']:.4f}",
            f"{cell['loss']['topk']:.4f}",
        ]
        for path, cell in report["paths"].items()
    ]
    head = ["path", "all, ms", "top-k, ms", "of it selection", "faster", "loss", "loss, top-k"]
    console.print_table(head, rows)
