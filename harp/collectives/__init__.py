# SPDX-License-Identifier: Apache-2.0
"""Collective operations on numpy arrays, over HARP or any ncclNet plugin.

    with Communicator.from_env() as comm:
        comm.allreduce(gradient, "avg")

docs/collectives.md is the guide.
"""

from harp._coll import CollectiveError, Request, log_lines
from harp.collectives.communicator import Communicator
from harp.collectives.environment import Job
from harp.collectives.store import Store, TcpStore

__all__ = ["CollectiveError", "Communicator", "Job", "Request", "Store", "TcpStore", "log_lines"]
