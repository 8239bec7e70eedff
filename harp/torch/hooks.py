# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DistributedDataParallel.

    ddp.register_comm_hook(None, hooks.topk(0.01))

torch's hooks work unchanged over HARP. Those that start further operations need `ordered`.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from harp.torch import building

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

# In a warm-up, larger shares are sent as all gradients, because indices cost bytes, too.
_SHARE_MAX = 0.25


def largest(
    gradients: torch.Tensor, count: int, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the indices (int32, ascending) of the `count` largest magnitudes.

    With a residual, this adds the gradients to it and compares its elements. NaN counts as
    infinity. torch.topk() is slower: 115 ms for 6.5 million numbers.
    """
    indices: torch.Tensor = building.module().largest(gradients, count, residual)
    return indices


class _TopK:
    """Sends the largest gradients of each bucket and adds the others to a residual."""

    def __init__(
        self, ratio: float, error_feedback: bool, warmup_steps: int, group: dist.ProcessGroup | None
    ) -> None:
        self.ratio, self.error_feedback, self.group = ratio, error_feedback, group
        self.warmup_steps, self.step = warmup_steps, 0
        # Views of `flats`, by parameter, because DDP rebuilds its buckets after the first step.
        self.residuals = WeakTensorKeyDictionary()
        self.flats: dict[int, tuple[list[int], torch.Tensor]] = {}  # by bucket: layout, residual

    def _share(self, bucket: dist.GradBucket) -> float:
        """Return the share of gradients to send: 1 at first, the ratio after the warm-up."""
        progress = min(1.0, self.step / self.warmup_steps) if self.warmup_steps else 1.0
        if bucket.is_last():
            self.step += 1
        share: float = self.ratio**progress
        return share if progress == 1 or share <= _SHARE_MAX else 1.0

    def _residual(self, bucket: dist.GradBucket) -> torch.Tensor:
        """Return the residual of the bucket's gradients, in the bucket's layout."""
        parameters, buffer = bucket.parameters(), bucket.buffer()
        layout = [id(parameter) for parameter in parameters]
        old_layout, flat = self.flats.get(bucket.index(), (None, None))
        if flat is not None and old_layout == layout:
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
            reduction = dist.all_reduce(buffer.div_(world), group=self.group, async_op=True)
            average: torch.futures.Future[torch.Tensor] = reduction.get_future().then(
                lambda future: future.value()[0]
            )
            return average
        count = max(1, int(buffer.numel() * share))
        residual = self._residual(bucket) if self.error_feedback else None
        indices = largest(buffer, count, residual)
        values = (buffer if residual is None else residual).index_select(0, indices).div_(world)
        if residual is not None:
            residual.index_fill_(0, indices.long(), 0)
        # int32 halves the bytes of indices; no bucket has 2^31 elements.
        packed = torch.cat((indices.view(torch.uint8), values.view(torch.uint8)))
        gathered = torch.empty(world * packed.numel(), dtype=torch.uint8)
        work = dist.all_gather_into_tensor(gathered, packed, self.group, async_op=True)
        buffer.zero_()  # while the messages are in transit

        def unpack(future: torch.futures.Future[Any]) -> torch.Tensor:
            future.value()  # raises the operation's error
            index_bytes = 4 * count
            for part in gathered.view(world, -1):
                sent = part[:index_bytes].clone().view(torch.int32)
                buffer.index_add_(0, sent, part[index_bytes:].clone().view(buffer.dtype))
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
    """Return a hook that exchanges the gradients of each bucket with the largest magnitudes.

    A hook is for one model. All ranks add in rank order, so their results are equal bit for bit.

    Parameters
    ----------
    ratio
        The share to exchange, above 0 and at most 1.
    error_feedback
        Whether to add the gradients that were not sent to those of the next step (Stich et al.,
        "Sparsified SGD with Memory", 2018). Without it, training loses them.
    warmup_steps
        Steps in which the share falls exponentially from 1 to the ratio, because the first
        gradients matter most (Lin et al., "Deep Gradient Compression", 2018).
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
    """Return a hook that runs `hook` for one bucket after another.

    PowerSGD's callbacks, for example, start further operations. With several buckets in progress on
    the CPU, the order of these operations would differ between ranks.
    """

    def wait(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return wait
