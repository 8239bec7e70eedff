# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group as forked processes (tests/coll, tests/torch), and results by numpy."""

import faulthandler
import json
import os
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

REDUCTIONS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def values(rank: int, size: int, dtype: str) -> Any:
    """Return small values that differ by rank. Sums and products of 13 ranks are exact."""
    base = np.arange(size) * (rank + 3) + rank
    return (base % 2 + (base % 5 == 0)).astype(dtype)


def expected(op: str, arrays: list[Any]) -> Any:
    """Return the reduction of all ranks' arrays."""
    total = arrays[0]
    for array in arrays[1:]:
        total = REDUCTIONS[op](total, array).astype(total.dtype)
    if op != "avg":
        return total
    if total.dtype.kind in "iu":
        return (total // len(arrays)).astype(total.dtype)
    parts = total.view(total.real.dtype)  # a complex division would round more
    return (parts / np.array(len(arrays), parts.dtype)).astype(parts.dtype).view(total.dtype)


def failure(call: Callable[[], object]) -> str:
    """Return the error that call() raises, as text."""
    try:
        call()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run(
    ranks: Iterable[int],
    work: Callable[[int], Any],
    may_fail: Iterable[int] = (),
    end: Callable[[int], Any] = os._exit,
) -> int:
    """Run work(rank) in a process per rank, which prints [rank, result] as JSON and calls end().
    Return 0 if all ranks succeed."""
    children = {}
    for rank in ranks:
        pid = os.fork()
        if pid:
            children[pid] = rank
            continue
        faulthandler.dump_traceback_later(100)
        status = 1
        try:
            os.write(1, (json.dumps([rank, work(rank)]) + "\n").encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        end(status)
    failed = set()
    while children:
        pid, code = os.wait()
        rank = children.pop(pid)
        failed |= {rank} if code else set()
    return 1 if failed - set(may_fail) else 0
