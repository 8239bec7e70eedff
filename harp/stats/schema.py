# SPDX-License-Identifier: Apache-2.0
"""The layout of a page as numpy types, from the lists that the stack was compiled with."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from harp import _page


@dataclass(frozen=True)
class Statistic:
    """One line of harp_stats.h."""

    name: str
    kind: str  # "counter" or "gauge"
    help: str

    @property
    def drop_reason(self) -> str | None:
        """ "tcp_checksum" of "drop_tcp_checksum"; None if it counts no drops."""
        return self.name.removeprefix("drop_") if self.name.startswith("drop_") else None


@cache
def statistics() -> tuple[Statistic, ...]:
    """Return all statistics, in the page's order."""
    return tuple(Statistic(*each) for each in _page.statistics())


@cache
def drops() -> tuple[Statistic, ...]:
    return tuple(each for each in statistics() if each.drop_reason)


@cache
def record_type(name: str) -> np.dtype[np.void]:
    """Return the type of a record, struct harp_page_NAME."""
    result: np.dtype[np.void] = np.dtype(_page.LAYOUTS[name])
    return result


@cache
def counters_type() -> np.dtype[np.void]:
    """Return a type with a field per statistic."""
    return np.dtype([(each.name, "=u8") for each in statistics()])


@cache
def job_counters() -> tuple[Statistic, ...]:
    """Return the counters of a job, in the page's order."""
    return tuple(Statistic(name, "counter", text) for name, text in _page.LISTS["job"])


@cache
def job_type() -> np.dtype[np.void]:
    """Return a type with a field per counter of a job."""
    return np.dtype([(each.name, "=u8") for each in job_counters()])


@cache
def upper_ns() -> tuple[int, ...]:
    """Return the largest value of each histogram bucket except the last."""
    return tuple(_page.histogram_upper_ns())
