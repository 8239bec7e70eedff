# SPDX-License-Identifier: Apache-2.0
"""hooks.largest(): the same numbers as torch.topk(), through a threshold from a sample."""

from collections.abc import Callable

import pytest

# Of the real torch: this folder's name is found, too.
pytest.importorskip("torch.distributed")
torch = pytest.importorskip("torch")

COUNT = 1 << 20


def spikes_between_samples() -> "torch.Tensor":
    """A stride that meets only the small numbers: the estimate is of no use, and does no harm."""
    numbers = torch.zeros(COUNT)
    numbers[1::16] = torch.arange(COUNT // 16, dtype=torch.float32) + 1
    return numbers


def spikes_at_samples() -> "torch.Tensor":
    """A stride that meets the large numbers only: too few candidates."""
    numbers = torch.rand(COUNT)
    numbers[::16] += 1e6
    return numbers


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(COUNT, generator=torch.Generator().manual_seed(1)),
        lambda: torch.randn(1000, generator=torch.Generator().manual_seed(2)),
        spikes_between_samples,
        spikes_at_samples,
        lambda: torch.zeros(COUNT),
    ],
    ids=["normal", "short", "between_samples", "at_samples", "equal"],
)
def test_largest_are_those_of_topk(make: Callable[[], "torch.Tensor"], share: float) -> None:
    from harp.torch import hooks

    numbers = make()
    count = max(1, int(numbers.numel() * share))
    found = hooks.largest(numbers, count)
    assert found.unique().numel() == count
    expected = numbers.abs().topk(count).values
    assert torch.equal(numbers[found].abs().sort(descending=True).values, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_residual(dtype: str) -> None:
    """It gets the gradients, and its largest are found. 17 more elements than whole blocks."""
    from harp.torch import hooks

    gradients, residual = torch.randn(2, 70001).to(getattr(torch, dtype))
    before, total = gradients.clone(), gradients + residual
    found = hooks.largest(gradients, 700, residual)
    assert torch.equal(gradients, before)
    assert torch.equal(residual, total)
    assert found.diff().min() > 0
    assert torch.equal(total[found].abs().sort().values, total.abs().topk(700).values.flip(0))


def test_bad_calls() -> None:
    from harp.torch import hooks

    ones = torch.ones(4)
    with pytest.raises(ValueError, match="gradients and residual are contiguous"):
        hooks.largest(ones, 1, torch.ones(5))
    with pytest.raises(ValueError, match="largest: 5 of 4 elements"):
        hooks.largest(ones, 5)
    with pytest.raises(ValueError, match="warmup_steps -1 is negative"):
        hooks.topk(0.5, warmup_steps=-1)


@pytest.mark.parametrize("at", [0, 5])
def test_nan_is_the_largest(at: int) -> None:
    """A sample may meet it (index 0) or not; training must not lose sight of it."""
    from harp.torch import hooks

    numbers = torch.rand(COUNT)
    numbers[at] = torch.nan
    assert at in hooks.largest(numbers, 1000)
