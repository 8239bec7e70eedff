# SPDX-License-Identifier: Apache-2.0
"""What is seen as JSON, a piece at a time: sight_document() without having all of it at once.

There may be millions of connections, and a document of all at once would take too much memory.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from harp.stats import job
from harp.stats.instance import Instance, Sight, document, flow_document, sight_document

SOME = 32


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _members(given: dict[str, Any], lists: dict[str, Iterable[bytes]]) -> Iterator[bytes]:
    """A document, of which some members are lists of what is given as text already."""
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
    """The inside of a list, a few at a time."""
    rest, between = iter(documents), b""
    while some := list(islice(rest, SOME)):
        yield between + _json(some)[1:-1]
        between = b", "


def _each(texts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The inside of a list of long ones."""
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
    # A comm that isn't shown itself is told by its first lane.
    bare = replace(each, lanes=each.lanes[:1])
    return _members(job.comm_document(bare), {"lanes": _some(lanes)})


def _job(each: job.Job) -> Iterator[bytes]:
    did = each.snapshot
    bare = replace(each, snapshot=replace(did, comms=did.comms[:0], lanes=did.lanes[:0]))
    return _members(job.document(bare), {"comms": _each(map(_comm, job.comms(did)))})


def sight_text(sight: Sight) -> Iterator[bytes]:
    """The JSON of sight_document()."""
    return _members(
        sight_document(replace(sight, instances=(), jobs=())),
        {
            "instances": _each(map(_instance, sight.instances)),
            "jobs": _each(map(_job, sight.jobs)),
        },
    )
