# SPDX-License-Identifier: Apache-2.0
"""One rank of `harpctl bench torch`: all-reduce over Gloo and over HARP in one process, alternated.

Rank 0 prints a JSON line for each size. Further groups: "flat" runs HARP's ring over all ranks
where the second group runs 2D, and a wire format's name rounds what hosts send.
"""

import argparse
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from harp.torch import Options, stats

_BYTES_A_ROUND = 32 << 20
_RUNS_MIN, _RUNS_MAX = 2, 150


def runs_of(size: int) -> int:
    """Operations of one round."""
    return min(max(_RUNS_MIN, _BYTES_A_ROUND // size), _RUNS_MAX)


def time_us(group: dist.ProcessGroup, data: torch.Tensor, runs: int) -> float:
    """Mean time of an operation."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(runs):
        dist.all_reduce(data, group=group)
    return (time.perf_counter() - start) / runs * 1e6


def is_right(group: dist.ProcessGroup, size: int) -> bool:
    """Do all ranks have the sum?"""
    world = dist.get_world_size(group)
    data = torch.arange(max(1, size // 4), dtype=torch.float32).remainder_(7)
    wanted = data * (world * (world + 1) / 2)
    data *= dist.get_rank(group) + 1
    dist.all_reduce(data, group=group)
    return bool(torch.equal(data, wanted))


def ratio(times: list[float], others: list[float]) -> float:
    """Median over the rounds: each is compared with itself, as the machine's pace changes."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def measure(groups: dict[str, dist.ProcessGroup], size: int, rounds: int) -> dict[str, Any]:
    """Times of one size by backend, one for each round."""
    runs = runs_of(size)
    right = True
    for group in groups.values():  # both, on all ranks
        right = is_right(group, size) and right
    data = torch.zeros(max(1, size // 4))
    times: dict[str, list[float]] = {name: [] for name in groups}
    before = {name: stats(group) for name, group in groups.items() if name != "gloo"}
    for group in groups.values():
        time_us(group, data, max(1, runs // 5))
    for index in range(rounds):
        for name in list(groups)[:: 1 if index % 2 else -1]:
            times[name].append(time_us(groups[name], data, runs))
    operations = max(1, runs // 5) + rounds * runs
    sent = {
        name: (stats(groups[name])["net_sent_bytes"] - count["net_sent_bytes"]) / operations
        for name, count in before.items()
    }
    row: dict[str, Any] = {
        "size_bytes": size,
        "runs": runs,
        "times_us": times,
        "harp_us": statistics.median(times["harp"]),
        "gloo_us": statistics.median(times["gloo"]),
        "speed": ratio(times["gloo"], times["harp"]),
        "net_sent_bytes": sent["harp"],
        "right": right,
    }
    for name in groups.keys() - {"gloo", "harp"}:
        row[f"{name}_us"] = statistics.median(times[name])
        row[f"{name}_net_sent_bytes"] = sent[name]
        row[f"of_{name}"] = ratio(times["harp"], times[name])
    return row


def main() -> None:
    """Entry point of python -m harp.bench.torch_rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("sizes", type=int, nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{given.root}", rank=given.rank, world_size=given.ranks
    )
    groups = {"gloo": dist.new_group(backend="gloo"), "harp": dist.new_group(backend="harp")}
    for name in given.variant:
        wire = None if name == "flat" else name
        if name == "flat":
            os.environ["HARP_COLL_ALGO"] = "ring"
        groups[name] = dist.new_group(backend="harp", pg_options=Options(wire=wire))
        os.environ.pop("HARP_COLL_ALGO", None)
    for size in given.sizes:
        row = measure(groups, size, given.rounds)
        rows: list[Any] = [None] * given.ranks
        dist.all_gather_object(rows, row)
        if given.rank == 0:
            row["right"] = all(other["right"] for other in rows)
            for key in row:
                if key.endswith("net_sent_bytes"):
                    row[key] = sum(other[key] for other in rows)
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
