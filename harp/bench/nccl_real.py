# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL over HARP and over its own sockets, alternated: harpctl bench nccl-real.

The CPU emulates the GPU (tools/nccl/README.md) on the same processors that the transports use.
Times therefore compare transports under equal load and do not predict those of a GPU.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harp.bench.runner import alternate
from harp.lab import Host, Lab, LabOptions, cpus
from harp.nccl.ranks import HARP, SOCKETS, Ranks, environment
from harp.plugin_log import path_in_use

OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall")
NOTE = "The CPU plays the GPU: times compare transports on this machine only."
MIB = 1 << 20
SIZES_BYTES = (1024, 16 << 10, 256 << 10, 4 * MIB)
_BYTES_A_RUN = 32 * MIB
_TIMES_MIN, _TIMES_MAX = 4, 100
Say = Callable[[str], None]


@dataclass(frozen=True)
class RealOptions:
    """Options of the bench."""

    version: str
    operations: tuple[str, ...] = OPERATIONS
    paths: tuple[str, ...] = ("auto",)
    sizes: tuple[int, ...] = SIZES_BYTES
    rounds: int = 3
    protocol: str = "Simple"


def bus_factor(operation: str, ranks: int) -> float:
    """Return nccl-tests' factor for bus bandwidth: bytes on the bus per byte of the operation."""
    share = (ranks - 1) / ranks
    return 2 * share if operation == "allreduce" else share


def times_of(size_bytes: int) -> int:
    """Return the number of repetitions of an operation."""
    return min(max(_TIMES_MIN, _BYTES_A_RUN // max(size_bytes, 1)), _TIMES_MAX)


def _environments(lab: Lab, transport: str, protocol: str) -> list[dict[str, str]]:
    def of(host: Host) -> dict[str, str]:
        more = {"NCCL_PROTO": protocol}
        if transport == SOCKETS:
            return environment(host, SOCKETS, more)
        return environment(host, HARP, more | {"HARP_PATH": transport})

    return [of(host) for host in lab.hosts]


def run_once(lab: Lab, options: RealOptions, transport: str) -> tuple[dict[Any, Any], str]:
    """Run one transport: time and wrong bytes by operation and size, and the path that it logs."""
    found = {}
    usable = cpus()
    processors = [usable[host.index % len(usable)] for host in lab.hosts]
    environments = _environments(lab, transport, options.protocol)
    with Ranks(lab.hosts, options.version, environments, processors=processors) as ranks:
        ranks.init()
        for operation in options.operations:
            for size in options.sizes:
                wrong = ranks.run(operation, size)
                answers = ranks.ask(f"time 0 {operation} {size} {times_of(size)}")
                found[operation, size] = {
                    "time_us": max(answer["us"] for answer in answers),
                    "bytes": answers[0]["bytes"],
                    "wrong": wrong,
                }
        ranks.ask("destroy 0")
        return found, path_in_use(ranks[0].log)


def _row(options: RealOptions, ranks: int, key: tuple[str, int], runs: dict[str, Any]) -> Any:
    operation, _ = key
    row: dict[str, Any] = {"operation": operation, "transports": {}}
    for transport, rounds in runs.items():
        cells = [found[key] for found in rounds]
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
    """Return the report of the whole bench; ok: no byte is wrong."""
    transports = (*options.paths, SOCKETS)
    runs: dict[str, list[Any]] = {name: [] for name in transports}
    paths: dict[str, str] = {}
    with Lab(shape) as lab:
        for name in alternate(transports, options.rounds, say):
            found, paths[name] = run_once(lab, options, name)
            runs[name].append(found)
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
