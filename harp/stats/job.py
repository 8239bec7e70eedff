# SPDX-License-Identifier: Apache-2.0
"""A job as a document, for `-o json` and harpd's answers: its comms and their lanes.

The job writes its page, so lanes may name comms that do not exist, and numbers may be arbitrary.
"""

from typing import Any

import numpy as np

from harp import _page
from harp.stats.page import Job, JobSnapshot, address, text

KINDS = {1: "harp", 2: "kernel", 4: "dpdk"}  # enum harp_page_kind
SIDES = {1: "send", 2: "receive"}
COMM_STATES = {1: "open", 2: "failed"}
LANE_STATES = {1: "open", 2: "stalled", 3: "dead"}
UNKNOWN = "?"
# Why a comm began on a kernel lane: the plugin's names, by number.
FALLBACKS = {number: name for number, (name, _) in enumerate(_page.LISTS["fallback"], 1)}


def _values(record: np.void, names: list[tuple[str, str]]) -> dict[str, Any]:
    return {name: int(record[name]) for name, _ in names}


def _lane_documents(lanes: list[np.void]) -> list[dict[str, Any]]:
    """Return a comm's lanes, with their shares of the comm's payload, 0 to 1."""
    total_bytes = sum(int(lane["payload_bytes"]) for lane in lanes)
    return [
        {**_lane_document(lane), "share": int(lane["payload_bytes"]) / max(1, total_bytes)}
        for lane in lanes
    ]


def _lane_document(lane: np.void) -> dict[str, Any]:
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
    }


def comm_documents(snapshot: JobSnapshot) -> list[dict[str, Any]]:
    """Return comms by age with their lanes by index; comms without a record are last."""
    by_comm: dict[int, list[np.void]] = {}
    for lane in sorted(snapshot.lanes, key=lambda lane: int(lane["index"])):
        by_comm.setdefault(int(lane["comm"]), []).append(lane)
    result = []
    for comm in sorted(snapshot.comms, key=lambda comm: int(comm["serial"])):
        values = _values(comm, _page.LISTS["comm"])
        result.append(
            {
                "peer": address(comm["remote_addr"].tobytes()),
                "peer_port": int(comm["remote_port"]),
                "scope_id": int(comm["scope_id"]),
                "ifname": text(comm["ifname"]),
                **values,
                "state": COMM_STATES.get(values["state"], UNKNOWN),
                "side": SIDES.get(values["side"], UNKNOWN),
                "fallback": FALLBACKS.get(values["fallback"], ""),
                "lanes": _lane_documents(by_comm.pop(values["serial"], [])),
            }
        )
    for _, lanes in sorted(by_comm.items()):
        documents = _lane_documents(lanes)
        result.append({"peer": documents[0]["remote"], "lanes": documents})
    return result


def rail_document(rail: np.void) -> dict[str, Any]:
    """Return the record of lanes of one kind over one NIC."""
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
    return {
        **job.document(),
        "rails": [rail_document(rail) for rail in job.snapshot.rails],
        "comms": comm_documents(job.snapshot),
    }
