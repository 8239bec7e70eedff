# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over HARP: the backend "harp" for CPU tensors.

    dist.init_process_group("harp")  # or "cpu:harp,cuda:nccl"

torch finds the backend by itself (the entry point group torch.backends), so no import is needed.
docs/torch.md is the guide.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Backend, ProcessGroup

__all__ = ["register", "stats"]


def register() -> None:
    """Makes "harp" known to torch.distributed. `import torch` calls it, so it must be cheap."""
    import torch.distributed as dist

    if dist.is_available() and "HARP" not in dist.Backend._plugins:
        dist.Backend.register_backend("harp", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: object) -> Backend:
    import atexit

    from harp import _paths
    from harp.torch import building

    compiled = building.module()
    atexit.unregister(compiled.close_all)
    atexit.register(compiled.close_all)
    # HARP_COLL_NET: another ncclNet plugin, as libharp-coll documents it.
    plugin = "" if os.environ.get("HARP_COLL_NET") else str(_paths.plugin())
    backend: Backend = compiled.create(
        options.store,
        options.group_rank,
        options.group_size,
        int(options.timeout.total_seconds() * 1000),
        options.group_id,
        plugin,
    )
    return backend


def _backend_of(group: ProcessGroup | None) -> Backend:
    import torch
    import torch.distributed as dist

    backend: Backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return backend


def stats(group: ProcessGroup | None = None) -> dict[str, int]:
    """What a process group (default: the world) sent and received, over the network and shared
    memory: bytes, messages, operations."""
    from harp.torch import building

    counters: dict[str, int] = building.module().stats(_backend_of(group))
    return counters
