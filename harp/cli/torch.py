# SPDX-License-Identifier: Apache-2.0
"""harpctl bench torch: torch.distributed over HARP and over Gloo."""

from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import plot as plots
from harp.bench import torch_bench as runner
from harp.cli.lab_options import (
    hosts_option,
    lab_options,
    lab_shape,
    paths_option,
    plot_option,
    rounds_option,
)
from harp.cli.options import FiniteRange, output_option
from harp.cli.result import show


@click.command("torch")
@click.option(
    "--ranks", type=click.IntRange(2, 16), default=2, show_default=True, help="Of all hosts."
)
@hosts_option
@paths_option
@rounds_option(5)
@click.option(
    "--min-bytes", type=click.IntRange(4, 256 << 20), default=4, show_default=True, help="Smallest."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(4, 256 << 20),
    default=64 << 20,
    show_default=True,
    help="Largest size; up to 256 MiB.",
)
@click.option(
    "--flat",
    is_flag=True,
    help="Also HARP's ring over all ranks, where hosts have several (HARP_COLL_ALGO=ring).",
)
@click.option(
    "--wire",
    type=click.Choice(["float16", "bfloat16"]),
    help="Also HARP with this format between hosts.",
)
@click.option(
    "--mbit",
    type=click.IntRange(1, 100_000),
    help="Shape what each host receives to this many Mbit/s.",
)
@click.option(
    "--topk",
    type=FiniteRange(0, 1, min_open=True),
    help="Instead, DDP's gradients over HARP: all of them against this ratio of the largest.",
)
@plot_option
@lab_options
@output_option
def torch(
    ranks: int,
    hosts: int,
    paths: tuple[str, ...],
    rounds: int,
    min_bytes: int,
    max_bytes: int,
    flat: bool,
    wire: str | None,
    mbit: int | None,
    topk: float | None,
    plot: Path | None,
    output: str,
    **lab: Any,
) -> None:
    """Compare torch.distributed's all_reduce over HARP and over Gloo.

    Both run in the same processes, alternated; times are medians of the rounds, "speed" is Gloo's
    time over HARP's, "of NAME" HARP's time over NAME's. Exit code 1 when a sum is wrong.

    \b
    harpctl bench torch
    harpctl bench torch --ranks 4 --path auto --path kernel
    harpctl bench torch --ranks 4 --min-bytes 1048576 --flat --mbit 1000
    harpctl bench torch --min-bytes 1048576 --wire float16 --mbit 1000
    harpctl bench torch --topk 0.01 --mbit 1000
    harpctl bench torch --max-bytes 268435456 --plot torch.png
    """
    variants = (*(["flat"] if flat else []), *([wire] if wire else []))
    options = runner.TorchOptions(ranks, paths, rounds, min_bytes, max_bytes, variants, mbit)
    plots.check(plot)
    if topk is not None:
        report = runner.run_topk(lab_shape(lab, hosts), options, topk, console.err.print)
        show(report, output, _print_topk, is_good=True)
        return
    report = runner.run_torch(lab_shape(lab, hosts), options, console.err.print)
    if plot is not None:
        runner.write_plot([report], plot)
    show(report, output, _print, is_good=report["right"])


def _print(report: dict[str, Any]) -> None:
    console.out.print(
        f"all_reduce of float32, {report['ranks']} ranks on {report['hosts']} hosts,"
        f" {report['lab']} (us, medians of {report['rounds']} rounds)",
        markup=False,
        soft_wrap=True,
    )
    columns = ["bytes", "Gloo"]
    for path in report["results"][0]["paths"]:
        columns += [f"harp, {path}", "speed"]
        for name in report["variants"]:
            columns += [name, f"of {name}"]
    rows = []
    for row in report["results"]:
        cells = [runner.size_text(row["size_bytes"]), f"{row['gloo_us']:,.0f}"]
        for cell in row["paths"].values():
            wrong = "" if cell["right"] else " WRONG"
            cells += [f"{cell['harp_us']:,.1f}{wrong}", f"{cell['speed']:.1f}"]
            for name in report["variants"]:
                cells += [f"{cell[f'{name}_us']:,.0f}", f"{cell[f'of_{name}']:.2f}"]
        rows.append([*cells, f"{row['goal']:g}"])
    console.print_table([*columns, "goal"], rows)


def _print_topk(report: dict[str, Any]) -> None:
    console.out.print(
        f"gradients, {report['ranks']} ranks on {report['hosts']} hosts, {report['lab']}"
        f" (medians of {report['rounds']} rounds)",
        markup=False,
        soft_wrap=True,
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
