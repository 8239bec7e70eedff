# SPDX-License-Identifier: Apache-2.0
"""One rank of `harpctl bench torch`. Rank 0 prints JSON lines.

Without --topk, an operation alternates between Gloo and HARP in one process. Each line is for a
size, the sum over the blocks of all ranks. Variants: "flat" runs HARP's ring over all ranks, and a
wire format rounds the values that hosts send. With --topk, a bucket is exchanged and a model is
trained over HARP, with all gradients and with the largest.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from harp.demo import ddp
from harp.torch import Options, hooks, stats

_BYTES_A_ROUND = 32 << 20
_RUNS_MIN, _RUNS_MAX = 2, 150
_BUCKET_ELEMENTS = (25 << 20) // 4  # DDP's default
_BUCKET_RUNS = 3
_STEPS, _WARMUP_STEPS = 150, 40


def time_us(group: dist.ProcessGroup | None, work: Callable[[], object], runs: int) -> float:
    """Return the mean time of an operation."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(runs):
        work()
    return (time.perf_counter() - start) / runs * 1e6


def ratio(times: list[float], others: list[float]) -> float:
    """Return the median of the rounds' ratios: the machine's speed changes between rounds."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def prepare(
    operation: str, group: dist.ProcessGroup, size: int
) -> tuple[Callable[[], object], Callable[[], bool]]:
    """Return an operation, and a check of the result of its first run."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    count = max(1, size // 4 // (1 if operation == "all_reduce" else world))
    block = torch.arange(count, dtype=torch.float32).remainder_(7)
    mine = block * (rank + 1)

    def of_all(offset: int) -> torch.Tensor:
        """Return the blocks of all ranks in order, plus an offset."""
        return torch.cat([block * (r + 1) + offset for r in range(world)])

    if operation == "all_reduce":
        return (
            lambda: dist.all_reduce(mine, group=group),
            lambda: torch.equal(mine, block * (world * (world + 1) / 2)),
        )
    if operation == "all_gather":
        out = torch.empty(world * count)
        return (
            lambda: dist.all_gather_into_tensor(out, mine, group=group),
            lambda: torch.equal(out, of_all(0)),
        )
    blocks = torch.cat([mine + r for r in range(world)])
    if operation == "reduce_scatter":
        own = torch.empty_like(block)
        return (
            lambda: dist.reduce_scatter_tensor(own, blocks, group=group),
            lambda: torch.equal(own, block * (world * (world + 1) / 2) + world * rank),
        )
    received = torch.empty_like(blocks)
    return (
        lambda: dist.all_to_all_single(received, blocks, group=group),
        lambda: torch.equal(received, of_all(rank)),
    )


def measure(
    operation: str, groups: dict[str, dist.ProcessGroup], size: int, rounds: int
) -> dict[str, Any]:
    """Measure one size with each backend; return a row."""
    runs = min(max(_RUNS_MIN, _BYTES_A_ROUND // size), _RUNS_MAX)
    right, works = True, {}
    for name, group in groups.items():  # both, on all ranks
        works[name], is_right = prepare(operation, group, size)
        works[name]()
        right = is_right() and right
    if operation == "all_reduce":  # repeated sums would overflow
        data = torch.zeros(max(1, size // 4))
        works = {name: partial(dist.all_reduce, data, group=groups[name]) for name in groups}

    def run(name: str, runs: int) -> float:
        return time_us(groups[name], works[name], runs)

    times: dict[str, list[float]] = {name: [] for name in groups}
    before = {name: stats(group) for name, group in groups.items() if name != "gloo"}
    for name in groups:
        run(name, max(1, runs // 5))
    for index in range(rounds):
        for name in list(groups)[:: 1 if index % 2 else -1]:
            times[name].append(run(name, runs))
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


def operations(arguments: argparse.Namespace) -> None:
    """Measure every size, and print its row."""
    groups = {"gloo": dist.new_group(backend="gloo"), "harp": dist.new_group(backend="harp")}
    for name in arguments.variant:
        wire = None if name == "flat" else name
        if name == "flat":
            os.environ["HARP_COLL_ALGO"] = "ring"
        groups[name] = dist.new_group(backend="harp", pg_options=Options(wire=wire))
        os.environ.pop("HARP_COLL_ALGO", None)
    for size in arguments.sizes:
        row = measure(arguments.operation, groups, size, arguments.rounds)
        rows: list[Any] = [None] * arguments.ranks
        dist.all_gather_object(rows, row)
        if arguments.rank == 0:
            row["right"] = all(other["right"] for other in rows)
            for key in row:
                if key.endswith("net_sent_bytes"):
                    row[key] = sum(other[key] for other in rows)
            print(json.dumps(row), flush=True)


def train(share: float | None) -> float:
    """Train the demo's model; return the mean loss of the last ten steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(ddp.make_model(1024))
    if share is not None:
        model.register_comm_hook(None, hooks.topk(share, warmup_steps=_WARMUP_STEPS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = ddp.make_data()
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=3))
    losses: list[float] = []
    for inputs, labels in itertools.islice(
        itertools.chain.from_iterable(itertools.repeat(loader)), _STEPS
    ):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = torch.tensor(statistics.mean(losses[-10:]))
    dist.all_reduce(mean)
    return float(mean.item() / dist.get_world_size())


def top_k(arguments: argparse.Namespace) -> None:
    """Measure the exchange of a bucket, and train; print the row."""
    data, parameter = torch.zeros(_BUCKET_ELEMENTS), torch.zeros(_BUCKET_ELEMENTS)
    # The methods of DDP's bucket that a hook calls.
    bucket: Any = SimpleNamespace(
        buffer=lambda: data,
        index=lambda: 0,
        is_last=lambda: True,
        parameters=lambda: [parameter],
        gradients=lambda: [data],
    )
    hook = hooks.topk(arguments.topk)
    works: dict[str, Callable[[], object]] = {
        "full": lambda: dist.all_reduce(data),
        "topk": lambda: hook(None, bucket).wait(),
        # The part of topk that is not exchange.
        "select": lambda: hooks.largest(data, int(_BUCKET_ELEMENTS * arguments.topk)),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(arguments.rounds):
        for name, work in works.items():
            data.normal_()
            times[name].append(time_us(None, work, _BUCKET_RUNS) / 1e3)
    row = {
        "bucket_bytes": _BUCKET_ELEMENTS * 4,
        "times_ms": times,
        **{f"{name}_ms": statistics.median(times[name]) for name in works},
        "faster": ratio(times["full"], times["topk"]),
        "steps": _STEPS,
        "warmup_steps": _WARMUP_STEPS,
        "loss": {"full": train(None), "topk": train(arguments.topk)},
    }
    if arguments.rank == 0:
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--operation", default="all_reduce")
    parser.add_argument("--topk", type=float)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("sizes", type=int, nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "harp" if arguments.topk else "gloo",
        init_method=f"tcp://{arguments.root}",
        rank=arguments.rank,
        world_size=arguments.ranks,
    )
    (top_k if arguments.topk else operations)(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
