# SPDX-License-Identifier: Apache-2.0
"""A training script for Horovod that does not use HARP explicitly, for test_horovod.py.

Full-batch gradient descent, in which each rank has its share of the samples: the weights do not
depend on the number of ranks.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--passes", type=int, default=1, help="backward passes per step")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
torch.set_num_threads(1)
samples = torch.randn(64, 20)
labels = (samples.sum(1) > 0).long()
dataset = TensorDataset(samples, labels)
sampler = DistributedSampler(dataset, hvd.size(), hvd.rank(), shuffle=False)
batch = len(dataset) // hvd.size() // args.passes
loader = DataLoader(dataset, batch_size=batch, sampler=sampler)

torch.manual_seed(10 + hvd.rank())  # the ranks start with different weights
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 2))
if hvd.rank() == 0:
    torch.manual_seed(2)
    for layer in (model[0], model[2]):
        layer.reset_parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    backward_passes_per_step=args.passes,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    optimizer.zero_grad()
    total = 0.0
    for data, target in loader:
        loss = F.cross_entropy(model(data), target) / args.passes
        loss.backward()
        total += loss.item()
    if args.clip:
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()
    schedule.step()
    mean = hvd.allreduce(torch.tensor(total), name="loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch} loss {mean.item():.5f}", flush=True)

flat = torch.cat([value.detach().ravel() for value in model.parameters()])
gathered = hvd.allgather(flat.unsqueeze(0))
if hvd.rank() == 0:
    equal = all(torch.equal(row, flat) for row in gathered)
    print(f"weights {flat.norm().item():.4f} equal {equal} ranks {hvd.size()}", flush=True)
hvd.shutdown()
