# SPDX-License-Identifier: Apache-2.0
"""A job's page and its owner: comms and their lanes, at one moment.

The page is the job's own claim: lanes may name comms that do not exist, numbers may be arbitrary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harp import _page
from harp.stats import schema
from harp.stats.page import Job, JobSnapshot, address, text

KINDS = {1: "harp", 2: "kernel", 4: "dpdk"}  # enum harp_page_kind
SIDES = {1: "send", 2: "receive"}
COMM_STATES = {1: "open", 2: "failed"}
LANE_STATES = {1: "open", 2: "stalled", 3: "dead"}
UNKNOWN = "?"
# Why a comm began on a kernel lane: the plugin's names, by number.
FALLBACKS = {number: name for number, (name, _) in enumerate(_page.LISTS["fallback"], 1)}


@dataclass(frozen=True)
class CommLanes:
    """A comm and its lanes, by index. comm None: the page has no record of the comm itself."""

    comm: np.void | None
    lanes: tuple[np.void, ...]

    @cached_property
    def _total_bytes(self) -> int:
        # Cached: a page may claim thousands of lanes for a comm.
        return sum(int(each["payload_bytes"]) for each in self.lanes)

    def share(self, lane: np.void) -> float:
        """Return this lane's share of the comm's payload, 0 to 1."""
        return int(lane["payload_bytes"]) / self._total_bytes if self._total_bytes else 0.0

    @property
    def peer(self) -> str:
        """Return the peer's address."""
        if self.comm is not None:
            return address(self.comm["remote_addr"].tobytes())
        return address(self.lanes[0]["remote_addr"].tobytes()) if self.lanes else UNKNOWN


def comms(snapshot: JobSnapshot) -> list[CommLanes]:
    """Return lanes by comm, comms by age; last those without a comm record."""
    by_comm: dict[int, list[np.void]] = {}
    for lane in snapshot.lanes:
        by_comm.setdefault(int(lane["comm"]), []).append(lane)
    result = []
    for comm in sorted(snapshot.comms, key=lambda each: int(each["serial"])):
        result.append(CommLanes(comm, _by_index(by_comm.pop(int(comm["serial"]), []))))
    result += [CommLanes(None, _by_index(lanes)) for _, lanes in sorted(by_comm.items())]
    return result


def _by_index(lanes: Iterable[np.void]) -> tuple[np.void, ...]:
    return tuple(sorted(lanes, key=lambda each: int(each["index"])))


# --------------------------------------------------------------------------------------------------
# As a document: the output of `-o json` and harpd's answer.
#
def _values(record: np.void, names: list[tuple[str, str]]) -> dict[str, Any]:
    return {name: int(record[name]) for name, _ in names}


def lane_document(lane: np.void, share: float) -> dict[str, Any]:
    """Return one lane."""
    values = _values(lane, _page.LISTS["lane"])
    return {
        "local": address(lane["local_addr"].tobytes()),
        "local_port": int(lane["local_port"]),
        "remote": address(lane["remote_addr"].tobytes()),
        "remote_port": int(lane["remote_port"]),
        "scope_id": int(lane["scope_id"]),
        "ifname": text(lane["ifname"]),
        **values,
        "state": LANE_STATES.get(values["state"], UNKNOWN),
        "kind": KINDS.get(values["kind"], UNKNOWN),
        "end": _page.lane_end_name(min(values["end"], 255)),
        "encrypted": values["encrypted"] != 0,
        "backup": values["backup"] != 0,
        "share": share,
    }


def comm_document(each: CommLanes) -> dict[str, Any]:
    """Return one comm, with its lanes. Without a comm record, only `peer` and `lanes`."""
    lanes = [lane_document(lane, each.share(lane)) for lane in each.lanes]
    if each.comm is None:
        return {"peer": each.peer, "lanes": lanes}
    values = _values(each.comm, _page.LISTS["comm"])
    return {
        "peer": each.peer,
        "peer_port": int(each.comm["remote_port"]),
        "scope_id": int(each.comm["scope_id"]),
        "ifname": text(each.comm["ifname"]),
        **values,
        "state": COMM_STATES.get(values["state"], UNKNOWN),
        "side": SIDES.get(values["side"], UNKNOWN),
        "fallback": FALLBACKS.get(values["fallback"], ""),
        "lanes": lanes,
    }


def rail_document(rail: np.void) -> dict[str, Any]:
    """Return lanes of one kind over one NIC."""
    values = _values(rail, _page.LISTS["rail"])
    return {
        "ifname": text(rail["ifname"]),
        **values,
        "kind": KINDS.get(values["kind"], UNKNOWN),
        "down": values["down"] != 0,
        "srtt": {
            "count": int(rail["srtt_count"]),
            "sum_ns": int(rail["srtt_sum_ns"]),
            "buckets": [int(count) for count in rail["srtt_bucket"]],
        },
    }


def document(job: Job) -> dict[str, Any]:
    """Return one job."""
    snapshot = job.snapshot
    return {
        "pid": job.pid,
        "uid": job.uid,
        "comm": job.comm,
        "identity": vars(snapshot.identity),
        "status": vars(snapshot.status),
        "counters": {
            each.name: int(snapshot.counters[each.name]) for each in schema.job_counters()
        },
        "rails": [rail_document(rail) for rail in snapshot.rails],
        "comms": [comm_document(each) for each in comms(snapshot)],
    }
