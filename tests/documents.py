# SPDX-License-Identifier: Apache-2.0
"""JSON documents with something wrong in them, at any place."""

import copy
from collections.abc import Iterator
from typing import Any

Way = tuple[Any, ...]  # the keys from the document to a place in it


def places(value: Any, way: Way = ()) -> Iterator[Way]:
    """The ways to everything in a document."""
    yield way
    keys = (
        list(value) if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    )
    for key in keys:
        yield from places(value[key], (*way, key))


def changed(document: Any, way: Way, value: Any) -> Any:
    """The document with one place changed."""
    if not way:
        return value
    other = inner = copy.deepcopy(document)
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return other
