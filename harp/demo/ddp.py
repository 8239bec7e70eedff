# SPDX-License-Identifier: Apache-2.0
"""An ordinary DistributedDataParallel script: torchrun ddp.py --backend gloo|harp.

It has no code for HARP. Rank 0 prints a JSON line for each epoch; every rank writes its weights.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PIXELS, CLASSES, SAMPLES = 256, 10, 2048


def make_data() -> TensorDataset:
    """Return noisy copies of one pattern for each class, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(CLASSES, PIXELS, generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return TensorDataset(
        patterns[labels] + torch.randn(SAMPLES, PIXELS, generator=generator), labels
    )


def make_model(hidden: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(PIXELS, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, CLASSES),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--weights", type=Path, help="Folder to write rankN.pt to.")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    torch.manual_seed(rank)  # DDP broadcasts rank 0's weights
    model = DistributedDataParallel(make_model(arguments.hidden))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = make_data()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
        dist.all_reduce(loss.detach_())
        if rank == 0:
            seconds = time.perf_counter() - start
            row = {"epoch": epoch + 1, "loss": loss.item() / dist.get_world_size()}
            print(json.dumps(row | {"seconds": seconds, "steps": len(loader)}), flush=True)
    if arguments.weights is not None:
        flat = torch.cat([value.detach().ravel() for value in model.parameters()])
        torch.save(flat, arguments.weights / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
