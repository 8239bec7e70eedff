# SPDX-License-Identifier: Apache-2.0
"""The layout of a page as numpy types, from the lists that the stack was compiled with."""

from dataclasses import dataclass
from functools import cache
from typing import Any

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
    """Return those that count drops."""
    return tuple(each for each in statistics() if each.drop_reason)


def _dtype(layout: Any) -> np.dtype[np.void]:
    result: np.dtype[np.void] = np.dtype(layout)
    return result


@cache
def counters_type() -> np.dtype[np.void]:
    """Return a type with a field per statistic."""
    return np.dtype([(each.name, "=u8") for each in statistics()])


@cache
def identity_type() -> np.dtype[np.void]:
    """struct harp_page_identity."""
    return _dtype(_page.identity_layout())


@cache
def status_type() -> np.dtype[np.void]:
    """struct harp_page_status."""
    return _dtype(_page.status_layout())


@cache
def histogram_type() -> np.dtype[np.void]:
    """struct harp_page_histogram."""
    return _dtype(_page.histogram_layout())


@cache
def flow_type() -> np.dtype[np.void]:
    """struct harp_page_flow."""
    return _dtype(_page.flow_layout())


@cache
def job_counters() -> tuple[Statistic, ...]:
    """Return the counters of a job, in the page's order."""
    return tuple(Statistic(name, "counter", text) for name, text in _page.job_counters())


@cache
def job_type() -> np.dtype[np.void]:
    """Return a type with a field per counter of a job."""
    return np.dtype([(each.name, "=u8") for each in job_counters()])


@cache
def rail_type() -> np.dtype[np.void]:
    """struct harp_page_rail."""
    return _dtype(_page.rail_layout())


@cache
def comm_type() -> np.dtype[np.void]:
    """struct harp_page_comm."""
    return _dtype(_page.comm_layout())


@cache
def lane_type() -> np.dtype[np.void]:
    """struct harp_page_lane."""
    return _dtype(_page.lane_layout())


@cache
def xstat_type() -> np.dtype[np.void]:
    """struct harp_page_xstat."""
    return _dtype(_page.xstat_layout())


@cache
def upper_ns() -> tuple[int, ...]:
    """Return the largest value of each histogram bucket except the last."""
    return tuple(_page.histogram_upper_ns())
