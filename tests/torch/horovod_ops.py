# SPDX-License-Identifier: Apache-2.0
"""Every function of harp.horovod, on one rank of a job that test_horovod.py starts."""

import sys
from typing import Any

import torch
from forked_ranks import failure

import harp.horovod as hvd


def make_tensor(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) + rank


def check_reductions(rank: int, size: int) -> None:
    tensors = [make_tensor(r, 3, 4) for r in range(size)]
    total = torch.stack(tensors).sum(0)
    data = tensors[rank]
    assert torch.allclose(hvd.allreduce(data), total / size)
    assert torch.equal(data, make_tensor(rank, 3, 4)), "the input is not changed"
    assert torch.equal(hvd.allreduce(data, average=False, name="a"), total)
    assert torch.equal(hvd.allreduce(data, op=hvd.Max), make_tensor(size - 1, 3, 4))
    assert torch.equal(hvd.allreduce(data, op=hvd.Min), make_tensor(0, 3, 4))
    assert torch.equal(hvd.allreduce(torch.tensor([2]), op=hvd.Product), torch.tensor([2**size]))
    scaled = hvd.allreduce(data, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.equal(scaled, total * 2)
    half = hvd.allreduce(data, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32
    assert torch.allclose(half, total / size, rtol=1e-2)
    handle = hvd.allreduce_async(data, op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert torch.equal(hvd.synchronize(handle), total)
    copy = data.clone()
    assert hvd.synchronize(hvd.allreduce_async_(copy, op=hvd.Sum)) is copy
    assert torch.equal(copy, total)
    assert torch.equal(hvd.allreduce_(data.clone(), op=hvd.Sum), total)
    group = [data, torch.tensor([rank]), data[0] * 2]
    results = hvd.grouped_allreduce(group, op=hvd.Sum)
    assert torch.equal(results[0], total)
    assert results[1].item() == sum(range(size))
    assert torch.equal(results[2], total[0] * 2)
    copies = [tensor.clone() for tensor in group]
    handle = hvd.grouped_allreduce_async_(copies, op=hvd.Sum)
    hvd.synchronize(handle)
    assert hvd.poll(handle)
    assert torch.equal(copies[2], total[0] * 2)
    assert torch.equal(hvd.grouped_allreduce_([data.clone()], op=hvd.Sum)[0], total)


def check_copies(rank: int, size: int) -> None:
    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)))
    reference = torch.cat([torch.full((r + 1, 2), float(r)) for r in range(size)])
    assert torch.equal(rows, reference)
    assert torch.equal(
        hvd.synchronize(hvd.allgather_async(torch.full((rank + 1, 2), float(rank)))), reference
    )
    root = size - 1
    data = make_tensor(rank, 5)
    assert torch.equal(hvd.broadcast(data, root), make_tensor(root, 5))
    assert torch.equal(data, make_tensor(rank, 5)), "the input is not changed"
    assert torch.equal(hvd.synchronize(hvd.broadcast_async(data, root)), make_tensor(root, 5))
    assert hvd.broadcast_(data, root) is data
    assert torch.equal(data, make_tensor(root, 5))
    assert hvd.broadcast_object({"rank": rank}, root) == {"rank": root}
    assert hvd.allgather_object(rank) == list(range(size))
    layer = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(layer.named_parameters(), root_rank=0)
    for weights in hvd.allgather(layer.weight.unsqueeze(0)):
        assert torch.equal(weights, layer.weight)


def check_gradients(rank: int, size: int) -> None:
    """Gradients through operations equal those of one process with all the data."""
    data = make_tensor(rank, 2, 2).requires_grad_()
    (hvd.allreduce(data) * (rank + 1)).sum().backward()
    assert torch.allclose(data.grad, torch.full((2, 2), (size + 1) / 2))
    data = torch.ones(rank + 1, 2, requires_grad=True)
    (hvd.allgather(data) * (rank + 1)).sum().backward()
    assert torch.allclose(data.grad, torch.full_like(data, size * (size + 1) / 2))
    data = torch.ones(3, requires_grad=True)
    hvd.broadcast(data, 0).sum().backward()
    assert torch.equal(data.grad, torch.full((3,), float(size) * (rank == 0)))


def check_state(rank: int) -> None:
    """The root broadcasts Adam's state and options, also to ranks without state."""
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.5 / (rank + 1))
    if rank == 0:
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.5
    moments = optimizer.state[layer.weight]["exp_avg"]
    assert torch.equal(hvd.allgather(moments), moments.repeat(hvd.size(), 1))


def check_optimizer(rank: int, size: int) -> list[str]:
    """Buckets, sparse and missing gradients, misuse."""
    torch.manual_seed(3)
    model = torch.nn.ModuleDict(
        {
            "table": torch.nn.Embedding(10, 4, sparse=True),
            "layer": torch.nn.Linear(4, 1),
            "idle": torch.nn.Linear(4, 1),
        }
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model.named_parameters(),
        sparse_as_dense=True,
        gradient_predivide_factor=2.0,
    )
    assert isinstance(optimizer, torch.optim.SGD)
    before = model["table"].weight.detach().clone()
    model["layer"](model["table"](torch.tensor([rank]))).sum().backward()
    if rank == 0:
        model["idle"].weight.grad = torch.ones_like(model["idle"].weight)
    busy_error = failure(optimizer.zero_grad)
    optimizer.step()
    change = before - model["table"].weight.detach()
    assert (change[:size] != 0).all()
    assert (change[size:] == 0).all()
    assert torch.allclose(model["idle"].weight.grad, torch.full((1, 4), 1 / size))
    optimizer.zero_grad()
    loss = model["layer"](torch.ones(4)).sum()
    loss.backward(retain_graph=True)
    repeat_error = failure(loss.backward)
    optimizer.synchronize()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    named = list(model.named_parameters())
    return [
        busy_error,
        repeat_error,
        failure(lambda: hvd.DistributedOptimizer(sgd, named[:-1])),
        failure(lambda: hvd.DistributedOptimizer(sgd, named + named[:1])),
        failure(lambda: hvd.DistributedOptimizer(sgd, model.parameters())),
        failure(lambda: hvd.DistributedOptimizer(sgd, named, process_set=3)),
        failure(lambda: hvd.DistributedOptimizer(sgd, named, backward_passes_per_step=0)),
    ]


def main() -> None:
    texts = [failure(hvd.rank), failure(lambda: hvd.allreduce(torch.ones(1)))]
    assert not hvd.is_initialized()
    hvd.init()
    hvd.init()  # has no effect
    assert hvd.is_initialized()
    rank, size = hvd.rank(), hvd.size()
    assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
    assert not hvd.mpi_built()
    assert not hvd.nccl_built()
    check_reductions(rank, size)
    check_copies(rank, size)
    check_gradients(rank, size)
    check_state(rank)
    texts += check_optimizer(rank, size)
    ones: Any = torch.ones(3)
    texts += [
        failure(lambda: hvd.Adasum),
        failure(lambda: hvd.no_such_name),
        failure(lambda: hvd.allreduce(ones, average=True, op=hvd.Sum)),
        failure(lambda: hvd.allreduce(ones, process_set=object())),
        failure(lambda: hvd.broadcast(ones, size)),
        failure(lambda: hvd.allreduce(torch.ones(3, device="meta"))),
        failure(lambda: hvd.allgather(torch.tensor(1.0))),
    ]
    for name in hvd._REPLACEMENTS:
        assert failure(lambda name=name: getattr(hvd, name)).startswith(
            f"AttributeError: harp.horovod has no {name}: "
        )
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    hvd.shutdown()
    if rank == 0:
        print("\n".join(texts))


if __name__ == "__main__":
    main()
    sys.exit(0)
