# SPDX-License-Identifier: Apache-2.0
"""tune(): measures which bucket size minimizes DistributedDataParallel's step time.

    tuning = harp.torch.tune(ddp, apply=True)
    for batch in data:  # trains as before
        ...

DDP sends gradients in buckets. The first small bucket is sent earlier in the backward pass, while
large buckets have less overhead. The best size depends on the model, the batch and the network, so
it must be measured, as in ACSpeed.

Theory of operation. A hook before each forward pass measures the time since the previous one.
After WARM_STEPS + steps forward passes, it gives DDP a new Reducer with the next bucket size, as
torch does when it loads a pickled DDP. The first backward pass of a Reducer uses one bucket, and
the second forward pass arranges the buckets, so the warm steps do not count. At the end, the ranks
exchange their times, so all of them choose the same size.
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
GAIN = 0.02  # a better size saves at least this share of the step time
MIB = 1 << 20
SMALLEST_MB = 0.25


def _unsupported_reason(ddp: DistributedDataParallel) -> str:
    """Return why this DDP cannot get a new Reducer; "": it can."""
    needed = ("_bucket_config", "_build_params_for_reducer", "_ddp_init_helper", "_comm_hooks")
    if not all(hasattr(ddp, name) for name in needed):
        return f"torch {torch.__version__} builds buckets in another way than torch 2.13"
    if ddp._use_python_reducer or ddp._delay_all_reduce_all_params:
        return "it has no Reducer"
    if ddp.mixed_precision is not None:
        return "mixed_precision keeps state in its Reducer"
    hook = ddp._get_ddp_logging_data().get("comm_hook", "")
    if hook and not ddp._comm_hooks:
        return f"its built-in hook {hook} cannot be registered again"
    return ""


def _set_buckets(ddp: DistributedDataParallel, config: Any) -> None:
    """Give DDP a new Reducer with this bucket size."""
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
    """Return the sizes of 1, 2, 4, 8 and 16 buckets."""
    sizes = (math.ceil(total_mb / parts * 100) / 100 for parts in (1, 2, 4, 8, 16))
    return sorted({max(SMALLEST_MB, size) for size in sizes})


@dataclass(frozen=True)
class Trial:
    """Step times of one bucket size (None: DDP's default): median, minimum and maximum."""

    bucket_cap_mb: float | None
    step_s: float
    least_s: float
    most_s: float


class Tuning:
    """A measurement of tune(). Until `done`, its trials and kwargs are empty."""

    def __init__(
        self, ddp: DistributedDataParallel, apply: bool, sizes: Sequence[float], steps: int
    ) -> None:
        self._ddp, self._apply, self._steps = ddp, apply, steps
        self._original = ddp._bucket_config
        create = type(self._original).create
        # The original size is first: a size that is not better does not replace it.
        self._candidates = [(self._original_mb(), self._original)]
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

    def _original_mb(self) -> float | None:
        if self._original.first_bucket_bytes_cap < self._original.bucket_bytes_cap:
            return None  # the default has a small first bucket
        mb: float = self._original.bucket_bytes_cap / MIB
        return mb

    def _before_forward(self, module: object, inputs: object) -> None:
        ddp = self._ddp
        if not (torch.is_grad_enabled() and ddp.require_backward_grad_sync):
            return  # evaluation or gradient accumulation: part of the current step
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
        # The slowest rank determines the time of a step.
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
        self._ddp = None  # the Tuning may outlive it
        self.done = True
        if dist.get_rank() == 0:
            print(self.report(), file=sys.stderr, flush=True)

    def report(self) -> str:
        if not self.done:
            return "harp: the measurement of DDP's bucket sizes is in progress"
        lines = ["harp: step time of DDP by bucket size", "  MiB         ms  range"]
        for trial in self.trials:
            name = "default" if trial.bucket_cap_mb is None else f"{trial.bucket_cap_mb:g}"
            span = f"{trial.least_s * 1e3:.1f} to {trial.most_s * 1e3:.1f}"
            lines.append(f"  {name:<8} {trial.step_s * 1e3:>5.1f}  {span}")
        argument = ", ".join(f"{key}={value:g}" for key, value in self.kwargs.items())
        if self.kwargs.get("bucket_cap_mb") == self.trials[0].bucket_cap_mb:
            lines.append("harp: no size is better than the current one, which DDP keeps")
        elif self._apply:
            lines.append(f"harp: DDP now uses {argument}")
        else:
            lines.append(f"harp: DistributedDataParallel(model, {argument}) is faster")
        return "\n".join(lines)


def tune(
    ddp: DistributedDataParallel,
    *,
    apply: bool = False,
    sizes_mb: Sequence[float] | None = None,
    steps: int = 5,
) -> Tuning:
    """Measure bucket sizes during the next training steps and print the step times.

    All ranks call it, after register_comm_hook(). Training continues: the bucket size only changes
    the order of additions. At the end, rank 0 prints a table.

    Parameters
    ----------
    ddp
        The model.
    apply
        Whether the model keeps the best size; False: it gets its original size back.
    sizes_mb
        Sizes in MiB, the same on all ranks; None: those of 1 to 16 buckets. The original size is
        always measured, too.
    steps
        Steps that count for each size, after 2 that do not.

    Returns
    -------
    Tuning
        The measurement. When it is done, `kwargs` are DistributedDataParallel's arguments for the
        best size.

    Raises
    ------
    TypeError
        `ddp` is not a DistributedDataParallel.
    ValueError
        A number is out of range, or tune() cannot change the buckets of this DDP.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"tune: {type(ddp).__name__} is not a DistributedDataParallel")
    if steps < 1:
        raise ValueError(f"tune: steps={steps} is not 1 or more")
    sizes = _default_sizes(_gradient_bytes(ddp) / MIB) if sizes_mb is None else list(sizes_mb)
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"tune: sizes_mb={sizes}: sizes must be above 0 MiB")
    reason = _unsupported_reason(ddp)
    if reason:
        candidates = ", ".join(f"{size:g}" for size in sizes)
        raise ValueError(
            f"tune: cannot change the buckets of this DDP: {reason}; compare "
            f"DistributedDataParallel(model, bucket_cap_mb=SIZE) for the sizes {candidates}"
        )
    return Tuning(ddp, apply, sizes, steps)
