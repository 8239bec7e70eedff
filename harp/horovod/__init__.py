# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for PyTorch, over the harp backend of torch.distributed.

    import harp.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

`python -m harp.horovod train.py` runs a script that imports horovod.torch. CPU tensors only. All
ranks must call the same operations in the same order, because their names are ignored.
docs/torch.md is the guide.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    # With this module's name, `python -m harp.horovod` prints a line instead of a traceback.
    message = f"harp.horovod needs PyTorch ({error}): pip install 'harp-nccl[torch]'"
    raise ImportError(message, name=__name__) from error

from harp.collectives.environment import Job
from harp.horovod.optimizer import Compression as Compression
from harp.horovod.optimizer import Compressor as Compressor
from harp.horovod.optimizer import DistributedOptimizer as DistributedOptimizer

Average, Sum, Min, Max, Product = (
    dist.ReduceOp.AVG,
    dist.ReduceOp.SUM,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
)

# Names of Horovod that harp.horovod does not have, and their replacements.
_REPLACEMENTS = {
    "Adasum": "use Average, and scale the learning rate with hvd.size()",
    "SyncBatchNorm": "use torch.nn.SyncBatchNorm, or each rank's own batch statistics",
    "alltoall": "use torch.distributed.all_to_all_single",
    "alltoall_async": "use torch.distributed.all_to_all_single with async_op=True",
    "barrier": "use torch.distributed.barrier",
    "cross_rank": "use hvd.rank() // hvd.local_size()",
    "cross_size": "use hvd.size() // hvd.local_size()",
    "elastic": "use torchrun --max-restarts",
    "global_process_set": "all operations are collectives of all ranks",
    "remove_process_set": "use torch.distributed.destroy_process_group",
    "grouped_allgather": "call allgather for each tensor",
    "grouped_allgather_async": "call allgather_async for each tensor",
    "is_homogeneous": "compare hvd.allgather_object(hvd.local_size())",
    "join": "give all ranks the same number of batches",
    "reducescatter": "use torch.distributed.reduce_scatter_tensor",
    "reducescatter_async": "use torch.distributed.reduce_scatter_tensor with async_op=True",
    "sparse_allreduce_async": "use dense gradients: DistributedOptimizer(sparse_as_dense=True)",
    **dict.fromkeys(("ccl_built", "ddl_built"), "harp.horovod uses only the backend harp"),
    **dict.fromkeys(
        ("ProcessSet", "add_process_set", "get_process_set_ids_and_ranks"),
        "use torch.distributed.new_group",
    ),
    **dict.fromkeys(
        ("grouped_reducescatter", "grouped_reducescatter_async"),
        "call torch.distributed.reduce_scatter_tensor for each tensor",
    ),
    **dict.fromkeys(("start_timeline", "stop_timeline"), "use torch.profiler"),
}


def __getattr__(name: str) -> Any:
    if name in _REPLACEMENTS:
        raise AttributeError(f"harp.horovod has no {name}: {_REPLACEMENTS[name]}", name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


# ---- the job ------------------------------------------------------------------------------------

_owns_group = False
_local: tuple[int, int] | None = None  # rank and size on this host; None: not initialized


def _host_id() -> str:
    """Return a text that is equal on ranks of one host and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"


def init(comm: object = None, process_sets: object = None) -> None:
    """Join the job that torchrun, MPI or Slurm started; without one, the world is one process.

    If torch.distributed is initialized, its process group is used.
    """
    global _owns_group, _local
    if comm is not None:
        raise ValueError("hvd.init: comm is not supported: start ranks by torchrun, mpirun or srun")
    if process_sets:
        raise ValueError("harp.horovod has no process sets: use torch.distributed.new_group")
    if _local is not None:
        return
    if not dist.is_initialized():
        _join(Job.from_env())
        _owns_group = True
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, _host_id())
    me = hosts[dist.get_rank()]
    _local = hosts[: dist.get_rank()].count(me), hosts.count(me)


def _join(job: Job) -> None:
    if job.world == 1:
        dist.init_process_group("harp", store=dist.HashStore(), rank=0, world_size=1)
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group("harp")  # torchrun's variables
    else:
        dist.init_process_group(
            "harp",
            init_method=f"tcp://{job.address}:{job.port}",
            rank=job.rank,
            world_size=job.world,
            timeout=timedelta(minutes=5),
        )


def shutdown() -> None:
    """Leave the job. init() may be called again."""
    global _owns_group, _local
    _local = None
    if _owns_group:
        _owns_group = False
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Return whether this process is between init() and shutdown()."""
    return _local is not None


def _check_initialized() -> tuple[int, int]:
    if _local is None:
        raise ValueError("harp.horovod is not initialized: call hvd.init() first")
    return _local


def rank() -> int:
    """Return the rank of this process."""
    _check_initialized()
    return int(dist.get_rank())


def size() -> int:
    """Return the number of ranks."""
    _check_initialized()
    return int(dist.get_world_size())


def local_rank() -> int:
    """Return the rank of this process on its host."""
    return _check_initialized()[0]


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _check_initialized()[1]


def _no() -> bool:
    """Return False: harp.horovod uses none of these libraries."""
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _no
nccl_built = cuda_built = rocm_built = _no

# ---- operations ----------------------------------------------------------------------------------


class Handle:
    """An operation in progress, for poll() and synchronize()."""

    def __init__(self, work: Any, result: Any, finish: Any = None) -> None:
        self._work, self._result, self._finish = work, result, finish

    def poll(self) -> bool:
        """Return whether the operation is done."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> Any:
        """Wait until the operation is done and return its result."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


def poll(handle: Handle) -> bool:
    """Return whether the operation is done."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait until the operation is done and return its result."""
    return handle.wait()


def _check(tensor: torch.Tensor) -> None:
    _check_initialized()
    if not tensor.device.type == "cpu":
        raise ValueError(
            f"harp.horovod supports CPU tensors only, not {tensor.device}: copy it to the CPU"
        )


def _op(op: Any, average: bool | None) -> Any:
    if average is not None:
        if op is not None:
            raise ValueError("hvd.allreduce: pass op or average, not both")
        return Average if average else Sum
    return Average if op is None else op


def _check_options(options: Mapping[str, Any]) -> None:
    unknown = set(options) - {"process_set", "ignore_name_scope"}
    if unknown:
        raise TypeError(f"harp.horovod: unexpected arguments: {', '.join(sorted(unknown))}")
    if options.get("process_set") is not None:
        raise ValueError("harp.horovod has no process sets: use torch.distributed.new_group")


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **options: Any,
) -> Handle:
    _check_options(options)
    _check(tensor)
    data = tensor.detach()
    if prescale_factor != 1.0:
        data.mul_(prescale_factor)
    work = dist.all_reduce(data, _op(op, average), async_op=True)

    def scale() -> torch.Tensor:
        if postscale_factor != 1.0:
            data.mul_(postscale_factor)
        return tensor

    return Handle(work, None, scale)


def allreduce_(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Reduce all ranks' tensors in place, by default to their average."""
    result: torch.Tensor = allreduce_async_(tensor, *args, **options).wait()
    return result


def allreduce_async(tensor: torch.Tensor, *args: Any, **options: Any) -> Handle:
    return allreduce_async_(tensor.detach().clone(), *args, **options)


class _AllReduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, options: Any) -> torch.Tensor:
        ctx.options = options
        result: torch.Tensor = allreduce_async(tensor, **options).wait()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.options["op"] not in (Average, Sum):
            raise ValueError("hvd.allreduce: only Sum and Average have a gradient")
        return allreduce_async(gradient, **ctx.options).wait(), None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **options: Any,
) -> torch.Tensor:
    """Reduce all ranks' tensors, by default to their average. autograd supports it."""
    _check_options(options)
    short, context = compression.compress(tensor)
    result: torch.Tensor = _AllReduce.apply(
        short,
        {
            "op": _op(op, average),
            "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor,
        },
    )
    return compression.decompress(result, context)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Handle:
    tensors = list(tensors)
    for tensor in tensors:
        _check(tensor)
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.detach())
    handles = []
    for group in by_type.values():
        joined = torch.cat([tensor.reshape(-1) for tensor in group])
        handles.append((allreduce_async_(joined, *args, **options), group))

    def spread() -> list[torch.Tensor]:
        for handle, group in handles:
            parts = handle.wait().split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        return tensors

    return _GroupHandle([handle for handle, _ in handles], spread)


class _GroupHandle(Handle):
    def __init__(self, handles: list[Handle], finish: Any) -> None:
        super().__init__(None, None, finish)
        self._handles = handles

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *args: Any, **options: Any
) -> list[torch.Tensor]:
    """Reduce several tensors in place, by one operation for each type."""
    result: list[torch.Tensor] = grouped_allreduce_async_(tensors, *args, **options).wait()
    return result


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **options: Any) -> Handle:
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(copies, *args, **options)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Reduce several tensors, by one operation for each type. autograd does not support it."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([pair[0] for pair in pairs], average, name, op, **options)
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(handle.wait(), pairs, strict=True)
    ]


def allgather_async(tensor: torch.Tensor, name: str | None = None, **options: Any) -> Handle:
    """Start allgather(). It returns when the ranks have exchanged their sizes."""
    _check_options(options)
    _check(tensor)
    data = tensor.detach().contiguous()
    if data.dim() == 0:
        raise ValueError("hvd.allgather: a tensor needs at least one dimension: use reshape(1)")
    rows = torch.empty(size(), dtype=torch.int64)
    dist.all_gather_into_tensor(rows, torch.tensor([data.shape[0]]))
    parts = [data.new_empty((count, *data.shape[1:])) for count in rows.tolist()]
    work = dist.all_gather(parts, data, async_op=True)
    return Handle(work, None, lambda: torch.cat(parts))


class _AllGather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = allgather_async(tensor).wait()
        ctx.rows = tensor.shape[0]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = allreduce_async(gradient.contiguous(), op=Sum).wait()
        rows = allgather_async(torch.tensor([ctx.rows])).wait()
        return total.narrow(0, int(rows[: rank()].sum()), ctx.rows)


def allgather(tensor: torch.Tensor, name: str | None = None, **options: Any) -> torch.Tensor:
    """Concatenate all ranks' tensors along the first dimension, whose size may differ."""
    _check_options(options)
    result: torch.Tensor = _AllGather.apply(tensor)
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, **options: Any
) -> Handle:
    _check_options(options)
    _check(tensor)
    if not 0 <= root_rank < size():
        raise ValueError(f"hvd.broadcast: root_rank {root_rank} is not 0 to {size() - 1}")
    return Handle(dist.broadcast(tensor.detach(), root_rank, async_op=True), tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int, *args: Any, **options: Any) -> torch.Tensor:
    """Copy the root's tensor to all ranks, in place."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, *args, **options).wait()
    return result


def broadcast_async(tensor: torch.Tensor, root_rank: int, *args: Any, **options: Any) -> Handle:
    return broadcast_async_(tensor.detach().clone(), root_rank, *args, **options)


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        ctx.root_rank = root_rank
        result: torch.Tensor = broadcast_async(tensor, root_rank).wait()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = allreduce_async(gradient, op=Sum).wait()
        return (total if rank() == ctx.root_rank else torch.zeros_like(total)), None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, **options: Any
) -> torch.Tensor:
    """Return the root's tensor on all ranks."""
    _check_options(options)
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank)
    return result


# ---- parameters and objects ----------------------------------------------------------------------


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, **options: Any
) -> None:
    """Copy the root's state_dict(), named_parameters() or parameters() to all ranks."""
    _check_options(options)
    if isinstance(params, Mapping):
        tensors = [params[key] for key in sorted(params)]
    else:
        tensors = [param[1] if isinstance(param, tuple) else param for param in params]
    handles = [broadcast_async_(data, root_rank) for data in tensors if torch.is_tensor(data)]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, **options: Any
) -> None:
    """Copy the optimizer's state and options, such as the learning rate, from the root."""
    _check_options(options)
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: object, root_rank: int = 0, name: str | None = None, **options: Any
) -> Any:
    """Return the root's object on all ranks. It is pickled."""
    _check_options(options)
    _check_initialized()
    objects = [obj]
    dist.broadcast_object_list(objects, root_rank)
    return obj if rank() == root_rank else objects[0]


def allgather_object(obj: object, name: str | None = None, **options: Any) -> list[Any]:
    """Return all ranks' objects in rank order. They are pickled."""
    _check_options(options)
    objects: list[Any] = [None] * size()
    dist.all_gather_object(objects, obj)
    return objects
