# SPDX-License-Identifier: Apache-2.0
"""Limits the names of drivers' counters that become labels.

A job reports its driver's counters, by names that it could invent. So a NIC has at most as many
names as a page holds, for the life of the exporter, and only of printable characters.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from harp import _page
from harp.stats.instance import Instance

_NAME = re.compile(r"[A-Za-z0-9_.:/\[\] -]{1,63}")


class Names:
    """The names seen so far, by NIC."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def sift(self, instances: Iterable[Instance]) -> tuple[tuple[Instance, ...], dict[str, int]]:
        """Return the instances with the counters that may have series, and how many may not, by
        reason.
        """
        kept = []
        ignored = Counter({"name": 0, "too_many": 0})
        for each in instances:
            known = self._known.setdefault(each.snapshot.identity.ifname, set())
            good: dict[str, int] = {}
            for name, value in each.snapshot.xstats.items():
                if not _NAME.fullmatch(name):
                    ignored["name"] += 1
                elif name not in known and len(known) >= _page.XSTATS_MAX:
                    ignored["too_many"] += 1
                else:
                    known.add(name)
                    good[name] = value
            kept.append(replace(each, snapshot=replace(each.snapshot, xstats=good)))
        return tuple(kept), dict(ignored)
