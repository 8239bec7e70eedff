# SPDX-License-Identifier: Apache-2.0
from typing import Any

IDENTITY: int
STATUS: int
COUNTERS: int
HISTOGRAMS: int
FLOWS: int
JOB: int
RAILS: int
COMMS: int
LANES: int
XSTATS: int
XSTATS_MAX: int
LINK: str
LISTS: dict[str, list[tuple[str, str]]]
LAYOUTS: dict[str, Any]  # what numpy.dtype() takes

def check(fd: int) -> None: ...
def read(fd: int, part: int, item_bytes: int, most: int, first: int = 0) -> bytes: ...
def statistics() -> list[tuple[str, str, str]]: ...
def histogram_upper_ns() -> list[int]: ...
def lane_end_name(end: int) -> str: ...
def state_name(state: int) -> str: ...
def congestion_name(congestion: int) -> str: ...
