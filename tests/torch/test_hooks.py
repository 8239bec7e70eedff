# SPDX-License-Identifier: Apache-2.0
"""hooks.largest() selects the same numbers as torch.topk(), with a threshold from a sample."""

from collections.abc import Callable

import pytest

# A submodule of PyTorch, because "torch" is also the name of this folder.
pytest.importorskip("torch.distributed")
torch = pytest.importorskip("torch")

COUNT = 1 << 20


def spikes_between_samples() -> "torch.Tensor":
    """The sample's stride selects only small numbers, so the threshold is too low."""
    numbers = torch.zeros(COUNT)
    numbers[1::16] = torch.arange(COUNT // 16, dtype=torch.float32) + 1
    return numbers


def spikes_at_samples() -> "torch.Tensor":
    """The sample's stride selects only large numbers, so there are too few candidates."""
    numbers = torch.rand(COUNT)
    numbers[::16] += 1e6
    return numbers


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(
    "make_numbers",
    [
        lambda: torch.randn(COUNT, generator=torch.Generator().manual_seed(1)),
        lambda: torch.randn(1000, generator=torch.Generator().manual_seed(2)),
        spikes_between_samples,
        spikes_at_samples,
        lambda: torch.zeros(COUNT),
    ],
    ids=["normal", "short", "between_samples", "at_samples", "equal"],
)
def test_largest_are_those_of_topk(
    make_numbers: Callable[[], "torch.Tensor"], share: float
) -> None:
    from harp.torch import hooks

    numbers = make_numbers()
    count = max(1, int(numbers.numel() * share))
    indices = hooks.largest(numbers, count)
    assert indices.unique().numel() == count
    expected = numbers.abs().topk(count).values
    assert torch.equal(numbers[indices].abs().sort(descending=True).values, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_residual(dtype: str) -> None:
    """largest() adds the gradients to it and selects from it. The last block has 17 elements."""
    from harp.torch import hooks

    gradients, residual = torch.randn(2, 70001).to(getattr(torch, dtype))
    before, total = gradients.clone(), gradients + residual
    indices = hooks.largest(gradients, 700, residual)
    assert torch.equal(gradients, before)
    assert torch.equal(residual, total)
    assert indices.diff().min() > 0
    assert torch.equal(total[indices].abs().sort().values, total.abs().topk(700).values.flip(0))


def test_bad_calls() -> None:
    from harp.torch import hooks

    ones = torch.ones(4)
    with pytest.raises(ValueError, match="gradients and residual must be contiguous"):
        hooks.largest(ones, 1, torch.ones(5))
    with pytest.raises(ValueError, match="largest: cannot select 5 of 4 elements"):
        hooks.largest(ones, 5)
    with pytest.raises(ValueError, match="warmup_steps -1 is negative"):
        hooks.topk(0.5, warmup_steps=-1)


@pytest.mark.parametrize("at", [0, 5])
def test_nan_is_the_largest(at: int) -> None:
    """NaN is selected whether it is in the sample (index 0) or not: training must not hide it."""
    from harp.torch import hooks

    numbers = torch.rand(COUNT)
    numbers[at] = torch.nan
    assert at in hooks.largest(numbers, 1000)
