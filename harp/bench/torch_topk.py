# SPDX-License-Identifier: Apache-2.0
"""One rank of `harpctl bench torch --topk`: a bucket's exchange and a training, each in both ways.

Rank 0 prints a JSON line.
"""

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from harp.demo import ddp
from harp.torch import hooks

BUCKET_ELEMENTS = (25 << 20) // 4  # DDP's default
STEPS, WARMUP_STEPS = 150, 40
_RUNS = 3


class Bucket:
    """What a hook needs of DDP's bucket."""

    def __init__(self, elements: int) -> None:
        self._parameter = torch.zeros(elements)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._buffer = torch.randn(elements, generator=generator)

    def buffer(self) -> torch.Tensor:
        """The gradients."""
        return self._buffer

    def index(self) -> int:
        """The only one."""
        return 0

    def is_last(self) -> bool:
        """Of a step."""
        return True

    def parameters(self) -> list[torch.Tensor]:
        """Of one tensor."""
        return [self._parameter]

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer."""
        return [self._buffer]


def time_ms(exchange: Any, bucket: Bucket) -> float:
    """Mean time of exchanging the bucket."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(_RUNS):
        exchange(bucket)
    return (time.perf_counter() - start) / _RUNS * 1e3


def train(ratio: float | None) -> float:
    """Mean loss of the last ten steps of the demonstration's training."""
    torch.manual_seed(0)
    model = DistributedDataParallel(ddp.make_model(1024))
    if ratio is not None:
        model.register_comm_hook(None, hooks.topk(ratio, warmup_steps=WARMUP_STEPS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = ddp.make_data()
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=3))
    losses: list[float] = []
    for inputs, labels in itertools.islice(
        itertools.chain.from_iterable(itertools.repeat(loader)), STEPS
    ):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mean = torch.tensor(statistics.mean(losses[-10:]))
    dist.all_reduce(mean)
    return float(mean.item() / dist.get_world_size())


def main() -> None:
    """Entry point of python -m harp.bench.torch_topk."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--topk", type=float, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "harp", init_method=f"tcp://{given.root}", rank=given.rank, world_size=given.ranks
    )
    bucket = Bucket(BUCKET_ELEMENTS)
    hook = hooks.topk(given.topk)
    exchanges = {
        "full": lambda bucket: dist.all_reduce(bucket.buffer()),
        "topk": lambda bucket: hook(None, bucket).wait(),
        # What of it is selection, not exchange.
        "select": lambda bucket: hooks.largest(bucket.buffer(), int(BUCKET_ELEMENTS * given.topk)),
    }
    times: dict[str, list[float]] = {name: [] for name in exchanges}
    for _ in range(given.rounds):
        for name, exchange in exchanges.items():
            bucket.buffer().normal_()
            times[name].append(time_ms(exchange, bucket))
    losses = {"full": train(None), "topk": train(given.topk)}
    row = {
        "bucket_bytes": BUCKET_ELEMENTS * 4,
        "times_ms": times,
        "full_ms": statistics.median(times["full"]),
        "topk_ms": statistics.median(times["topk"]),
        "select_ms": statistics.median(times["select"]),
        "faster": statistics.median(
            full / topk for full, topk in zip(times["full"], times["topk"], strict=True)
        ),
        "steps": STEPS,
        "warmup_steps": WARMUP_STEPS,
        "loss": losses,
    }
    if given.rank == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
