# SPDX-License-Identifier: Apache-2.0
"""Pages and whose they are, at one moment: this host's, or of a document of harpd's."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harp import _page
from harp.stats import job, schema
from harp.stats.discover import Found, Page
from harp.stats.page import Identity, Items, PageError, Snapshot, Status, address, text

FORMAT = 1
RECORDS_MAX = 65536  # connections, comms and lanes of one user, but root, that are shown


@dataclass(frozen=True)
class Instance:
    """One publisher. pid, uid and comm are the kernel's word; the rest is the owner's."""

    pid: int
    uid: int
    comm: str
    snapshot: Snapshot

    @property
    def name(self) -> str:
        """ "eth1/0": the NIC and its queue."""
        return f"{self.snapshot.identity.ifname}/{self.snapshot.identity.queue}"

    @property
    def key(self) -> tuple[int, int, int]:
        """Tells instances apart over time."""
        identity = self.snapshot.identity
        return self.pid, identity.start_wall_ns, identity.instance


@dataclass(frozen=True)
class Sight:
    """All instances and jobs at one moment, and what could not be seen."""

    instances: tuple[Instance, ...]
    hidden_processes: int = 0
    bad: tuple[tuple[int, str], ...] = ()
    jobs: tuple[job.Job, ...] = ()


class _Records:
    """How many records of each user there are."""

    def __init__(self, bad: list[tuple[int, str]]) -> None:
        self._bad = bad
        self._left: dict[int, int] = {}  # negative: it was said

    def kept(self, page: Page, records: Items) -> Items:
        """As many as the page's user may have, and a word of it when he has more."""
        left = self._left.get(page.uid, RECORDS_MAX)
        if page.uid == 0:
            return records
        if 0 <= left < len(records):
            why = (
                f"user {page.uid} has more than {RECORDS_MAX} connections and lanes: not all shown"
            )
            self._bad.append((page.pid, why))
        self._left[page.uid] = left - len(records)
        return records[: max(0, left)]


def look(found: Found, *, flows: bool = True) -> Sight:
    """Reads all pages that were found. By NIC, queue and process. flows False: nor lanes."""
    bad = [(pid, str(error)) for pid, error in found.bad]
    instances, jobs, records = [], [], _Records(bad)
    for page in found.pages:
        try:
            seen = page.read(flows=flows)
        except PageError as error:
            bad.append((page.pid, str(error)))
            continue
        seen = replace(seen, flows=records.kept(page, seen.flows))
        instances.append(Instance(page.pid, page.uid, page.comm, seen))
    for page in found.jobs:
        try:
            did = page.read_job(lanes=flows)
        except PageError as error:
            bad.append((page.pid, str(error)))
            continue
        comms, lanes = records.kept(page, did.comms), records.kept(page, did.lanes)
        did = replace(did, comms=comms, lanes=lanes)
        jobs.append(job.Job(page.pid, page.uid, page.comm, did))
    instances.sort(key=lambda each: (*_place(each), each.pid))
    jobs.sort(key=lambda each: each.pid)
    return Sight(tuple(instances), found.hidden_processes, tuple(bad), tuple(jobs))


def _place(each: Instance) -> tuple[str, int]:
    return each.snapshot.identity.ifname, each.snapshot.identity.queue


# --------------------------------------------------------------------------------------------------
# As a document: what `-o json` prints and harpd answers.
#
def flow_document(flow: np.void) -> dict[str, Any]:
    """One connection."""
    values = {name: int(flow[name]) for name, _ in _page.flow_values()}
    return {
        "local": address(flow["local_addr"].tobytes()),
        "local_port": int(flow["local_port"]),
        "remote": address(flow["remote_addr"].tobytes()),
        "remote_port": int(flow["remote_port"]),
        "scope_id": int(flow["scope_id"]),
        "label": text(flow["label"]),
        **values,
        "state": _page.state_name(values["state"]),
        "congestion": _page.congestion_name(values["congestion"]),
    }


def document(each: Instance) -> dict[str, Any]:
    """One instance."""
    snapshot = each.snapshot
    return {
        "pid": each.pid,
        "uid": each.uid,
        "comm": each.comm,
        "identity": vars(snapshot.identity),
        "status": vars(snapshot.status),
        "counters": {one.name: int(snapshot.counters[one.name]) for one in schema.statistics()},
        "histograms": {
            name: {
                "count": int(item["count"]),
                "sum_ns": int(item["sum_ns"]),
                "buckets": [int(count) for count in item["bucket"]],
            }
            for (name, _), item in zip(_page.histograms(), snapshot.histograms, strict=True)
        },
        "flows": [flow_document(flow) for flow in snapshot.flows],
        "xstats": dict(snapshot.xstats),
    }


def sight_document(sight: Sight) -> dict[str, Any]:
    """Everything seen."""
    return {
        "format": FORMAT,
        "histogram_upper_ns": list(schema.upper_ns()),
        "instances": [document(each) for each in sight.instances],
        "jobs": [job.document(each) for each in sight.jobs],
        "hidden_processes": sight.hidden_processes,
        "bad_pages": [{"pid": pid, "why": why} for pid, why in sight.bad],
    }


def _numbers(names: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _states() -> dict[str, int]:
    return _numbers([_page.state_name(number) for number in range(12)])


def _congestions() -> dict[str, int]:
    return _numbers([_page.congestion_name(number) for number in range(8)])


def _restored_flow(given: dict[str, Any], into: np.void) -> None:
    into["local_addr"] = np.void(job.packed(given["local"]))
    into["remote_addr"] = np.void(job.packed(given["remote"]))
    for name in ("local_port", "remote_port", "scope_id"):
        into[name] = given[name]
    into["label"] = given["label"].encode()
    for name, _ in _page.flow_values():
        if name not in ("state", "congestion"):
            into[name] = given.get(name, 0)
    into["state"] = _states().get(given["state"], 0)
    into["congestion"] = _congestions().get(given["congestion"], 0)


def restored(given: dict[str, Any]) -> Instance:
    """The instance that document() was made of."""
    counters = np.zeros(1, schema.counters_type())
    for name in schema.counters_type().names or ():
        counters[0][name] = given["counters"].get(name, 0)
    histograms = np.zeros(len(_page.histograms()), schema.histogram_type())
    for (name, _), item in zip(_page.histograms(), histograms, strict=True):
        said = given["histograms"].get(name)
        if said:
            item["count"], item["sum_ns"], item["bucket"] = (
                said["count"], said["sum_ns"], said["buckets"],
            )  # fmt: skip
    flows = np.zeros(len(given["flows"]), schema.flow_type())
    for said, item in zip(given["flows"], flows, strict=True):
        _restored_flow(said, item)
    snapshot = Snapshot(
        Identity(**given["identity"]),
        Status(**given["status"]),
        counters[0],
        histograms,
        flows,
        given.get("xstats", {}),
    )
    return Instance(given["pid"], given["uid"], given["comm"], snapshot)


def restored_sight(given: dict[str, Any]) -> Sight:
    """What sight_document() was made of."""
    return Sight(
        tuple(restored(each) for each in given["instances"]),
        given["hidden_processes"],
        tuple((each["pid"], each["why"]) for each in given["bad_pages"]),
        tuple(job.restored(each) for each in given.get("jobs", ())),
    )
