# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer whose step() uses the average of all ranks' gradients.

Theory of operation. Parameters are put into buckets of one type each, in the reverse of their
order, which is about the order in which the backward pass completes gradients. A bucket is sent
when the gradients of all its parameters are complete and the buckets before it were sent, so all
ranks send the same buckets in the same order. step() sends the rest, and copies the results back.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

# Horovod's variable. Smaller buckets than its default, so that the first ones leave early.
FUSION, FUSION_BYTES = "HOROVOD_FUSION_THRESHOLD", 16 << 20


def _fusion_bytes() -> int:
    text = os.environ.get(FUSION, "")
    try:
        return int(text) if text else FUSION_BYTES
    except ValueError:
        raise ValueError(f"{FUSION}={text} is no number of bytes") from None


class Compressor:
    """Two functions: compress() returns what travels and what decompress() needs."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """As it is."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """As it came."""
        return tensor


class Float16Compressor(Compressor):
    """Sends and adds as float16. The wire format of harp.torch.Options adds as float32."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Rounds floating-point tensors."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """In the type that it had."""
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


def _cut(params: list[torch.nn.Parameter]) -> list[_Bucket]:
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
    """The gradients of one optimizer, on their way."""

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
        self.buckets = _cut(params)
        self.sent = 0  # buckets
        self.seen: dict[torch.nn.Parameter, int] = dict.fromkeys(params, 0)  # backward passes
        self.bucket_of = {param: bucket for bucket in self.buckets for param in bucket.params}
        if dist.get_world_size() > 1:
            for param in params:
                param.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, param: torch.nn.Parameter) -> None:
        if self.seen[param] == self.passes:
            raise RuntimeError(
                f"more than {self.passes} backward passes before optimizer.step(): give "
                "DistributedOptimizer their number as backward_passes_per_step"
            )
        self.seen[param] += 1
        if self.seen[param] < self.passes:
            return
        self.bucket_of[param].missing -= 1
        while self.sent < len(self.buckets) and self.buckets[self.sent].missing == 0:
            self.send()

    def gradient(self, param: torch.nn.Parameter) -> torch.Tensor:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        if param.grad.is_sparse:
            if not self.sparse_as_dense:
                raise ValueError(
                    "DistributedOptimizer: a gradient is sparse: give sparse_as_dense=True"
                )
            param.grad = param.grad.to_dense()
        return param.grad

    def send(self) -> None:
        bucket = self.buckets[self.sent]
        self.sent += 1
        flat = torch.cat([self.gradient(param).detach().reshape(-1) for param in bucket.params])
        if self.predivide != 1.0:
            flat.div_(self.predivide)
        short, bucket.context = self.compression.compress(flat)
        bucket.flat = short
        bucket.work = dist.all_reduce(short, self.op, async_op=True)

    def synchronize(self) -> None:
        while self.sent < len(self.buckets):
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
        self.sent = 0
        for bucket in self.buckets:
            bucket.missing, bucket.work, bucket.flat = len(bucket.params), None, None
        self.seen = dict.fromkeys(self.seen, 0)


class _Distributed:
    _exchange: _Exchange

    def synchronize(self) -> None:
        """Waits for the gradients of all ranks, as for clipping them before step()."""
        if dist.get_world_size() > 1:
            self._exchange.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() in this context uses the gradients that synchronize() has brought."""
        self._exchange.should_synchronize = False
        try:
            yield
        finally:
            self._exchange.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up their gradients before step()."""
        self._exchange.passes = passes

    def step(self, closure: Any = None) -> Any:
        """Waits for the gradients of all ranks, then does the optimizer's step."""
        if self._exchange.should_synchronize:
            self.synchronize()
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Refused between backward() and step(): gradients may travel."""
        if any(self._exchange.seen.values()):
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
        raise ValueError("named_parameters are pairs, as model.named_parameters() gives them")
    names = [name for name, _ in pairs]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValueError(f"named_parameters has a name twice: {', '.join(double)}")
    known = {id(param) for _, param in pairs}
    unnamed = sum(id(param) not in known for param in params)
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
    """The optimizer, whose step() first averages the gradients of all ranks.

    Gradients travel during the backward pass, in buckets of HOROVOD_FUSION_THRESHOLD bytes (16
    MiB). num_groups and groups do not matter: buckets do their part. The optimizer that was given
    shares its state with the new one and must not be used further.
    """
    if not dist.is_initialized():
        raise ValueError("harp.horovod is not initialized: call hvd.init() first")
    if process_set is not None:
        raise ValueError("harp.horovod has no process sets: use torch.distributed.new_group")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} is not 1 or more")
    if gradient_predivide_factor != 1.0 and op != dist.ReduceOp.AVG:
        raise ValueError("gradient_predivide_factor is for op=Average")
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    _check_names(params, named_parameters)
    kind: Any = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    found = kind.__new__(kind)
    found.__dict__.update(optimizer.__dict__)
    found.__dict__.pop("step", None)  # a scheduler's wrapper of the old optimizer's
    found._exchange = _Exchange(
        params,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
    )
    return found
