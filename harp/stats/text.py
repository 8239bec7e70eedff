# SPDX-License-Identifier: Apache-2.0
"""Statistics as JSON in pieces: host_document() without the whole document in memory.

There may be millions of connections, and one document would need too much memory.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from harp.stats import job
from harp.stats.instance import HostSnapshot, Instance, document, flow_document, host_document

SOME = 32


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _members(given: dict[str, Any], lists: dict[str, Iterable[bytes]]) -> Iterator[bytes]:
    """Yield a document whose given members are lists in text form."""
    between = b"{"
    for name, value in given.items():
        yield between + _json(name) + b": "
        if name in lists:
            yield b"["
            yield from lists[name]
            yield b"]"
        else:
            yield _json(value)
        between = b", "
    yield b"}"


def _some(documents: Iterable[Any]) -> Iterator[bytes]:
    """Yield the inside of a list, a few elements at a time."""
    rest, between = iter(documents), b""
    while some := list(islice(rest, SOME)):
        yield between + _json(some)[1:-1]
        between = b", "


def _each(texts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the inside of a list of long elements."""
    for number, text in enumerate(texts):
        if number:
            yield b", "
        yield from text


def _instance(each: Instance) -> Iterator[bytes]:
    flows = each.snapshot.flows
    bare = replace(each, snapshot=replace(each.snapshot, flows=flows[:0]))
    return _members(document(bare), {"flows": _some(map(flow_document, flows))})


def _comm(each: job.CommLanes) -> Iterator[bytes]:
    lanes = (job.lane_document(lane, each.share(lane)) for lane in each.lanes)
    # The first lane of a comm without a record identifies it.
    bare = replace(each, lanes=each.lanes[:1])
    return _members(job.comm_document(bare), {"lanes": _some(lanes)})


def _job(each: job.Job) -> Iterator[bytes]:
    did = each.snapshot
    bare = replace(each, snapshot=replace(did, comms=did.comms[:0], lanes=did.lanes[:0]))
    return _members(job.document(bare), {"comms": _each(map(_comm, job.comms(did)))})


def host_text(host: HostSnapshot) -> Iterator[bytes]:
    """Yield the JSON of host_document()."""
    return _members(
        host_document(replace(host, instances=(), jobs=())),
        {
            "instances": _each(map(_instance, host.instances)),
            "jobs": _each(map(_job, host.jobs)),
        },
    )
