# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of torch.distributed groups and runs a scenario in each, for test_torch.py.

python torch_ranks.py SCENARIO WORLD HOST FOLDER: FOLDER contains the store. HOST is HARP_COLL_HOST:
"" for kernel lanes, "one" for shared memory. Prints a JSON line per rank: [rank, result].
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from forked_ranks import expected, failure, run, values
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
UNSIGNED = ("uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
TYPES = (*INTEGERS, *UNSIGNED, *FLOATS, *COMPLEX, "bool", "bfloat16")
SIZES = (0, 1, 1000, 20_011)
TIMEOUT = timedelta(seconds=30)
Op = dist.ReduceOp
NAMES: dict[Any, str] = {
    Op.SUM: "sum",
    Op.AVG: "avg",
    Op.PRODUCT: "prod",
    Op.MIN: "min",
    Op.MAX: "max",
    Op.BAND: "band",
    Op.BOR: "bor",
    Op.BXOR: "bxor",
}


def init(rank: int, world: int, folder: Path, backend: str = "harp", **options: Any) -> None:
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/{backend.replace(':', '-')}",
        rank=rank,
        world_size=world,
        **({"timeout": TIMEOUT} | options),
    )


def numbers(rank: int, size: int, dtype: str) -> Any:
    """numpy has no bfloat16; float32 represents these values exactly."""
    return values(rank, size, "float32" if dtype == "bfloat16" else dtype)


def tensor(array: Any, dtype: str) -> torch.Tensor:
    data = torch.from_numpy(array.copy())
    return data.bfloat16() if dtype == "bfloat16" else data


def compare(actual: torch.Tensor, reference: Any, *context: object) -> None:
    plain = actual.float() if actual.dtype == torch.bfloat16 else actual
    assert np.array_equal(plain.numpy().ravel(), reference.ravel()), (
        context,
        actual[:8],
        reference[:8],
    )


def reductions_of(dtype: str) -> list[Any]:
    if dtype == "bool":
        return [Op.SUM, Op.PRODUCT, Op.BAND, Op.BOR, Op.BXOR]
    ops = [Op.SUM, Op.AVG]
    ops += [] if dtype in COMPLEX else [Op.PRODUCT, Op.MIN, Op.MAX]
    return ops + ([Op.BAND, Op.BOR, Op.BXOR] if dtype in (*INTEGERS, *UNSIGNED) else [])


def check_reductions(rank: int, world: int, size: int, dtype: str) -> None:
    arrays = [numbers(r, size, dtype) for r in range(world)]
    blocks = [numbers(r, size * world, dtype) for r in range(world)]
    root = size % world
    local = slice(size * rank, size * (rank + 1))
    for op in reductions_of(dtype):
        context = (op, dtype, size, rank)
        reference = expected(NAMES[op], arrays)
        if dtype == "bfloat16":  # averages are rounded
            reference = tensor(reference, dtype).float().numpy()
        data = tensor(arrays[rank], dtype)
        dist.all_reduce(data, op)
        compare(data, reference, "all_reduce", *context)
        data = tensor(arrays[rank], dtype)
        dist.all_reduce(data, op, async_op=True).wait()
        compare(data, reference, "all_reduce, asynchronous", *context)
        data = tensor(arrays[rank], dtype)
        dist.reduce(data, root, op)
        if rank == root:
            compare(data, reference, "reduce", *context)
        if dtype in COMPLEX:
            continue
        reference = expected(NAMES[op], blocks)[local]
        if dtype == "bfloat16":
            reference = tensor(reference, dtype).float().numpy()
        whole = tensor(blocks[rank], dtype)
        out = torch.zeros(size, dtype=whole.dtype)
        dist.reduce_scatter_tensor(out, whole, op)
        compare(out, reference, "reduce_scatter_tensor", *context)
        out.zero_()
        dist.reduce_scatter(out, list(whole.chunk(world)) if size else [out] * world, op)
        compare(out, reference, "reduce_scatter", *context)


def check_copies(rank: int, world: int, size: int, dtype: str) -> None:
    arrays = [numbers(r, size, dtype) for r in range(world)]
    root = (size + 1) % world
    context = (dtype, size, rank)
    local = tensor(arrays[rank], dtype)
    together = np.concatenate(arrays)

    def empty(count: int = 1) -> torch.Tensor:
        return torch.zeros(count * size, dtype=local.dtype)

    data = local.clone()
    dist.broadcast(data, root)
    compare(data, arrays[root], "broadcast", *context)
    parts = [empty() for _ in range(world)]
    dist.all_gather(parts, local)
    compare(torch.cat(parts), together, "all_gather", *context)
    whole = empty(world)
    dist.all_gather_into_tensor(whole, local)
    compare(whole, together, "all_gather_into_tensor", *context)
    parts = [empty() for _ in range(world)] if rank == root else None
    dist.gather(local, parts, root)
    if parts is not None:
        compare(torch.cat(parts), together, "gather", *context)
    out = empty()
    dist.scatter(out, [tensor(a, dtype) for a in arrays] if rank == root else None, root)
    compare(out, arrays[rank], "scatter", *context)
    blocks = [numbers(r, size * world, dtype) for r in range(world)]
    reference = np.concatenate([block[size * rank : size * (rank + 1)] for block in blocks])
    whole, source = empty(world), tensor(blocks[rank], dtype)
    dist.all_to_all_single(whole, source)
    compare(whole, reference, "all_to_all_single", *context)
    parts = [empty() for _ in range(world)]
    sources = list(source.chunk(world)) if size else [empty()] * world
    dist.all_to_all(parts, sources)
    compare(torch.cat(parts), reference, "all_to_all", *context)


def check_counts(rank: int, world: int) -> None:
    """Ranks with different numbers of elements."""
    local = torch.full((rank + 1,), float(rank))
    reference = np.concatenate([np.full(r + 1, r, "float32") for r in range(world)])
    parts = [torch.zeros(r + 1) for r in range(world)]
    dist.all_gather(parts, local)
    compare(torch.cat(parts), reference, "all_gather of different sizes")
    # Rank r sends r + 1 rows to each, and gets s + 1 from rank s.
    source = torch.full((world * (rank + 1), 3), float(rank))
    whole = torch.zeros(len(reference), 3)
    counts = [r + 1 for r in range(world)]
    dist.all_to_all_single(whole, source, counts, [rank + 1] * world)
    compare(whole, np.repeat(reference, 3), "all_to_all_single with counts")
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [torch.ones(r + 1) for r in range(world)])
    compare(out, np.full(rank + 1, world, "float32"), "reduce_scatter of different sizes")


def check_coalesced(rank: int, world: int) -> None:
    tensors = [torch.full((n,), float(rank + 1)) for n in (3, 1, 7)]
    dist.all_reduce_coalesced(tensors)
    for data in tensors:
        compare(data, np.full(data.numel(), world * (world + 1) / 2), "all_reduce_coalesced")
    ones = [torch.ones(4), torch.ones(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for data in ones:
            dist.all_reduce(data)
    manager.wait()
    assert all((data == world).all() for data in ones)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for data in ones:
            dist.all_reduce(data)
    manager.wait()
    assert all((data == world * world).all() for data in ones)


def check_coalesced_blocks(rank: int, world: int) -> None:
    """Several gathers and scatters as one operation, in both modes of torch's manager."""
    sizes = (3, 5)
    local = [torch.full((n,), float(rank)) for n in sizes]
    gathered = [np.repeat(np.arange(world, dtype="float32"), n) for n in sizes]
    for device in (None, torch.device("cpu")):
        wholes = [torch.zeros(n * world) for n in sizes]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for whole, part in zip(wholes, local, strict=True):
                dist.all_gather_into_tensor(whole, part)
        manager.wait()
        for whole, reference in zip(wholes, gathered, strict=True):
            compare(whole, reference, "all_gather_into_tensor, coalesced")
        parts = [torch.zeros(n) for n in sizes]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for part, whole in zip(parts, wholes, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        manager.wait()
        for part in parts:
            compare(
                part, np.full(part.numel(), rank * world, "float32"), "reduce_scatter, coalesced"
            )
    lists = [[torch.zeros(n) for n in sizes] for _ in range(world)]
    dist.all_gather_coalesced(lists, local)
    for r, parts in enumerate(lists):
        assert all((part == r).all() for part in parts), "all_gather_coalesced"


def check_messages(rank: int, world: int) -> None:
    for size in (1, 100_000):
        data = torch.full((size,), float(rank))
        actual = torch.zeros(size)
        request = dist.isend(data, (rank + 1) % world, tag=5)
        assert dist.recv(actual, tag=5) == (rank - 1) % world
        assert (actual == (rank - 1) % world).all()
        request.wait()
        right = dist.P2POp(dist.isend, data, (rank + 1) % world)
        left = dist.P2POp(dist.irecv, actual.zero_(), (rank - 1) % world)
        for work in dist.batch_isend_irecv([right, left]):
            work.wait()
        assert (actual == (rank - 1) % world).all()
        if rank:
            dist.send(data, 0, tag=size)
            continue
        sources = []
        for _ in range(world - 1):
            sources.append(dist.recv(actual, tag=size))
            assert (actual == sources[-1]).all()
        assert sorted(sources) == list(range(1, world))


def check_layouts(rank: int, world: int) -> None:
    """Inputs and outputs that are not contiguous."""
    base = torch.arange(12.0).reshape(3, 4) * (rank + 1)
    total = torch.arange(12.0).reshape(3, 4) * (world * (world + 1) / 2)
    view = base.clone().t()
    dist.all_reduce(view)
    assert torch.equal(view, total.t())
    column = base.clone()
    dist.all_reduce(column[:, 1], async_op=True).wait()
    assert torch.equal(column[:, 1], total[:, 1])
    assert torch.equal(column[:, 0], base[:, 0]), "other columns are unchanged"
    parts = [torch.zeros(4, 3).t() for _ in range(world)]
    dist.all_gather(parts, base)
    assert all(torch.equal(part, base / (rank + 1) * (r + 1)) for r, part in enumerate(parts))
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert (image == world).all()


def check_futures(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(50_000), async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert (doubled.wait() == 2 * world).all()
    assert work.is_completed()
    assert work.is_success()
    # A Work without references still completes, and keeps its memory until then.
    data = torch.ones(200_000)
    dist.all_reduce(data, async_op=True)
    del work
    gc.collect()
    dist.barrier()
    assert (data == world).all()


def ops(rank: int, world: int, folder: Path) -> Any:
    """Every operation, with the types and sizes that use different algorithms."""
    from harp.torch import stats

    init(rank, world, folder)
    all_types = os.environ.get("HARP_TEST_TYPES") == "all"
    for dtype in TYPES:
        for size in SIZES if all_types or dtype == "float32" else (1000,):
            check_reductions(rank, world, size, dtype)
            check_copies(rank, world, size, dtype)
    check_counts(rank, world)
    check_coalesced(rank, world)
    check_coalesced_blocks(rank, world)
    check_layouts(rank, world)
    check_futures(rank, world)
    if world > 1:
        check_messages(rank, world)
    dist.barrier()
    dist.group.WORLD._get_backend(torch.device("cpu")).monitored_barrier(TIMEOUT)
    dist.get_backend_config()
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]
    counters = stats()
    dist.destroy_process_group()
    return counters


class Net(torch.nn.Module):
    """A model with several gradient buckets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, 300),
            torch.nn.ReLU(),
            torch.nn.Linear(300, 300),
            torch.nn.ReLU(),
            torch.nn.Linear(300, 1),
        )

    def forward(self, data: torch.Tensor) -> Any:
        return self.layers(data)


Hook = Callable[[DistributedDataParallel], None]


def no_hook(model: DistributedDataParallel) -> None:
    """No hook."""


def fp16_hook(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def full_topk_hook(model: DistributedDataParallel) -> None:
    from harp.torch import hooks

    model.register_comm_hook(None, hooks.topk(1.0))


def train(rank: int, hook: Hook, bucket_mb: float = 0.1) -> torch.Tensor:
    """Returns the weights after some steps of DDP."""
    model = DistributedDataParallel(Net(), bucket_cap_mb=bucket_mb)
    hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([value.detach().ravel() for value in model.parameters()])


def ddp(rank: int, world: int, folder: Path) -> None:
    """DistributedDataParallel computes the same weights as over Gloo, on all ranks."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    from harp.torch import hooks

    def power(model: DistributedDataParallel) -> None:
        torch.manual_seed(1)
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, hooks.ordered(powerSGD_hook.powerSGD_hook))

    weights: dict[str, list[torch.Tensor]] = {}
    for backend in ("gloo", "harp"):
        init(rank, world, folder, backend)
        results = [train(rank, hook) for hook in (no_hook, fp16_hook, power, full_topk_hook)]
        for value in results:
            parts = [torch.zeros_like(value) for _ in range(world)]
            dist.all_gather(parts, value)
            assert all(torch.equal(part, parts[0]) for part in parts), "ranks differ"
        weights[backend] = results
        dist.destroy_process_group()
    assert torch.allclose(weights["harp"][0], weights["harp"][3], atol=1e-5), "top-k of all"
    for index, (harp, gloo) in enumerate(zip(weights["harp"], weights["gloo"], strict=True)):
        # The order of two ranks' additions is fixed. PowerSGD may differ in the last bits, too.
        is_exact = world == 2 and index != 2
        assert torch.equal(harp, gloo) if is_exact else torch.allclose(harp, gloo, atol=1e-5)


def feedback(rank: int, world: int, folder: Path) -> None:
    """Top-k sends a quarter of a gradient per step, and all of it after four. A warm-up to
    2.5 percent sends 40, 6 and 1 of 40 elements."""
    from harp.torch import hooks

    class Weights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.zeros(40))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.weights @ data

    init(rank, world, folder)
    gradients = [
        torch.randperm(40, generator=torch.Generator().manual_seed(r)) for r in range(world)
    ]
    mean = torch.stack(gradients).float().mean(0)
    for error_feedback in (True, False):
        model = DistributedDataParallel(Weights())
        model.register_comm_hook(None, hooks.topk(0.25, error_feedback=error_feedback))
        total = torch.zeros(40)
        for step in range(5):
            model.zero_grad()
            model(gradients[rank].float() * (step == 0)).backward()
            total += model.module.weights.grad
            if step == 0:
                assert (model.module.weights.grad == 0).any(), "the smallest are not sent"
        assert torch.allclose(total, mean) == error_feedback
    model = DistributedDataParallel(Weights())
    model.register_comm_hook(None, hooks.topk(0.025, error_feedback=False, warmup_steps=2))
    for sent_count in (40, 6, 1):
        model.zero_grad()
        model(gradients[rank].float() + 1).backward()
        assert (
            sent_count <= model.module.weights.grad.count_nonzero() <= min(40, world * sent_count)
        )
    assert "ratio 0" in failure(lambda: hooks.topk(0))
    dist.destroy_process_group()


def subgroups(rank: int, world: int, folder: Path) -> None:
    """Groups of some ranks, a backend for one device, and a second group after the first."""
    init(rank, world, folder, "cpu:harp")
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[rank // 2]
    data = torch.tensor([rank])
    dist.all_reduce(data, group=pair)
    assert data.item() == [1, 5][rank // 2]
    odd = dist.new_group([1, 3], use_local_synchronization=True) if rank % 2 else None
    if odd is not None:
        dist.broadcast(data, 3, group=odd)
        assert data.item() == 5
    dist.destroy_process_group(pair)
    dist.barrier()
    dist.destroy_process_group()
    # With the same store and names, the keys of earlier groups are not reused.
    init(rank, world, folder, "cpu:harp")
    dist.all_reduce(data)
    dist.destroy_process_group()


def split(rank: int, world: int, folder: Path) -> list[Any]:
    """ProcessGroup.split_group() creates a group of some ranks with the same backend."""
    from harp.torch import Options, stats

    init(rank, world, folder, "cpu:harp", pg_options=Options(wire="float16"))
    members = [[0, 2], [1, 3]][rank % 2]
    part = dist.group.WORLD.split_group(members, opts=None)
    data = torch.tensor([float(rank)])
    part.allreduce([data]).wait()
    texts: list[Any] = [part.rank(), part.size(), data.item()]
    # The wire format is inherited: half of the bytes.
    large = torch.ones(100_000)
    part.allreduce([large]).wait()
    texts.append(stats(part)["net_sent_bytes"] < 300_000)
    dist.barrier()
    part.shutdown()
    dist.destroy_process_group()
    return texts


def wire(rank: int, world: int, folder: Path) -> list[Any]:
    """Wire formats of the world by variable, of a group by options; DDP; a mismatch."""
    from harp.torch import Options, stats

    os.environ["HARP_COLL_WIRE"] = "bfloat16"
    init(rank, world, folder)
    del os.environ["HARP_COLL_WIRE"]
    group = dist.new_group(pg_options=Options(wire="float16"))
    plain = dist.new_group()

    def sent(group: Any) -> tuple[int, torch.Tensor]:
        data = torch.randn(100_000, generator=torch.Generator().manual_seed(rank))
        before = stats(group)["net_sent_bytes"]
        dist.all_reduce(data, group=group)
        count = stats(group)["net_sent_bytes"] - before
        parts = [torch.zeros_like(data) for _ in range(world)]
        dist.all_gather(parts, data, group=group)
        assert all(torch.equal(part, data) for part in parts), "ranks differ"
        return count, data

    plain_bytes, exact = sent(plain)
    results = []
    for other, unit in ((None, 2.0**-8), (group, 2.0**-11)):
        count, data = sent(other)
        assert not torch.equal(data, exact)
        assert (data - exact).abs().max() < 8 * world * unit
        results.append(count / plain_bytes)
    model = DistributedDataParallel(Net(), process_group=group)
    model(torch.ones(4, 20) * rank).square().mean().backward()
    flat = torch.cat([value.grad.ravel() for value in model.parameters()])
    assert flat.norm() > 0
    parts = [torch.zeros_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat, group=group)
    assert all(torch.equal(part, flat) for part in parts), "ranks differ"
    differing = Options(wire="bfloat16" if rank else None)
    results.append(failure(lambda: dist.new_group(pg_options=differing)))
    results.append(failure(lambda: Options(wire="float8")))
    results.append(failure(lambda: dist.new_group(pg_options={"wire": "float16"})))
    dist.destroy_process_group()
    return results


def train_tuned(
    rank: int, hook: Hook, sizes: list[float], apply: bool = True, **options: Any
) -> tuple[Any, Any, int]:
    """Trains while tune() tries bucket sizes; with the fake clock, 0.1 MiB is twice as fast."""
    from harp.torch import tuning

    model = DistributedDataParallel(Net(), **options)
    hook(model)
    tuner = tuning.tune(model, apply=apply, sizes_mb=sizes, steps=3) if sizes else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    now_s, caps = 0.0, set()
    tuning.time = SimpleNamespace(perf_counter=lambda: now_s)  # type: ignore[assignment]
    for _ in range(25):
        optimizer.zero_grad()
        model(torch.randn(16, 20, generator=generator)).square().mean().backward()
        optimizer.step()
        cap = model.bucket_bytes_cap / tuning.MIB
        now_s += 0.05 if 0.09 < cap < 0.11 else 0.1
        caps.add(round(cap, 2))
    data = model._get_ddp_logging_data()  # with unused parameters the first buckets stay
    buckets = len((data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]).split(","))
    assert caps >= set(sizes)
    assert tuner is None or tuner.done
    return tuner, torch.cat([value.detach().ravel() for value in model.parameters()]), buckets


def tune(rank: int, world: int, folder: Path) -> Any:
    """tune() keeps the best size; the weights equal those of a DDP without tuning."""
    import harp.torch
    from harp.torch import tuning

    init(rank, world, folder)
    assert harp.torch.tune is tuning.tune
    assert tuning._default_sizes(100.0) == [6.25, 12.5, 25.0, 50.0, 100.0]
    assert tuning._default_sizes(0.75) == [0.25, 0.38, 0.75]

    reports = []
    options: dict[str, Any]
    for hook, options in (
        (no_hook, {}),
        (no_hook, {"gradient_as_bucket_view": True}),
        (no_hook, {"static_graph": True}),
        (no_hook, {"find_unused_parameters": True}),
        (fp16_hook, {}),
        (full_topk_hook, {}),
    ):
        _, plain, plain_buckets = train_tuned(rank, hook, [], **options)
        tuner, weights, tuned_buckets = train_tuned(rank, hook, [0.1, 10.0], **options)
        assert torch.allclose(weights, plain, atol=1e-5), (hook, options)
        assert tuned_buckets > plain_buckets, (tuned_buckets, plain_buckets)
        assert tuner.kwargs == {"bucket_cap_mb": 0.1}
        reports.append(tuner.report())
    assert len(set(reports)) == 1, reports
    tuner, _, buckets = train_tuned(rank, no_hook, [10.0], bucket_cap_mb=0.1)
    assert buckets == tuned_buckets
    advice, _, buckets = train_tuned(rank, no_hook, [0.1], apply=False, bucket_cap_mb=7)
    assert buckets == 1, "apply=False changes no size"
    model = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    texts = [
        reports[0],
        tuner.report(),
        advice.report(),
        failure(lambda: tuning.tune(model)),
        failure(lambda: tuning.tune(model, steps=0)),
        failure(lambda: tuning.tune(model, sizes_mb=[0])),
        failure(lambda: tuning.tune(Net())),
    ]
    dist.destroy_process_group()
    return texts


def mismatch(rank: int, world: int, folder: Path) -> str:
    init(rank, world, folder)
    if rank:
        first = failure(lambda: dist.all_reduce(torch.ones(100)))
    else:
        first = failure(lambda: dist.broadcast(torch.ones(100), 0))
    # A small broadcast may complete before the other rank's call is known.
    later = failure(dist.barrier)
    return first if first != "no error" else later


def killed(rank: int, world: int, folder: Path) -> str:
    init(rank, world, folder)
    dist.all_reduce(torch.ones(1 << 20))
    if rank == 1:
        os.kill(os.getpid(), 9)
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    return failure(work.get_future().wait if rank == 2 else work.wait)


def late(rank: int, world: int, folder: Path) -> str:
    """monitored_barrier names the missing rank."""
    init(rank, world, folder, timeout=timedelta(seconds=20))
    dist.barrier()
    if rank == 1:
        store = dist.distributed_c10d._get_default_store()
        store.wait([f"failed{r}" for r in range(world) if r != 1])
        return ""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    text = failure(lambda: backend.monitored_barrier(timedelta(seconds=1.5)))
    dist.distributed_c10d._get_default_store().set(f"failed{rank}", "")
    return text


def in_flight(rank: int, world: int, folder: Path) -> str:
    """destroy_process_group() with an operation in progress, which then fails."""
    init(rank, world, folder)
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    text = ""
    if rank == 0:
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)  # no other rank has called it
        future = work.get_future()
        dist.destroy_process_group()
        text = failure(work.wait)
        assert failure(future.wait).endswith(text.partition(": ")[2])
    store.set(f"done{rank}", "")
    store.wait([f"done{r}" for r in range(world)])
    return text


def aborted(rank: int, world: int, folder: Path) -> str:
    """A rank aborts the group while the others wait in an operation."""
    init(rank, world, folder)
    dist.barrier()
    if rank == 0:
        dist.group.WORLD.abort()
    return failure(lambda: dist.all_reduce(torch.ones(9)))


def bad_calls(rank: int, world: int, folder: Path) -> list[str]:
    """Each call fails with one sentence, and the group still works."""
    init(rank, world, folder)
    ones = torch.ones(3)
    # Bypasses torch's own checks in Python.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(ones.to_sparse()),
        lambda: backend.allreduce([torch.ones(3, device="meta")]),
        lambda: dist.all_reduce(ones, Op.BAND),
        lambda: dist.all_reduce(ones, dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(ones.to(torch.float8_e4m3fn)),
        lambda: backend.allreduce([ones, ones]),
        lambda: dist.all_gather_into_tensor(torch.ones(2), ones),
        lambda: dist.all_gather([ones] * (world + 1), ones),
        lambda: dist.send(ones, rank),
        lambda: dist.all_gather([torch.ones(4)] * world, ones),
        lambda: dist.scatter(ones, [torch.ones(4)] * world, src=rank),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(2)),
    ]
    texts = [failure(call) for call in calls]
    dist.barrier()
    dist.destroy_process_group()
    return texts


def store_gone(rank: int, world: int, folder: Path) -> str:
    """The store's server ends before the ranks use it."""
    address = folder / "port"
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (folder / "new").write_text(str(server.port))
        (folder / "new").rename(address)
        server.wait([f"connected{r}" for r in range(1, world)])
        del server
        gc.collect()
        (folder / "gone").touch()
        return ""
    wait_for(address)
    port = int(address.read_text())
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=5))
    store.set(f"connected{rank}", "")
    wait_for(folder / "gone")
    return failure(lambda: dist.init_process_group("harp", store=store, rank=rank, world_size=2))


def store_stopped(rank: int, world: int, folder: Path) -> str:
    """Rank 2, the store's server, is stopped while rank 0 waits for rank 1."""
    address, failed = folder / "port", folder / "failed"
    if rank == 2:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (folder / "new").write_text(f"{server.port} {os.getpid()}")
        (folder / "new").rename(address)
        server.wait(["opened0", "opened1"])
        os.kill(os.getpid(), signal.SIGSTOP)
        server.wait(["closed0", "closed1"])
        return ""
    wait_for(address)
    port, pid = map(int, address.read_text().split())
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    init = {"store": store, "rank": rank, "world_size": 2, "timeout": timedelta(seconds=2)}
    dist.init_process_group("harp", **init)
    dist.barrier()
    store.set(f"opened{rank}", "")
    while ") T " not in Path(f"/proc/{pid}/stat").read_text():
        os.sched_yield()
    text = ""
    if rank == 0:
        text = failure(lambda: dist.all_reduce(torch.ones(9)))
        os.kill(pid, signal.SIGCONT)
        failed.touch()
    wait_for(failed)
    store.set(f"closed{rank}", "")
    return text


def wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def no_destroy(rank: int, world: int, folder: Path) -> str:
    """A rank exits right after its operation; its data arrives."""
    init(rank, world, folder)
    data = torch.ones(100_000) * (rank == 0)
    dist.broadcast(data, 0)
    return "" if (data == 1).all() else "wrong"


def main() -> int:
    scenario, world, host, folder = sys.argv[1:]
    os.environ["HARP_COLL_HOST"] = host
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    torch.set_num_threads(1)
    from harp.torch import building

    building.module()  # the ranks inherit it

    def work(rank: int) -> Any:
        return globals()[scenario](rank, int(world), Path(folder))

    # Ranks of no_destroy run their atexit functions.
    end = sys.exit if scenario == "no_destroy" else os._exit
    return run(range(int(world)), work, (1,) if scenario == "killed" else (), end)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
