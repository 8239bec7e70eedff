# SPDX-License-Identifier: Apache-2.0
"""harpctl bench torch: torch.distributed over HARP and over Gloo."""

from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import torch_bench as runner
from harp.cli.lab_options import lab_options, lab_shape
from harp.cli.options import output_option
from harp.cli.result import show


@click.command("torch")
@click.option("--ranks", type=click.IntRange(2, 16), default=2, show_default=True)
@click.option("--hosts", type=click.IntRange(2, 4), default=2, show_default=True)
@click.option(
    "--path",
    "paths",
    type=click.Choice(["auto", "xdp", "kernel"]),
    multiple=True,
    help="HARP_PATH; may be repeated.  [default: auto]",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option(
    "--max-bytes",
    type=click.IntRange(4, 256 << 20),
    default=64 << 20,
    show_default=True,
    help="Largest size; up to 256 MiB.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot of the times (.png or .svg); needs matplotlib.",
)
@lab_options
@output_option
def torch(
    ranks: int,
    hosts: int,
    paths: tuple[str, ...],
    rounds: int,
    max_bytes: int,
    plot: Path | None,
    output: str,
    **lab: Any,
) -> None:
    """Compare torch.distributed's all_reduce over HARP and over Gloo.

    Both run in the same processes, alternated; times are medians of the rounds, "speed" is Gloo's
    time over HARP's. Exit code 1 when a sum is wrong.

    \b
    harpctl bench torch
    harpctl bench torch --ranks 4 --path auto --path kernel
    harpctl bench torch --max-bytes 268435456 --plot torch.png
    """
    options = runner.TorchOptions(ranks, paths or ("auto",), rounds, max_bytes)
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
    rows = []
    for row in report["results"]:
        cells = [runner.size_text(row["size_bytes"]), f"{row['gloo_us']:,.0f}"]
        for cell in row["paths"].values():
            wrong = "" if cell["right"] else " WRONG"
            cells += [f"{cell['harp_us']:,.1f}{wrong}", f"{cell['speed']:.1f}"]
        rows.append([*cells, f"{row['goal']:g}"])
    console.print_table([*columns, "goal"], rows)
