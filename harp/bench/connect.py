# SPDX-License-Identifier: Apache-2.0
"""How long NCCL's connections take to set up, alternated between HARP's paths and kernel sockets.

Two ranks connect as NCCL does: each listens on all channels, the handles travel over the bootstrap,
and one thread calls connect and accept of every channel in turn until each has its comms. The time
is rank 0's, from its first connect to its last comm. Each measurement is a new pair of processes.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from harp.bench.nccl import TRANSPORTS, bench_options
from harp.bench.runner import alternate, path, run_bench
from harp.errors import HarpError
from harp.lab import Lab, LabOptions

_SIZES = "8:1:1"  # one message shows that the connections work

Say = Callable[[str], None]


@dataclass(frozen=True)
class ConnectOptions:
    """What to measure: connections per direction at once, and rounds."""

    lab: LabOptions
    channels: tuple[int, ...] = (1, 16)
    rounds: int = 7


def run_connect(options: ConnectOptions, say: Say) -> dict[str, Any]:
    """Measure all cells; a round begins with another transport than the one before.

    Returns
    -------
    dict
        ``cells``, one for each number of channels: by transport the times of the rounds in
        microseconds, their median, minimum and maximum, and connections per second at the median.
        ``paths``: the path that each transport reported.
    """
    # The driver's reference plugin of NCCL's sockets speaks IPv4.
    transports = TRANSPORTS[:-1] if options.lab.ipv6 else TRANSPORTS
    times: dict[tuple[int, str], list[float]] = {
        (channels, name): [] for channels in options.channels for name in transports
    }
    paths: dict[str, str] = {}
    with Lab(options.lab) as lab:
        for name in alternate(transports, options.rounds, say):
            for channels in options.channels:
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
        for channels in options.channels
    ]
    return {"lab": asdict(options.lab), "rounds": options.rounds, "cells": cells, "paths": paths}


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
