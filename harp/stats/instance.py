# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of this host and their owners at one moment, and formats them as documents."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harp import _page
from harp.errors import HarpError
from harp.stats import job, schema
from harp.stats.discover import Found, Page, find
from harp.stats.page import Instance, Items, Job, PageError, address, read, read_job, text

FORMAT = 1
# Limit of a JSON document, divided among the users with pages. A full page fits.
DOCUMENT_BYTES_MAX = 128 << 20
RECORD_BYTES = 1800  # of the longest flow, comm or lane in a document


@dataclass(frozen=True)
class HostSnapshot:
    """All instances and jobs at one moment, and what could not be read."""

    instances: tuple[Instance, ...]
    hidden_processes: int = 0
    bad: tuple[tuple[int, str], ...] = ()
    jobs: tuple[Job, ...] = ()


class _Room:
    """Limits the part of a document for each user's pages."""

    def __init__(self, found: Found, bad: list[tuple[int, str]]) -> None:
        users = {page.uid for page in (*found.pages, *found.jobs)}
        self._left = dict.fromkeys(users, DOCUMENT_BYTES_MAX // max(1, len(users)))
        self._bad = bad
        self._reported: set[int] = set()

    def take(self, page: Page, count: int, each_bytes: int = RECORD_BYTES) -> int:
        """Return how many of these records fit. Report a user once if not all fit."""
        share = min(count, self._left[page.uid] // each_bytes)
        self._left[page.uid] -= share * each_bytes
        if share < count and page.uid not in self._reported:
            self._reported.add(page.uid)
            why = f"user {page.uid} publishes more than fits into the document: not all is shown"
            self._bad.append((page.pid, why))
        return share

    def kept(self, page: Page, records: Items) -> Items:
        return records[: self.take(page, len(records))]


def look(found: Found, *, flows: bool = True, lanes: bool | None = None) -> HostSnapshot:
    """Read all pages, and order them by NIC, queue and process. flows: with instances' connections;
    lanes: with jobs' comms and lanes (default: as flows).
    """
    lanes = flows if lanes is None else lanes
    bad = [(pid, str(error)) for pid, error in found.bad]
    instances: list[Instance] = []
    jobs: list[Job] = []
    room = _Room(found, bad)
    for page in (*found.pages, *found.jobs):
        try:
            if page.job:
                jobs += _job(page, room, lanes)
            else:
                instances += _instance(page, room, flows)
        except PageError as error:
            bad.append((page.pid, str(error)))
    instances.sort(key=_order)
    jobs.sort(key=lambda job: job.pid)
    return HostSnapshot(tuple(instances), found.hidden_processes, tuple(bad), tuple(jobs))


def _instance(page: Page, room: _Room, flows: bool) -> list[Instance]:
    snapshot = read(page.fd, flows=flows)
    bare = Instance(page.pid, page.uid, page.comm, replace(snapshot, flows=snapshot.flows[:0]))
    if not room.take(page, 1, len(json.dumps(document(bare)))):
        return []
    return [replace(bare, snapshot=replace(snapshot, flows=room.kept(page, snapshot.flows)))]


def _job(page: Page, room: _Room, lanes: bool) -> list[Job]:
    snapshot = read_job(page.fd, lanes=lanes)
    empty = replace(snapshot, comms=snapshot.comms[:0], lanes=snapshot.lanes[:0])
    bare = Job(page.pid, page.uid, page.comm, empty)
    if not room.take(page, 1, len(json.dumps(job.document(bare)))):
        return []
    comms, lanes_kept = room.kept(page, snapshot.comms), room.kept(page, snapshot.lanes)
    return [replace(bare, snapshot=replace(snapshot, comms=comms, lanes=lanes_kept))]


def _order(instance: Instance) -> tuple[str, int, int]:
    return instance.snapshot.identity.ifname, instance.snapshot.identity.queue, instance.pid


def flow_document(flow: np.void) -> dict[str, Any]:
    values = {name: int(flow[name]) for name, _ in _page.LISTS["flow"]}
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


def document(instance: Instance) -> dict[str, Any]:
    snapshot = instance.snapshot
    return {
        **instance.document(),
        "histograms": {
            name: {
                "count": int(item["count"]),
                "sum_ns": int(item["sum_ns"]),
                "buckets": [int(count) for count in item["bucket"]],
            }
            for (name, _), item in zip(_page.LISTS["histogram"], snapshot.histograms, strict=True)
        },
        "flows": [flow_document(flow) for flow in snapshot.flows],
        "xstats": dict(snapshot.xstats),
    }


def host_document(host: HostSnapshot) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "histogram_upper_ns": list(schema.upper_ns()),
        "instances": list(map(document, host.instances)),
        "jobs": list(map(job.document, host.jobs)),
        "hidden_processes": host.hidden_processes,
        "bad_pages": [{"pid": pid, "why": why} for pid, why in host.bad],
    }


# ---- The source of harpctl's statistics: the pages of this host, or harpd ----
# Root sees every process's pages. Others see their own processes' pages, and query harpd for all;
# harpd answers users who may have leases.
def ask_harpd(flows: bool) -> dict[str, Any] | None:
    """Return harpd's answer; None if there is no harpd, or it does not answer."""
    from harp import _host, config
    from harp.daemon.client import DaemonClient

    try:
        path = config.load().daemon.socket_path
    except HarpError:  # statistics need no valid harp.toml
        path = Path(_host.SOCKET)
    try:
        with DaemonClient(path) as harpd:
            answer: dict[str, Any] = harpd.query("stats", flows=flows)
    except HarpError:
        return None
    return answer


class Source:
    """A source for repeated readings."""

    daemon = False  # whether the last reading was harpd's

    def look(self, *, flows: bool) -> dict[str, Any]:
        """Return a document of everything that is visible now (docs/metrics.md)."""
        self.daemon = False
        if os.geteuid() != 0:
            answer = ask_harpd(flows)
            if answer is not None and "instances" in answer:
                self.daemon = True
                return answer
        with find() as pages:
            return host_document(look(pages, flows=flows))
