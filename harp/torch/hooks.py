# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DistributedDataParallel.

    ddp.register_comm_hook(None, hooks.topk(0.01))

Hooks of torch work over HARP unchanged. See `ordered` for those that start further operations.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from harp.torch import building

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

# With a larger share, a warm-up exchanges all gradients: indices cost bytes, too.
_SHARE_MAX = 0.25


def largest(
    gradients: torch.Tensor, count: int, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the indices (int32, ascending) of the `count` largest magnitudes.

    With a residual, gradients are added to it first, and its elements are compared. NaN is as large
    as infinity. One pass in C++: torch.topk() takes 115 ms for 6.5 million numbers.
    """
    indices: torch.Tensor = building.module().largest(gradients, count, residual)
    return indices


class _TopK:
    """Sends the largest gradients of each bucket and keeps what it did not send for later."""

    def __init__(
        self, ratio: float, error_feedback: bool, warmup_steps: int, group: dist.ProcessGroup | None
    ) -> None:
        self.ratio, self.error_feedback, self.group = ratio, error_feedback, group
        self.warmup_steps, self.step = warmup_steps, 0
        # By parameter, as DDP rebuilds its buckets after the first step: views of the flats.
        self.residuals = WeakTensorKeyDictionary()
        self.flats: dict[int, tuple[list[int], torch.Tensor]] = {}  # by bucket

    def _share(self, bucket: dist.GradBucket) -> float:
        """Of the bucket's gradients in this step: all at first, the ratio after the warm-up."""
        warmed = min(1.0, self.step / self.warmup_steps) if self.warmup_steps else 1.0
        if bucket.is_last():
            self.step += 1
        share: float = self.ratio**warmed
        return share if warmed == 1 or share <= _SHARE_MAX else 1.0

    def _residual(self, bucket: dist.GradBucket) -> torch.Tensor:
        """Of the bucket's gradients, in their order."""
        parameters, buffer = bucket.parameters(), bucket.buffer()
        layout = [id(parameter) for parameter in parameters]
        known, flat = self.flats.get(bucket.index(), (None, None))
        if flat is not None and known == layout:
            return flat
        flat = torch.zeros_like(buffer)
        for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
            start = gradient.storage_offset() - buffer.storage_offset()
            view = flat.narrow(0, start, gradient.numel())
            if parameter in self.residuals:
                view.copy_(self.residuals[parameter])
            self.residuals[parameter] = view
        self.flats[bucket.index()] = (layout, flat)
        return flat

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        world = dist.get_world_size(self.group)
        share = self._share(bucket)
        if share == 1:
            whole = dist.all_reduce(buffer.div_(world), group=self.group, async_op=True)
            all_sent: torch.futures.Future[torch.Tensor] = whole.get_future().then(
                lambda future: future.value()[0]
            )
            return all_sent
        count = max(1, int(buffer.numel() * share))
        residual = self._residual(bucket) if self.error_feedback else None
        indices = largest(buffer, count, residual)
        values = (buffer if residual is None else residual).index_select(0, indices).div_(world)
        if residual is not None:
            residual.index_fill_(0, indices.long(), 0)
        # int32 indices: half of the bytes of int64, and no bucket has 2^31 elements.
        packed = torch.cat((indices.view(torch.uint8), values.view(torch.uint8)))
        gathered = torch.empty(world * packed.numel(), dtype=torch.uint8)
        work = dist.all_gather_into_tensor(gathered, packed, self.group, async_op=True)
        buffer.zero_()  # while the messages are under way

        def unpack(future: torch.futures.Future[Any]) -> torch.Tensor:
            future.value()  # raises what failed
            index_bytes = 4 * count
            for part in gathered.view(world, -1):
                where = part[:index_bytes].clone().view(torch.int32)
                buffer.index_add_(0, where, part[index_bytes:].clone().view(buffer.dtype))
            return buffer

        future: torch.futures.Future[torch.Tensor] = work.get_future().then(unpack)
        return future


def topk(
    ratio: float,
    *,
    error_feedback: bool = True,
    warmup_steps: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Hook:
    """Make a hook that exchanges the largest of each bucket's gradients, by magnitude.

    One hook serves one model. All ranks add in rank order, so their results are equal bit for bit.

    Parameters
    ----------
    ratio
        The share to exchange, above 0 and at most 1.
    error_feedback
        Whether what was not sent is added to the gradient of the next step (Stich et al.,
        "Sparsified SGD with Memory", 2018); without it, training loses those gradients.
    warmup_steps
        Steps in which the share falls from all gradients to the ratio, exponentially (Lin et al.,
        "Deep Gradient Compression", 2018), as the first gradients matter most.
    group
        The process group; None: the world.

    Returns
    -------
    callable
        The hook, for register_comm_hook(None, hook).

    Raises
    ------
    ValueError
        A number is out of range.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio {ratio} is not above 0 and at most 1, as in 0.01 for one percent")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps {warmup_steps} is negative: give 0 for no warm-up")
    exchange = _TopK(ratio, error_feedback, warmup_steps, group)

    def topk_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return exchange(bucket)

    return topk_hook


def ordered(hook: Hook) -> Hook:
    """Return the same hook, which exchanges one bucket after another.

    A hook whose callbacks start further operations, as torch's PowerSGD does, starts them in an
    order that differs between ranks when several buckets are in progress on the CPU.
    """

    def wait(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return wait
