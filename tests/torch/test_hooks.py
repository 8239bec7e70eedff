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


@pytest.mark.parametrize("at", [0, 5])
def test_nan_is_the_largest(at: int) -> None:
    """A sample may meet it (index 0) or not; training must not lose sight of it."""
    from harp.torch import hooks

    numbers = torch.rand(COUNT)
    numbers[at] = torch.nan
    assert at in hooks.largest(numbers, 1000)
