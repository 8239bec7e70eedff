# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for PyTorch, over the harp backend of torch.distributed.

    import harp.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

`python -m harp.horovod train.py` runs a script that imports horovod.torch. CPU tensors only. All
ranks call the same operations in the same order: names of operations do not match them up.
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
    words = f"harp.horovod needs PyTorch ({error}): pip install 'harp-nccl[torch]'"
    raise ImportError(words, name=__name__) from error

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

# Names of Horovod's that are not here, and what to do without them.
_ABSENT = {
    "Adasum": "use Average, and scale the learning rate with hvd.size()",
    "SyncBatchNorm": "use torch.nn.SyncBatchNorm, or batch statistics of each rank",
    "alltoall": "use torch.distributed.all_to_all_single",
    "alltoall_async": "use torch.distributed.all_to_all_single with async_op=True",
    "barrier": "use torch.distributed.barrier",
    "cross_rank": "use hvd.rank() // hvd.local_size()",
    "cross_size": "use hvd.size() // hvd.local_size()",
    "elastic": "use torchrun --max-restarts",
    "global_process_set": "all operations are of all ranks",
    "remove_process_set": "use torch.distributed.destroy_process_group",
    "grouped_allgather": "call allgather for each tensor",
    "grouped_allgather_async": "call allgather_async for each tensor",
    "is_homogeneous": "compare hvd.allgather_object(hvd.local_size())",
    "join": "give all ranks the same number of batches",
    "reducescatter": "use torch.distributed.reduce_scatter_tensor",
    "reducescatter_async": "use torch.distributed.reduce_scatter_tensor with async_op=True",
    "sparse_allreduce_async": "use dense gradients: DistributedOptimizer(sparse_as_dense=True)",
    **dict.fromkeys(("ccl_built", "ddl_built"), "harp.horovod is built on harp alone"),
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
    if name in _ABSENT:
        raise AttributeError(f"harp.horovod has no {name}: {_ABSENT[name]}", name=name)
    raise AttributeError(f"neither harp.horovod nor Horovod has {name}", name=name)


# ---- the job ------------------------------------------------------------------------------------

_owns_group = False
_local: tuple[int, int] | None = None  # rank and size on this host; None: not initialized


def _host_id() -> str:
    """Equal on ranks of one host. Containers and network namespaces are hosts of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"


def init(comm: object = None, process_sets: object = None) -> None:
    """Joins the job that torchrun, MPI or Slurm started; without them, a world of one.

    A process group that exists already is used.
    """
    global _owns_group, _local
    if comm is not None:
        raise ValueError("hvd.init: comm is for MPI: let torchrun, mpirun or srun set the ranks")
    if process_sets:
        raise ValueError("hvd.init: there are no process sets: use torch.distributed.new_group")
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
    """Leaves the job. init() may follow."""
    global _owns_group, _local
    _local = None
    if _owns_group:
        _owns_group = False
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Was init() called, and shutdown() not?"""
    return _local is not None


def _initialized() -> tuple[int, int]:
    if _local is None:
        raise ValueError("harp.horovod is not initialized: call hvd.init() first")
    return _local


def rank() -> int:
    """This process's number in the job."""
    _initialized()
    return int(dist.get_rank())


def size() -> int:
    """Processes of the job."""
    _initialized()
    return int(dist.get_world_size())


def local_rank() -> int:
    """This process's number on its host."""
    return _initialized()[0]


def local_size() -> int:
    """Processes on this host."""
    return _initialized()[1]


def _no() -> bool:
    """Not in harp.horovod."""
    return False


mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = _no
nccl_built = cuda_built = rocm_built = _no

# ---- operations ----------------------------------------------------------------------------------


class Handle:
    """An operation in progress, for poll() and synchronize()."""

    def __init__(self, work: Any, result: Any, finish: Any = None) -> None:
        self._work, self._result, self._finish = work, result, finish

    def poll(self) -> bool:
        """Is it done?"""
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> Any:
        """The result, when it is done."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if self._finish is not None:
            self._result, self._finish = self._finish(), None
        return self._result


def poll(handle: Handle) -> bool:
    """Is the operation done? synchronize() then returns at once."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """The operation's result, when it is done."""
    return handle.wait()


def _check(tensor: torch.Tensor) -> None:
    _initialized()
    if not tensor.device.type == "cpu":
        raise ValueError(f"harp.horovod moves CPU tensors, not those of {tensor.device}")


def _op(op: Any, average: bool | None) -> Any:
    if average is not None:
        if op is not None:
            raise ValueError("hvd.allreduce: give op, and not average, which it replaces")
        return Average if average else Sum
    return Average if op is None else op


def _no_process_set(words: Mapping[str, Any]) -> None:
    unknown = set(words) - {"process_set", "ignore_name_scope"}
    if unknown:
        raise TypeError(f"harp.horovod: unexpected arguments: {', '.join(sorted(unknown))}")
    if words.get("process_set") is not None:
        raise ValueError("harp.horovod has no process sets: use torch.distributed.new_group")


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **words: Any,
) -> Handle:
    _no_process_set(words)
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


def allreduce_(tensor: torch.Tensor, *args: Any, **words: Any) -> torch.Tensor:
    """The reduction of all ranks' tensors, in place."""
    result: torch.Tensor = allreduce_async_(tensor, *args, **words).wait()
    return result


def allreduce_async(tensor: torch.Tensor, *args: Any, **words: Any) -> Handle:
    return allreduce_async_(tensor.detach().clone(), *args, **words)


class _AllReduce(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, words: Any) -> torch.Tensor:
        ctx.words = words
        result: torch.Tensor = allreduce_async(tensor, **words).wait()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.words["op"] not in (Average, Sum):
            raise ValueError("hvd.allreduce: only Sum and Average have gradients")
        return allreduce_async(gradient, **ctx.words).wait(), None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **words: Any,
) -> torch.Tensor:
    """The reduction of all ranks' tensors, by default their average. Gradients pass through it."""
    _no_process_set(words)
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


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *args: Any, **words: Any) -> Handle:
    tensors = list(tensors)
    for tensor in tensors:
        _check(tensor)
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.detach())
    handles = []
    for group in by_type.values():
        joined = torch.cat([tensor.reshape(-1) for tensor in group])
        handles.append((allreduce_async_(joined, *args, **words), group))

    def spread() -> list[torch.Tensor]:
        for handle, group in handles:
            parts = handle.wait().split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        return tensors

    return _Several([handle for handle, _ in handles], spread)


class _Several(Handle):
    def __init__(self, handles: list[Handle], finish: Any) -> None:
        super().__init__(None, None, finish)
        self._handles = handles

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], *args: Any, **words: Any
) -> list[torch.Tensor]:
    """allreduce_() of several tensors, as one operation for each type."""
    result: list[torch.Tensor] = grouped_allreduce_async_(tensors, *args, **words).wait()
    return result


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *args: Any, **words: Any) -> Handle:
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(copies, *args, **words)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: Any = None,
    **words: Any,
) -> list[torch.Tensor]:
    """allreduce() of several tensors, as one operation for each type. It has no gradient."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = grouped_allreduce_async([pair[0] for pair in pairs], average, name, op, **words)
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(handle.wait(), pairs, strict=True)
    ]


def allgather_async(tensor: torch.Tensor, name: str | None = None, **words: Any) -> Handle:
    """Starts allgather(). The ranks' sizes are exchanged at once."""
    _no_process_set(words)
    _check(tensor)
    data = tensor.detach().contiguous()
    if data.dim() == 0:
        raise ValueError("hvd.allgather: a tensor without dimensions has no first one to join")
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


def allgather(tensor: torch.Tensor, name: str | None = None, **words: Any) -> torch.Tensor:
    """All ranks' tensors, joined along the first dimension, whose size may differ."""
    _no_process_set(words)
    result: torch.Tensor = _AllGather.apply(tensor)
    return result


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, **words: Any
) -> Handle:
    _no_process_set(words)
    _check(tensor)
    if not 0 <= root_rank < size():
        raise ValueError(f"hvd.broadcast: root_rank {root_rank} is not 0 to {size() - 1}")
    return Handle(dist.broadcast(tensor.detach(), root_rank, async_op=True), tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int, *args: Any, **words: Any) -> torch.Tensor:
    """The root's tensor on all ranks, in place."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, *args, **words).wait()
    return result


def broadcast_async(tensor: torch.Tensor, root_rank: int, *args: Any, **words: Any) -> Handle:
    return broadcast_async_(tensor.detach().clone(), root_rank, *args, **words)


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
    tensor: torch.Tensor, root_rank: int, name: str | None = None, **words: Any
) -> torch.Tensor:
    """The root's tensor on all ranks."""
    _no_process_set(words)
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank)
    return result


# ---- parameters and objects ----------------------------------------------------------------------


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, **words: Any
) -> None:
    """Gives all ranks the root's parameters: a state_dict(), named_parameters() or parameters()."""
    _no_process_set(words)
    if isinstance(params, Mapping):
        tensors = [params[key] for key in sorted(params)]
    else:
        tensors = [param[1] if isinstance(param, tuple) else param for param in params]
    handles = [broadcast_async_(data, root_rank) for data in tensors if torch.is_tensor(data)]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, **words: Any
) -> None:
    """Gives all ranks the root's optimizer state and options, as the learning rate."""
    _no_process_set(words)
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: object, root_rank: int = 0, name: str | None = None, **words: Any) -> Any:
    """The root's object, pickled, on all ranks."""
    _no_process_set(words)
    _initialized()
    objects = [obj]
    dist.broadcast_object_list(objects, root_rank)
    return obj if rank() == root_rank else objects[0]


def allgather_object(obj: object, name: str | None = None, **words: Any) -> list[Any]:
    """All ranks' objects, pickled, in rank order."""
    _no_process_set(words)
    objects: list[Any] = [None] * size()
    dist.all_gather_object(objects, obj)
    return objects
