# SPDX-License-Identifier: Apache-2.0
"""harpctl bench nccl-real: NVIDIA's NCCL over HARP and over its own sockets, without a GPU."""

from typing import Any

import click

from harp import output as console
from harp.bench import nccl_real as runner
from harp.cli.lab_options import lab_options, lab_shape, paths_option, rounds_option
from harp.cli.options import output_option
from harp.cli.result import show
from harp.errors import Exit, HarpError
from harp.nccl import wheels
from harp.nccl.ranks import SOCKETS


@click.command("nccl-real")
@click.option(
    "--nccl",
    "version",
    metavar="VERSION",
    help="Version of NCCL.  [default: the newest in the cache]",
)
@click.option("--download", is_flag=True, help="Fetch NCCL with pip (about 300 MB) if needed.")
@click.option(
    "--operation",
    "operations",
    type=click.Choice(runner.OPERATIONS),
    multiple=True,
    help="Collective operation; may be repeated.  [default: all]",
)
@paths_option
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(4, 1 << 30),
    multiple=True,
    help="Bytes; may be repeated.",
)
@click.option(
    "--ranks", type=click.IntRange(2, 4), default=2, show_default=True, help="One on each host."
)
@rounds_option(3)
@click.option(
    "--protocol",
    type=click.Choice(["Simple", "LL"]),
    default="Simple",
    show_default=True,
    help="NCCL_PROTO.",
)
@lab_options
@output_option
def nccl_real(
    version: str | None,
    download: bool,
    operations: tuple[str, ...],
    paths: tuple[str, ...],
    sizes: tuple[int, ...],
    ranks: int,
    rounds: int,
    protocol: str,
    output: str,
    **lab: Any,
) -> None:
    """Run NVIDIA's NCCL over HARP and over NCCL's own sockets, without a GPU.

    The library is NVIDIA's own, from its wheel; the CPU plays the GPU. Columns are those of
    nccl-tests, medians of the rounds; "speed" is relative to NCCL's sockets.

    \b
    harpctl bench nccl-real --download
    harpctl bench nccl-real --path xdp --path kernel --operation allreduce
    harpctl bench nccl-real --ranks 4 --nccl 2.27.7 -o json
    """
    cached = wheels.cached()
    if download:
        version = wheels.fetch(version)
    elif version is None and cached:
        version = cached[-1]
    elif version is None:
        raise HarpError(
            f"no NCCL in {wheels.cache_dir()}: --download fetches it, about 300 MB", Exit.MISSING
        )
    wheels.library(version)
    options = runner.RealOptions(
        version,
        operations=operations or runner.OPERATIONS,
        paths=paths,
        sizes=sizes or runner.SIZES_BYTES,
        rounds=rounds,
        protocol=protocol,
    )
    if output != "json":
        console.out.print(runner.NOTE, markup=False)
    report = runner.run_real(lab_shape(lab, ranks), options, console.err.print)
    show(report, output, _print, is_good=report["ok"])


def _print(report: dict[str, Any]) -> None:
    console.out.print(
        f"NCCL {report['nccl']}, {report['ranks']} ranks, {report['lab']},"
        f" {report['rounds']} rounds",
        markup=False,
    )
    columns = ("operation", "size B", "over", "time us", "algbw GB/s", "busbw GB/s", "#wrong")
    rows = []
    for row in report["results"]:
        for name, cell in row["transports"].items():
            speed = f"{cell['speed_to_sockets']:.2f}" if "speed_to_sockets" in cell else ""
            over = "NCCL's sockets" if name == SOCKETS else f"HARP {name}"
            times = [f"{cell['time_us']:.1f}"]
            times += [f"{cell[key]:.3f}" for key in ("algbw_gb_per_s", "busbw_gb_per_s")]
            size = str(row["size_bytes"])
            rows.append([row["operation"], size, over, *times, str(cell["wrong"]), speed])
    console.print_table((*columns, "speed"), rows)
    for name, path in report["paths"].items():
        if path:
            console.out.print(f"{name}: {path}", markup=False)
