# SPDX-License-Identifier: Apache-2.0
"""harpctl bench nccl-real: NVIDIA's NCCL over HARP and over its own sockets, alternated.

The CPU emulates the GPU (tools/nccl/README.md) on the same processors that the transports use.
Times therefore compare transports under equal load and do not predict those of a GPU.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import click

from harp import output as console
from harp.bench.runner import MIB, Say, alternate
from harp.cli.lab_options import lab_options, lab_shape, paths_option, rounds_option
from harp.cli.options import output_option, show
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions
from harp.nccl import wheels
from harp.nccl.ranks import HARP, SOCKETS, Ranks, environment
from harp.plugin_log import path_in_use

OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall")
NOTE = "The CPU emulates the GPU: times compare transports on this machine only."
SIZES_BYTES = (1024, 16 << 10, 256 << 10, 4 * MIB)
_BYTES_A_RUN = 32 * MIB
_TIMES_MIN, _TIMES_MAX = 4, 100


@dataclass(frozen=True)
class RealOptions:
    version: str
    operations: tuple[str, ...] = OPERATIONS
    paths: tuple[str, ...] = ("auto",)
    sizes: tuple[int, ...] = SIZES_BYTES
    rounds: int = 3


def bus_factor(operation: str, ranks: int) -> float:
    """Return nccl-tests' factor for bus bandwidth: bytes on the bus per byte of the operation."""
    share = (ranks - 1) / ranks
    return 2 * share if operation == "allreduce" else share


def _environment(host: Host, transport: str) -> dict[str, str]:
    more = {"NCCL_PROTO": "Simple"}
    if transport == SOCKETS:
        return environment(host, SOCKETS, more)
    return environment(host, HARP, more | {"HARP_PATH": transport})


def run_once(lab: Lab, options: RealOptions, transport: str) -> tuple[dict[Any, Any], str]:
    """Run one transport; return time and wrong bytes by operation and size, and the logged path."""
    cells = {}
    environments = [_environment(host, transport) for host in lab.hosts]
    with Ranks(lab.hosts, options.version, environments, pinned=True) as ranks:
        ranks.init()
        for operation in options.operations:
            for size in options.sizes:
                wrong = ranks.run(operation, size)
                count = min(max(_TIMES_MIN, _BYTES_A_RUN // size), _TIMES_MAX)
                answers = ranks.ask(f"time 0 {operation} {size} {count}")
                cells[operation, size] = {
                    "time_us": max(answer["us"] for answer in answers),
                    "bytes": answers[0]["bytes"],
                    "wrong": wrong,
                }
        ranks.ask("destroy 0")
        return cells, path_in_use(ranks[0].log)


def _row(options: RealOptions, ranks: int, key: tuple[str, int], runs: dict[str, Any]) -> Any:
    operation, _ = key
    row: dict[str, Any] = {"operation": operation, "transports": {}}
    for transport, rounds in runs.items():
        cells = [run[key] for run in rounds]
        time_us = statistics.median(cell["time_us"] for cell in cells)
        row["size_bytes"] = cells[0]["bytes"]
        algbw = row["size_bytes"] / time_us / 1e3
        row["transports"][transport] = {
            "time_us": time_us,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": algbw * bus_factor(operation, ranks),
            "wrong": sum(cell["wrong"] for cell in cells),
        }
    for path in options.paths:
        # Ratios are computed within a round, because the machine's speed changes.
        pairs = zip(runs[path], runs[SOCKETS], strict=True)
        ratios = [theirs[key]["time_us"] / ours[key]["time_us"] for ours, theirs in pairs]
        row["transports"][path]["speed_to_sockets"] = statistics.median(ratios)
    return row


def run_real(shape: LabOptions, options: RealOptions, say: Say) -> dict[str, Any]:
    """Return the bench's report; ok: no byte is wrong."""
    transports = (*options.paths, SOCKETS)
    runs: dict[str, list[Any]] = {name: [] for name in transports}
    paths: dict[str, str] = {}
    with Lab(shape) as lab:
        for name in alternate(transports, options.rounds, say):
            cells, paths[name] = run_once(lab, options, name)
            runs[name].append(cells)
    rows = [
        _row(options, shape.hosts, (operation, size), runs)
        for operation in options.operations
        for size in options.sizes
    ]
    wrong = sum(cell["wrong"] for row in rows for cell in row["transports"].values())
    return {
        "note": NOTE,
        "nccl": options.version,
        "ranks": shape.hosts,
        "lab": shape.words,
        "rounds": options.rounds,
        "paths": paths,
        "results": rows,
        "ok": wrong == 0,
    }


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
    type=click.Choice(OPERATIONS),
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
@click.option("--ranks", type=click.IntRange(2, 4), default=2, help="Ranks, one on each host.")
@rounds_option(3)
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
    output: str,
    **lab: Any,
) -> None:
    """Run NVIDIA's NCCL over HARP and over NCCL's own sockets, without a GPU.

    The library is NVIDIA's own, from its wheel; the CPU emulates the GPU. Columns are those of
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
    options = RealOptions(version, operations or OPERATIONS, paths, sizes or SIZES_BYTES, rounds)
    if output != "json":
        console.print_line(NOTE)
    report = run_real(lab_shape(lab, ranks), options, console.say)
    show(report, output, _print, is_good=report["ok"])


def _print(report: dict[str, Any]) -> None:
    console.print_line(
        f"NCCL {report['nccl']}, {report['ranks']} ranks, {report['lab']},"
        f" {report['rounds']} rounds"
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
            console.print_line(f"{name}: {path}")
