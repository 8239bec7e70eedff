# SPDX-License-Identifier: Apache-2.0
"""A rank of test_lanes_chaos.py: all-reduces whose every sum is checked, until told to end.

Arguments: plugin, rank, ranks, root. A JSON line for each step; a line on rank 0's stdin is the
end.
"""

import json
import select
import sys
from typing import Any

import numpy as np

from harp._ncclplay import NcclplayError, Rank

SIZES = (1, 700, 5_000, 60_000, 300_000)  # elements


def values(rank: int, step: int, count: int) -> Any:
    """Whole numbers, so that every order of adding gives the same float32."""
    index = np.arange(count, dtype=np.int64)
    return ((index * 7 + rank * 31 + step * 13) % 1000).astype(np.float32)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def play(rank: Rank, me: int, ranks: int) -> None:
    step, over = 0, False
    while not over:
        count = SIZES[step % len(SIZES)]
        mine = values(me, step, count)
        rank.allreduce(mine)
        wanted = sum(values(other, step, count) for other in range(ranks))
        wrong = int(np.count_nonzero(mine != wanted))
        say(event="step", step=step, wrong=wrong)
        step += 1
        if step % 8 == 0:
            told = me == 0 and bool(select.select([0], [], [], 0)[0])
            over = b"1" in rank.gather(b"1" if told else b"0", ranks)
    rank.barrier()


def main() -> int:
    plugin, me, ranks, root = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        with Rank(plugin, me, ranks, root, channels=2, timeout_s=60, rest_us=100) as rank:
            rank.connect()
            say(event="ready")
            play(rank, me, ranks)
    except NcclplayError as error:
        say(event="error", text=str(error), code=error.code)
        return error.code
    say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
