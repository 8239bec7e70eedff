# SPDX-License-Identifier: Apache-2.0
"""The layout of a page as numpy types, from the compiled lists of the stack."""

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
    return tuple(Statistic(*row) for row in _page.statistics())


@cache
def drops() -> tuple[Statistic, ...]:
    return tuple(statistic for statistic in statistics() if statistic.drop_reason)


def _fields(names: str, kind: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


def _numbers(name: str) -> list[tuple[str, str]]:
    return [(field, "u8") for field, _ in _page.LISTS[name]]


_BUCKETS = f"({len(_page.histogram_upper_ns()) + 1},)u8"
_ENDS = [
    *_fields("local_addr remote_addr", "V16"),
    *_fields("local_port remote_port", "u2"),
    ("scope_id", "u4"),
]
# The fields of struct harp_page_NAME.
_RECORDS = {
    "identity": [
        *_fields("size pid queue instance", "u4"),
        *_fields("lease_id netns start_wall_ns", "u8"),
        *[("ifname", "S16"), ("label", "S64"), ("describe", "S256"), ("library", "S16")],
    ],
    "status": [
        *_fields("published_ns publications flows_open flows_hidden", "u8"),
        *[("ended", "u4"), ("reserved", "u4"), ("note", "S160")],
        *_fields("comms_open comms_hidden", "u8"),
    ],
    "histogram": [*_fields("count sum_ns", "u8"), ("bucket", _BUCKETS)],
    "xstat": [("name", "S64"), ("value", "u8")],
    "flow": [("sequence", "u8"), *_ENDS, ("label", "S64"), *_numbers("flow")],
    "rail": [
        ("ifname", "S16"),
        *_fields("srtt_count srtt_sum_ns", "u8"),
        ("srtt_bucket", _BUCKETS),
        *_numbers("rail"),
    ],
    "comm": [
        *[("sequence", "u8"), ("remote_addr", "V16")],
        *[("remote_port", "u2"), ("reserved", "u2"), ("scope_id", "u4"), ("ifname", "S16")],
        *_numbers("comm"),
    ],
    "lane": [("sequence", "u8"), *_ENDS, ("ifname", "S16"), *_numbers("lane")],
}


@cache
def record_type(name: str) -> np.dtype[np.void]:
    result: np.dtype[np.void] = np.dtype(_RECORDS[name], align=True)
    assert result.itemsize == _page.SIZES[name], name
    return result


@cache
def counters_type() -> np.dtype[np.void]:
    return np.dtype([(statistic.name, "=u8") for statistic in statistics()])


@cache
def job_counters() -> tuple[Statistic, ...]:
    return tuple(Statistic(name, "counter", text) for name, text in _page.LISTS["job"])


@cache
def job_type() -> np.dtype[np.void]:
    return np.dtype([(counter.name, "=u8") for counter in job_counters()])


@cache
def upper_ns() -> tuple[int, ...]:
    """Return the largest value of each histogram bucket except the last."""
    return tuple(_page.histogram_upper_ns())
