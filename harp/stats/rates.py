# SPDX-License-Identifier: Apache-2.0
"""Changes between two readings of an instance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harp.stats import schema


@dataclass(frozen=True)
class Rates:
    """Two documents of one instance and the seconds between them.

    Parameters
    ----------
    before
        None at the first reading. A document of another owner counts as none.
    """

    before: Mapping[str, Any] | None
    now: Mapping[str, Any]
    seconds: float

    def _earlier(self) -> Mapping[str, Any] | None:
        before = self.before
        if before is None:
            return None
        start, present = (each["identity"]["start_wall_ns"] for each in (before, self.now))
        return before if start == present else None

    def delta(self, name: str) -> int:
        """Return the increase of a counter; all of it if the page is new or another owner's."""
        value = int(self.now["counters"].get(name, 0))
        before = self._earlier()
        earlier = int(before["counters"].get(name, 0)) if before else 0
        return value - earlier if value >= earlier else value

    def per_s(self, name: str) -> float | None:
        """Return the counter's rate; None at the first reading."""
        if self.before is None or self.seconds <= 0:
            return None
        return self.delta(name) / self.seconds

    def drops_per_s(self) -> dict[str, float]:
        """Return drops by reason that are not 0; none at the first reading."""
        if self.before is None or self.seconds <= 0:
            return {}
        rates = {each.drop_reason: self.delta(each.name) for each in schema.drops()}
        return {reason: n / self.seconds for reason, n in rates.items() if reason and n}

    def quantile_ns(self, histogram: str, share: float) -> int | None:
        """Return an upper bound, within a quarter, of a quantile; None: no values."""
        buckets = list(self.now["histograms"][histogram]["buckets"])
        before = self._earlier()
        if before is not None:
            earlier = before["histograms"][histogram]["buckets"]
            grown = [now - then for now, then in zip(buckets, earlier, strict=True)]
            if min(grown, default=0) >= 0:
                buckets = grown
        return quantile_ns(buckets, share)


def quantile_ns(buckets: Sequence[int], share: float) -> int | None:
    """Return the largest value of the bucket with the quantile; None if all are empty."""
    total = sum(buckets)
    if total == 0:
        return None
    rank, seen = max(1, int(-(-share * total // 1))), 0
    upper = schema.upper_ns()
    for index, count in enumerate(buckets):
        seen += count
        if seen >= rank:
            return upper[min(index, len(upper) - 1)]
    return upper[-1]
