# SPDX-License-Identifier: Apache-2.0
"""One rank of `harpctl bench torch`: all-reduce over Gloo and over HARP in one process, alternated.

Rank 0 prints a JSON line for each size.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from harp.torch import stats

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


def measure(groups: dict[str, dist.ProcessGroup], size: int, rounds: int) -> dict[str, Any]:
    """Times of one size by backend, one for each round."""
    runs = runs_of(size)
    right = True
    for group in groups.values():  # both, on all ranks
        right = is_right(group, size) and right
    data = torch.zeros(max(1, size // 4))
    times: dict[str, list[float]] = {name: [] for name in groups}
    before = stats(groups["harp"])
    for group in groups.values():
        time_us(group, data, max(1, runs // 5))
    for index in range(rounds):
        for name in list(groups)[:: 1 if index % 2 else -1]:
            times[name].append(time_us(groups[name], data, runs))
    after = stats(groups["harp"])
    operations = max(1, runs // 5) + rounds * runs
    return {
        "size_bytes": size,
        "runs": runs,
        "times_us": times,
        "harp_us": statistics.median(times["harp"]),
        "gloo_us": statistics.median(times["gloo"]),
        # Rounds are compared with themselves: the machine's pace changes.
        "speed": statistics.median(
            gloo / harp for gloo, harp in zip(times["gloo"], times["harp"], strict=True)
        ),
        "net_sent_bytes": (after["net_sent_bytes"] - before["net_sent_bytes"]) / operations,
        "right": right,
    }


def main() -> None:
    """Entry point of python -m harp.bench.torch_rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("sizes", type=int, nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{given.root}", rank=given.rank, world_size=given.ranks
    )
    groups = {"gloo": dist.new_group(backend="gloo"), "harp": dist.new_group(backend="harp")}
    for size in given.sizes:
        row = measure(groups, size, given.rounds)
        rights: list[Any] = [None] * given.ranks
        dist.all_gather_object(rights, row["right"])
        if given.rank == 0:
            print(json.dumps(row | {"right": all(rights)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
