# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of this host and their owners at one moment, and formats them as documents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from harp import _page
from harp.stats import job, schema
from harp.stats.discover import Found, find
from harp.stats.page import Instance, Job, PageError, address, read, read_job, text

FORMAT = 1


@dataclass(frozen=True)
class HostSnapshot:
    """All instances and jobs at one moment, and what could not be read."""

    instances: tuple[Instance, ...]
    hidden_processes: int = 0
    bad: tuple[tuple[int, str], ...] = ()
    jobs: tuple[Job, ...] = ()


def look(found: Found, *, flows: bool = True, lanes: bool | None = None) -> HostSnapshot:
    """Read all pages, and order them by NIC, queue and process. flows: with instances' connections;
    lanes: with jobs' comms and lanes (default: as flows).
    """
    lanes = flows if lanes is None else lanes
    bad = [(pid, str(error)) for pid, error in found.bad]
    instances: list[Instance] = []
    jobs: list[Job] = []
    for page in (*found.pages, *found.jobs):
        process = page.pid, page.uid, page.comm
        try:
            if page.job:
                jobs.append(Job(*process, read_job(page.fd, lanes=lanes)))
            else:
                instances.append(Instance(*process, read(page.fd, flows=flows)))
        except PageError as error:
            bad.append((page.pid, str(error)))
    instances.sort(key=_order)
    jobs.sort(key=lambda job: job.pid)
    return HostSnapshot(tuple(instances), found.hidden_processes, tuple(bad), tuple(jobs))


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


def read_host(*, flows: bool) -> dict[str, Any]:
    """Return a document of everything that is visible now (docs/metrics.md). flows: with the
    connections of instances, and the comms and lanes of jobs. Root sees every process, other users
    see their own.
    """
    with find() as pages:
        return host_document(look(pages, flows=flows))
