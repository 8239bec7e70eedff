# SPDX-License-Identifier: Apache-2.0
"""A job without a GPU: the ranks sum their arrays with an all-reduce over HARP.

examples/torchrun.sh examples/allreduce.py
"""

import numpy as np

from harp.collectives import Communicator

with Communicator.from_env() as comm:
    values = np.full(1 << 20, comm.rank + 1, dtype="f4")
    comm.allreduce(values)
    expected = comm.world * (comm.world + 1) / 2
    if not (values == expected).all():
        raise SystemExit(f"rank {comm.rank}: the sum is wrong: {values}")
    print(f"rank {comm.rank} of {comm.world}: the sum is {values[0]:.0f}", flush=True)
