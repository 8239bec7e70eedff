# SPDX-License-Identifier: Apache-2.0
"""Statistics pages of instances and jobs, read without disturbing or trusting their owners.

>>> from harp import stats
>>> for page in stats.find().pages:
...     snapshot = stats.read(page.fd)
...     snapshot.counters["rx_packets"], snapshot.flows["srtt_ns"]
"""

from harp.stats.discover import Found, Page, find
from harp.stats.page import Identity, Job, JobSnapshot, PageError, Snapshot, Status, read

__all__ = [
    "Found",
    "Identity",
    "Job",
    "JobSnapshot",
    "Page",
    "PageError",
    "Snapshot",
    "Status",
    "find",
    "read",
]
