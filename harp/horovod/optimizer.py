# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer whose step() uses the average of all ranks' gradients.

Theory of operation. Each parameter belongs to a bucket of parameters of one type. Buckets are in
reverse order of the parameters, which is roughly the order in which the backward pass completes
gradients. A bucket is sent when all its gradients are complete and all earlier buckets were sent,
so all ranks send the buckets in the same order. step() sends the remaining buckets, and copies the
results back.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

# Horovod's variable. The default is smaller than Horovod's, so that the first bucket is sent early.
FUSION, FUSION_BYTES = "HOROVOD_FUSION_THRESHOLD", 16 << 20


def _fusion_bytes() -> int:
    text = os.environ.get(FUSION, "")
    try:
        return int(text) if text else FUSION_BYTES
    except ValueError:
        raise ValueError(f"{FUSION}={text} is not a number of bytes") from None


class Compressor:
    """A compression of gradients. The base class does not compress."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the reduced tensor in its original type."""
        return tensor


class Float16Compressor(Compressor):
    """Sends and adds float16. The wire formats of harp.torch.Options, in contrast, add float32."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return floating-point tensors as float16, others unchanged."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """Return the tensor in the type `context`."""
        return tensor.to(context)


class Compression:
    none = Compressor
    fp16 = Float16Compressor


class _Bucket:
    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        self.params = params
        self.missing = len(params)  # gradients that are not complete
        self.work: Any = None
        self.flat: Any = None
        self.context: Any = None


def _make_buckets(params: list[torch.nn.Parameter]) -> list[_Bucket]:
    buckets: list[list[torch.nn.Parameter]] = []
    used, limit = 0, _fusion_bytes()
    for param in reversed(params):
        count = param.numel() * param.element_size()
        if not buckets or param.dtype != buckets[-1][0].dtype or used + count > limit:
            buckets.append([])
            used = 0
        buckets[-1].append(param)
        used += count
    return [_Bucket(bucket) for bucket in buckets]


class _Exchange:
    """Averages the gradients of an optimizer over all ranks."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        compression: type[Compressor],
        passes: int,
        op: Any,
        predivide: float,
        sparse_as_dense: bool,
    ) -> None:
        self.compression, self.passes, self.op = compression, passes, op
        self.predivide, self.sparse_as_dense = predivide, sparse_as_dense
        self.should_synchronize = True
        self.buckets = _make_buckets(params)
        self.sent_count = 0  # buckets
        self.backwards: dict[torch.nn.Parameter, int] = dict.fromkeys(params, 0)  # since step()
        self.bucket_of = {param: bucket for bucket in self.buckets for param in bucket.params}
        if dist.get_world_size() > 1:
            for param in params:
                param.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, param: torch.nn.Parameter) -> None:
        if self.backwards[param] == self.passes:
            raise RuntimeError(
                f"more than {self.passes} backward passes before optimizer.step(): pass their "
                "number to DistributedOptimizer as backward_passes_per_step"
            )
        self.backwards[param] += 1
        if self.backwards[param] < self.passes:
            return
        self.bucket_of[param].missing -= 1
        while self.sent_count < len(self.buckets) and self.buckets[self.sent_count].missing == 0:
            self.send()

    def gradient(self, param: torch.nn.Parameter) -> torch.Tensor:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        if param.grad.is_sparse:
            if not self.sparse_as_dense:
                raise ValueError(
                    "DistributedOptimizer: a gradient is sparse: pass sparse_as_dense=True"
                )
            param.grad = param.grad.to_dense()
        return param.grad

    def send(self) -> None:
        bucket = self.buckets[self.sent_count]
        self.sent_count += 1
        flat = torch.cat([self.gradient(param).detach().reshape(-1) for param in bucket.params])
        if self.predivide != 1.0:
            flat.div_(self.predivide)
        bucket.flat, bucket.context = self.compression.compress(flat)
        bucket.work = dist.all_reduce(bucket.flat, self.op, async_op=True)

    def synchronize(self) -> None:
        while self.sent_count < len(self.buckets):
            self.send()
        for bucket in self.buckets:
            bucket.work.wait()
            flat = self.compression.decompress(bucket.flat, bucket.context)
            if self.predivide != 1.0:
                flat = flat * self.predivide
            parts = flat.split([param.numel() for param in bucket.params])
            for param, part in zip(bucket.params, parts, strict=True):
                param.grad.copy_(part.view_as(param))
        self.reset()

    def reset(self) -> None:
        self.sent_count = 0
        for bucket in self.buckets:
            bucket.missing, bucket.work, bucket.flat = len(bucket.params), None, None
        self.backwards = dict.fromkeys(self.backwards, 0)


class _Distributed:
    _exchange: _Exchange

    def synchronize(self) -> None:
        """Wait for the averaged gradients, for example to clip them before step()."""
        if dist.get_world_size() > 1:
            self._exchange.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make step() in this context use the gradients as they are, after synchronize()."""
        self._exchange.should_synchronize = False
        try:
            yield
        finally:
            self._exchange.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many backward passes accumulate gradients before step()."""
        self._exchange.passes = passes

    def step(self, closure: Any = None) -> Any:
        """Wait for the averaged gradients, then run the optimizer's step."""
        if self._exchange.should_synchronize:
            self.synchronize()
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Fails between backward() and step(): gradients may be in transit."""
        if any(self._exchange.backwards.values()):
            raise RuntimeError(
                "optimizer.zero_grad() between backward() and step(): call step() or "
                "synchronize() first"
            )
        super().zero_grad(set_to_none)  # type: ignore[misc]


def _check_names(
    params: list[torch.nn.Parameter], named: Iterable[tuple[str, torch.nn.Parameter]] | None
) -> None:
    if named is None:
        return
    pairs = list(named)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("named_parameters must be pairs, as from model.named_parameters()")
    names = [name for name, _ in pairs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"named_parameters has duplicate names: {', '.join(duplicates)}")
    named_ids = {id(param) for _, param in pairs}
    unnamed = sum(id(param) not in named_ids for param in params)
    if unnamed:
        raise ValueError(f"named_parameters lacks {unnamed} parameters of the optimizer")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = dist.ReduceOp.AVG,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: object = None,
    sparse_as_dense: bool = False,
    process_set: object = None,
) -> Any:
    """Return an optimizer whose step() first averages the gradients of all ranks.

    Gradients are sent during the backward pass, in buckets of HOROVOD_FUSION_THRESHOLD bytes (16
    MiB). num_groups and groups are ignored, because buckets replace them. `optimizer` shares its
    state with the new one and must not be used any more.
    """
    if not dist.is_initialized():
        raise ValueError("harp.horovod is not initialized: call hvd.init() first")
    if process_set is not None:
        raise ValueError("harp.horovod has no process sets: use torch.distributed.new_group")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} is not 1 or more")
    if gradient_predivide_factor != 1.0 and op != dist.ReduceOp.AVG:
        raise ValueError("gradient_predivide_factor requires op=Average")
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    _check_names(params, named_parameters)
    kind: Any = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    distributed = kind.__new__(kind)
    distributed.__dict__.update(optimizer.__dict__)
    distributed.__dict__.pop("step", None)  # a scheduler's wrapper of the old optimizer's step()
    distributed._exchange = _Exchange(
        params,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
    )
    return distributed
