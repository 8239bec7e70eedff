# SPDX-License-Identifier: Apache-2.0
"""tune(): which bucket size makes the steps of a DistributedDataParallel shortest.

    tuning = harp.torch.tune(ddp, apply=True)
    for batch in data:  # trains as before
        ...

DDP sends gradients in buckets. Small buckets start to travel earlier in the backward pass, large
ones cost less each, and only a measurement shows what pays: it depends on the model, the batch and
the network. ACSpeed searches for it in the same way.

Theory of operation. A hook before each forward pass measures the time since the one before. After
WARM_STEPS + steps of them it gives DDP a new Reducer with the next bucket size, as torch itself
does when it loads a pickled DDP. The first backward pass of a Reducer uses one bucket, and the
second forward pass arranges the buckets, so these steps do not count. Ranks exchange their times
at the end, so all of them choose the same size.
"""

import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_STEPS = 2
GAIN = 0.02  # a size that saves less than this share of a step is not better
MIB = 1 << 20
SMALLEST_MB = 0.25


def _why_fixed(ddp: DistributedDataParallel) -> str:
    """Why this DDP can't get a new Reducer; "": it can."""
    needed = ("_bucket_config", "_build_params_for_reducer", "_ddp_init_helper", "_comm_hooks")
    if not all(hasattr(ddp, name) for name in needed):
        return f"torch {torch.__version__} builds its buckets otherwise than torch 2.13"
    if ddp._use_python_reducer or ddp._delay_all_reduce_all_params:
        return "it has no Reducer"
    if ddp.mixed_precision is not None:
        return "mixed_precision keeps state in its Reducer"
    hook = ddp._get_ddp_logging_data().get("comm_hook", "")
    if hook and not ddp._comm_hooks:
        return f"its built-in hook {hook} can't be registered again"
    return ""


def _set_buckets(ddp: DistributedDataParallel, config: Any) -> None:
    """A new Reducer with this bucket size."""
    ddp._bucket_config = config
    ddp.bucket_bytes_cap = config.bucket_bytes_cap
    ddp.bucket_bytes_cap_list = list(config.per_bucket_bytes_caps)
    ddp.bucket_bytes_cap_default = config.first_bucket_bytes_cap < config.bucket_bytes_cap
    parameters, expect_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False  # as in a first iteration
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    for hook, state in ddp._comm_hooks:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)


def _gradient_bytes(ddp: DistributedDataParallel) -> int:
    return sum(p.numel() * p.element_size() for p in ddp.module.parameters() if p.requires_grad)


def _default_sizes(total_mb: float) -> list[float]:
    """One bucket, and halves of it down to sixteen."""
    sizes = (math.ceil(total_mb / parts * 100) / 100 for parts in (1, 2, 4, 8, 16))
    return sorted({max(SMALLEST_MB, size) for size in sizes})


@dataclass(frozen=True)
class Trial:
    """One bucket size: MiB, None for DDP's default; the median step in seconds, with its range."""

    bucket_cap_mb: float | None
    step_s: float
    least_s: float
    most_s: float


class Tuning:
    """What tune() measures. done: is it finished? Until then the other attributes are empty."""

    def __init__(
        self, ddp: DistributedDataParallel, apply: bool, sizes: Sequence[float], steps: int
    ) -> None:
        self._ddp, self._apply, self._steps = ddp, apply, steps
        self._own = ddp._bucket_config
        create = type(self._own).create
        # The DDP's own first: what is no better than it does not replace it.
        self._candidates = [(self._own_mb(), self._own)]
        self._candidates += [
            (size, create(size, None, False)) for size in sizes if size != self._candidates[0][0]
        ]
        self._times: list[list[float]] = [[]]
        self._started_s: float | None = None
        self._steps_seen = 0
        self._hook = ddp.register_forward_pre_hook(self._before_forward)
        self.done = False
        self.trials: list[Trial] = []
        self.kwargs: dict[str, float] = {}

    def _own_mb(self) -> float | None:
        if self._own.first_bucket_bytes_cap < self._own.bucket_bytes_cap:
            return None  # the default has a small first bucket
        mb: float = self._own.bucket_bytes_cap / MIB
        return mb

    def _before_forward(self, module: object, inputs: object) -> None:
        ddp = self._ddp
        if not (torch.is_grad_enabled() and ddp.require_backward_grad_sync):
            return  # evaluation, or a step that adds up gradients: part of the step in progress
        now_s = time.perf_counter()
        if self._started_s is not None:
            self._steps_seen += 1
            if self._steps_seen > WARM_STEPS:
                self._times[-1].append(now_s - self._started_s)
        if len(self._times[-1]) == self._steps:
            self._next()
        self._started_s = time.perf_counter()

    def _next(self) -> None:
        self._steps_seen = 0
        if len(self._times) < len(self._candidates):
            self._times.append([])
            _set_buckets(self._ddp, self._candidates[len(self._times) - 1][1])
        else:
            self._finish()

    def _finish(self) -> None:
        self._hook.remove()
        times = torch.tensor(self._times, dtype=torch.float64)
        if self._ddp.device_type != "cpu":
            times = times.to(self._ddp.device)
        # A step takes as long as on the slowest rank.
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self._ddp.process_group)
        self.trials = [
            Trial(mb, statistics.median(row), min(row), max(row))
            for (mb, _), row in zip(self._candidates, times.tolist(), strict=True)
        ]
        best = min(range(len(self.trials)), key=lambda index: self.trials[index].step_s)
        if self.trials[best].step_s > (1 - GAIN) * self.trials[0].step_s:
            best = 0
        size = self.trials[best].bucket_cap_mb
        self.kwargs = {} if size is None else {"bucket_cap_mb": size}
        _set_buckets(self._ddp, self._candidates[best if self._apply else 0][1])
        self._ddp = None  # it may end before this object
        self.done = True
        if dist.get_rank() == 0:
            print(self.report(), file=sys.stderr, flush=True)

    def report(self) -> str:
        if not self.done:
            return "harp: DDP's bucket sizes are being measured"
        lines = ["harp: step time of DDP by bucket size", "  MiB         ms  range"]
        for trial in self.trials:
            name = "default" if trial.bucket_cap_mb is None else f"{trial.bucket_cap_mb:g}"
            span = f"{trial.least_s * 1e3:.1f} to {trial.most_s * 1e3:.1f}"
            lines.append(f"  {name:<8} {trial.step_s * 1e3:>5.1f}  {span}")
        words = ", ".join(f"{key}={value:g}" for key, value in self.kwargs.items())
        if self.kwargs.get("bucket_cap_mb") == self.trials[0].bucket_cap_mb:
            lines.append("harp: no size is better than the present one, which stays")
        elif self._apply:
            lines.append(f"harp: DDP now has the buckets of {words}")
        else:
            lines.append(f"harp: DistributedDataParallel(model, {words}) is faster")
        return "\n".join(lines)


def tune(
    ddp: DistributedDataParallel,
    *,
    apply: bool = False,
    sizes_mb: Sequence[float] | None = None,
    steps: int = 5,
) -> Tuning:
    """Measure bucket sizes during the next training steps, and print which one pays.

    All ranks call it, after register_comm_hook(). Training goes on as before: bucket sizes change
    no result but the order of additions. At the end rank 0 prints a table.

    Parameters
    ----------
    ddp
        The model.
    apply
        Whether it keeps the best size; False: it gets its own back.
    sizes_mb
        Sizes in MiB, the same on all ranks; None: from one bucket to sixteen, and what it has.
    steps
        Steps that count for each size; each takes 2 more.

    Returns
    -------
    Tuning
        The measurement. When it is done, `kwargs` are DistributedDataParallel's for the best size.

    Raises
    ------
    TypeError
        `ddp` is something else.
    ValueError
        A number is out of range, or the buckets of this DDP can't be changed.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"tune: {type(ddp).__name__} is not a DistributedDataParallel")
    if steps < 1:
        raise ValueError(f"tune: steps={steps} measures nothing: give 1 or more")
    sizes = _default_sizes(_gradient_bytes(ddp) / MIB) if sizes_mb is None else list(sizes_mb)
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"tune: sizes_mb={sizes} are not sizes above 0 MiB")
    reason = _why_fixed(ddp)
    if reason:
        words = ", ".join(f"{size:g}" for size in sizes)
        raise ValueError(
            f"tune: the buckets of this DDP can't be changed in place: {reason}; compare "
            f"DistributedDataParallel(model, bucket_cap_mb=SIZE) for the sizes {words}"
        )
    return Tuning(ddp, apply, sizes, steps)
