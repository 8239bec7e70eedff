# SPDX-License-Identifier: Apache-2.0
"""Kernel lanes by their number, beside the shapes of NCCL's socket transport.

HARP_PATH=kernel is a complete plugin: by itself it shall be no worse than what NCCL has built in.
The ways take turns as those of harp.paths do, and it judges as that does: ratios with intervals.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harp import paths
from harp.lab import Lab, LabOptions
from harp.paths import KIB, MIB, Say, Way

SIZES = (8, 4 * KIB, 64 * KIB, MIB)
_2X8 = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8"}
LANES = (
    Way("kernel1", "1 lane", paths.KERNEL),
    Way("kernel2", "2 lanes", paths.KERNEL, environment={"HARP_KERNEL_LANES": "2"}),
    Way("kernel16", "16 lanes", paths.KERNEL, environment={"HARP_KERNEL_LANES": "16"}),
    Way("kernel2x8", "2x8 lanes", paths.KERNEL, environment=_2X8),
)
# The shape that each is compared with.
RIVALS = {
    "kernel1": "sockets",
    "kernel2": "sockets",
    "kernel16": "sockets2x8",
    "kernel2x8": "sockets2x8",
}


@dataclass(frozen=True)
class LanesOptions:
    """What the bench does."""

    lab: LabOptions = field(default_factory=LabOptions)
    sizes: tuple[int, ...] = SIZES
    rounds: int = 5
    plugin: str | None = None  # HARP's, where another build is to be measured


def judge(costs: paths.Costs, _: paths.Chose = ()) -> dict[str, Any]:
    """One size: each number of lanes to its sockets; surely worse than by noise is missed."""
    ratios = {way: paths.interval(costs[way], costs[RIVALS[way]]) for way in RIVALS}
    return {
        "median": {way: float(np.median(values)) for way, values in costs.items()},
        "ratio": ratios,
        "missed": [
            f"{way}: {found['ratio']:.2f} times the time of {RIVALS[way]}"
            for way, found in ratios.items()
            if found["low"] > paths.DIFFER
        ],
    }


def run_lanes(options: LanesOptions, say: Say) -> dict[str, Any]:
    """The table as a document."""
    ways = [*LANES, *(way for way in paths.WAYS if way.sockets)]
    with Lab(options.lab) as lab:
        turns = paths.take_turns(
            lambda way, mode: paths.run_way(lab, options.sizes, way, mode, options.plugin),
            ways,
            options.rounds,
            say,
            lambda: paths.pace_of(lab),
        )
    results = paths.collect(turns.runs, ways, options.sizes, judge)
    goals = {"differ_above": paths.DIFFER}
    return {
        **paths.document(options.lab, turns, ways, goals, results),
        "rivals": RIVALS,
    }
