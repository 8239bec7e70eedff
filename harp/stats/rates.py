# SPDX-License-Identifier: Apache-2.0
"""Changes between two readings of a page."""

from dataclasses import dataclass

import numpy as np

from harp.stats import schema
from harp.stats.page import Snapshot


@dataclass(frozen=True)
class Rates:
    """Two snapshots of one page and the seconds between them."""

    before: Snapshot | None
    now: Snapshot
    seconds: float

    def delta(self, name: str) -> int:
        """Return the increase of a counter; all of it if the page is new or another owner's."""
        value = int(self.now.counters[name])
        if self.before is None or self._restarted():
            return value
        earlier = int(self.before.counters[name])
        return value - earlier if value >= earlier else value

    def _restarted(self) -> bool:
        return (
            self.before is None
            or self.before.identity.start_wall_ns != self.now.identity.start_wall_ns
        )

    def per_s(self, name: str) -> float | None:
        """Return the counter's rate; None at the first reading."""
        if self.before is None or self.seconds <= 0:
            return None
        return self.delta(name) / self.seconds

    def drops_per_s(self) -> dict[str, float]:
        """Return drops by reason that are not 0."""
        if self.before is None or self.seconds <= 0:
            return {}
        rates = {each.drop_reason: self.delta(each.name) for each in schema.drops()}
        return {reason: n / self.seconds for reason, n in rates.items() if reason and n}

    def quantile_ns(self, histogram: str, share: float) -> int | None:
        """Return an upper bound, within a quarter, of a quantile; None: no values."""
        buckets = np.asarray(self.now.histogram(histogram)["bucket"], dtype=np.uint64).copy()
        if self.before is not None and not self._restarted():
            earlier = np.asarray(self.before.histogram(histogram)["bucket"], dtype=np.uint64)
            if np.all(buckets >= earlier):
                buckets -= earlier
        return quantile_ns(buckets, share)


def quantile_ns(buckets: np.ndarray[tuple[int], np.dtype[np.uint64]], share: float) -> int | None:
    """Return the largest value of the bucket with the quantile; None if all are empty."""
    total = sum(int(count) for count in buckets)
    if total == 0:
        return None
    rank, seen = max(1, int(-(-share * total // 1))), 0
    upper = schema.upper_ns()
    for index, count in enumerate(buckets):
        seen += int(count)
        if seen >= rank:
            return upper[min(index, len(upper) - 1)]
    return upper[-1]
