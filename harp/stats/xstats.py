# SPDX-License-Identifier: Apache-2.0
"""Which of the names that drivers have for their counters become labels.

A job says what its driver counts, by names that it could make up: so a NIC has at most as many
names as a page holds, for as long as the exporter lives, and none that a person could not type.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from harp import _page
from harp.stats.instance import Instance

_NAME = re.compile(r"[A-Za-z0-9_.:/\[\] -]{1,63}")


class Names:
    """The names that were seen so far, by NIC."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def sift(self, instances: Iterable[Instance]) -> tuple[tuple[Instance, ...], dict[str, int]]:
        """The instances with those counters that may have series, and how many may not, by
        reason."""
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
