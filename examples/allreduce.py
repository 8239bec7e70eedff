# SPDX-License-Identifier: Apache-2.0
"""A job without a GPU: each rank has an array, and all ranks get the sum over HARP.

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
