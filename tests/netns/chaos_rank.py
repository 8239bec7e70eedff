# SPDX-License-Identifier: Apache-2.0
"""A rank of test_lanes_chaos.py: it checks the sums of all-reduces until it is told to end.

Arguments: plugin, rank, ranks, root. It prints a JSON line for each step. A line on rank 0's stdin
ends it.
"""

import json
import select
import sys
from contextlib import closing
from typing import Any

import numpy as np

from harp.collectives import CollectiveError, Communicator, TcpStore

SIZES = (1, 700, 5_000, 60_000, 300_000)  # elements


def values(rank: int, step: int, count: int) -> Any:
    """Whole numbers, so that every order of adding gives the same float32."""
    index = np.arange(count, dtype=np.int64)
    return ((index * 7 + rank * 31 + step * 13) % 1000).astype(np.float32)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def play(comm: Communicator) -> None:
    step, over = 0, False
    while not over:
        count = SIZES[step % len(SIZES)]
        total = comm.allreduce(values(comm.rank, step, count))
        expected = sum(values(other, step, count) for other in range(comm.world))
        say(event="step", step=step, wrong=int(np.count_nonzero(total != expected)))
        step += 1
        if step % 8 == 0:
            ends = comm.rank == 0 and bool(select.select([0], [], [], 0)[0])
            over = bool(comm.allreduce(np.array([ends], np.uint8), "max")[0])
    comm.barrier()


def main() -> int:
    plugin, me, ranks, root = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    address, _, port = root.rpartition(":")
    try:
        with (
            closing(TcpStore(address.strip("[]"), int(port), serve=me == 0, timeout_s=60)) as store,
            Communicator(me, ranks, store, plugin=plugin, timeout_s=60, host="") as comm,
        ):
            comm.barrier()
            say(event="ready")
            play(comm)
    except CollectiveError as error:
        say(event="error", text=str(error), code=error.code)
        return 1
    say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
