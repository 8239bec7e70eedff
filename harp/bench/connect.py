# SPDX-License-Identifier: Apache-2.0
"""Measures how fast NCCL's connections open, alternated between HARP's paths and kernel sockets.

Two ranks connect as NCCL does: each listens on all channels and sends the handles over the
bootstrap. One thread of a rank calls connect and accept of every channel in turn until each has its
comms. The time is rank 0's, from its first connect to its last comm. Each measurement is a new pair
of processes.
"""

import statistics
from dataclasses import asdict
from typing import Any

import click

from harp import output as console
from harp.bench.nccl import TRANSPORTS, bench_options
from harp.bench.runner import Say, alternate, path, run_bench, transport_words
from harp.cli.lab_options import lab_options, lab_shape, rounds_option
from harp.cli.options import output_option, show
from harp.errors import HarpError
from harp.lab import Lab, LabOptions

_SIZES = "8:1:1"  # one message shows that the connections work


def run_connect(
    shape: LabOptions, channel_counts: tuple[int, ...], rounds: int, say: Say
) -> dict[str, Any]:
    """Measure a cell for each number of channels; paths: the log line of each transport."""
    # tools/driver's plugin of NCCL's sockets supports IPv4 only.
    transports = TRANSPORTS[:-1] if shape.ipv6 else TRANSPORTS
    times: dict[tuple[int, str], list[float]] = {
        (channels, name): [] for channels in channel_counts for name in transports
    }
    paths: dict[str, str] = {}
    with Lab(shape) as lab:
        for name in alternate(transports, rounds, say):
            for channels in channel_counts:
                report = run_bench(lab, bench_options("lat", name, _SIZES, channels))
                if not report["ok"]:
                    raise HarpError(f"{name}, {channels} channels: {report['error']}")
                times[channels, name].append(report["connect_us"])
                paths[name] = path(report)
    cells = [
        {
            "channels": channels,
            "transports": {name: _summary(channels, times[channels, name]) for name in transports},
        }
        for channels in channel_counts
    ]
    return {"lab": asdict(shape), "rounds": rounds, "cells": cells, "paths": paths}


def _summary(channels: int, times_us: list[float]) -> dict[str, Any]:
    median = statistics.median(times_us)
    return {
        "rounds_us": times_us,
        "median_us": median,
        "min_us": min(times_us),
        "max_us": max(times_us),
        # A channel has a connection in each direction.
        "connections_per_s": 2 * channels / median * 1e6,
    }


@click.command()
@click.option(
    "--channels",
    type=click.IntRange(1, 32),
    multiple=True,
    default=(1, 16),
    help="Connections per direction at once; may be repeated.",
)
@rounds_option(7)
@lab_options
@output_option
def connect(channels: tuple[int, ...], rounds: int, output: str, **lab: Any) -> None:
    """Measure listen, connect and accept as NCCL calls them, until all connections are open.

    HARP_PATH=auto, xdp and kernel and NCCL's socket transport alternate, each time in new
    processes. Times are us from the first connect to the last comm of a rank: the median of the
    rounds and their range.

    \b
    harpctl bench connect
    harpctl bench connect --channels 32 --rounds 3 -o json
    """
    show(run_connect(lab_shape(lab), channels, rounds, console.say), output, _print)


def _print(report: dict[str, Any]) -> None:
    columns = ("channels", "transport", "us", "range", "connections/s")
    rows = []
    for cell in report["cells"]:
        for name, times in cell["transports"].items():
            rows.append(
                (
                    cell["channels"],
                    transport_words(name),
                    f"{times['median_us']:.0f}",
                    f"{times['min_us']:.0f} to {times['max_us']:.0f}",
                    f"{times['connections_per_s']:.0f}",
                )
            )
    console.print_table(columns, rows)
    for name, line in report["paths"].items():
        if line:
            console.print_line(f"{name}: {line}")
