# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over HARP: the backend "harp" for CPU tensors.

    dist.init_process_group("harp")  # or "cpu:harp,cuda:nccl"

torch finds the backend by itself (the entry point group torch.backends), so no import is needed.
docs/torch.md is the guide.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Backend, ProcessGroup

    from harp.torch.tuning import Tuning, tune

__all__ = ["Options", "Tuning", "register", "stats", "tune"]

# Values of coll/harp_coll.h.
_WIRES = {None: 0, "native": 1, "float16": 2, "bfloat16": 3}


@dataclass(frozen=True)
class Options:
    """Of one process group: dist.new_group(pg_options=Options(wire="float16")).

    Parameters
    ----------
    wire
        "float16" or "bfloat16" halves what all_reduce sends between hosts for sums and averages of
        float32, and rounds it. All ranks give the same. None: HARP_COLL_WIRE, else "native".

    Raises
    ------
    ValueError
        There is no such format.
    """

    wire: str | None = None

    def __post_init__(self) -> None:
        if self.wire not in _WIRES:
            raise ValueError(f"no wire format {self.wire!r}: native, float16, bfloat16 or None")


def register() -> None:
    """Make "harp" known to torch.distributed. `import torch` calls it, so it must be cheap."""
    import torch.distributed as dist

    if dist.is_available() and "HARP" not in dist.Backend._plugins:
        dist.Backend.register_backend("harp", _create, extended_api=True, devices=["cpu"])


def _options_of(given: object) -> Options:
    """What init_process_group() got as pg_options; in "cpu:harp,cuda:nccl" they may be NCCL's."""
    from torch._C._distributed_c10d import Backend as CBackend

    if isinstance(given, Options):
        return given
    if given is None or isinstance(given, CBackend.Options):
        return Options()
    raise TypeError(
        f"pg_options of the harp backend are harp.torch.Options, not {type(given).__name__}"
    )


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
        _WIRES[_options_of(backend_options).wire],
    )
    return backend


def __getattr__(name: str) -> Any:
    # `import torch` imports this module, so it must not import torch.nn.
    if name in ("tune", "Tuning"):
        from harp.torch import tuning

        return getattr(tuning, name)
    raise AttributeError(f"module 'harp.torch' has no attribute {name!r}")


def _backend_of(group: ProcessGroup | None) -> Backend:
    import torch
    import torch.distributed as dist

    backend: Backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return backend


def stats(group: ProcessGroup | None = None) -> dict[str, int]:
    """Return what a process group sent and received.

    Parameters
    ----------
    group
        The group; None: the world.

    Returns
    -------
    dict
        Operations; bytes and messages over the network (net) and shared memory (shm).

    Raises
    ------
    torch.distributed.DistBackendError, ValueError
        The group's CPU backend is not harp, or it is destroyed.
    """
    from harp.torch import building

    counters: dict[str, int] = building.module().stats(_backend_of(group))
    return counters
