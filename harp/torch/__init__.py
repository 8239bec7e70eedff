# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over HARP: the backend "harp" for CPU tensors.

    dist.init_process_group("harp")  # or "cpu:harp,cuda:nccl"

torch loads the backend by the entry point group torch.backends, so no import is needed.
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
    """Options of a process group: dist.new_group(pg_options=Options(wire="float16")).

    Parameters
    ----------
    wire
        The format in which all_reduce sends float32 between hosts for SUM and AVG. "float16" and
        "bfloat16" halve the bytes and round the values. All ranks must use the same format. None:
        HARP_COLL_WIRE, else "native".

    Raises
    ------
    ValueError
        The format is unknown.
    """

    wire: str | None = None

    def __post_init__(self) -> None:
        if self.wire not in _WIRES:
            raise ValueError(f"no wire format {self.wire!r}: native, float16, bfloat16 or None")


def register() -> None:
    """Register the backend "harp". `import torch` calls this function, so it must be cheap."""
    import torch.distributed as dist

    if dist.is_available() and "HARP" not in dist.Backend._plugins:
        dist.Backend.register_backend("harp", _create, extended_api=True, devices=["cpu"])


def _check_options(pg_options: object) -> Options:
    """Return harp's options; with "cpu:harp,cuda:nccl", pg_options may be NCCL's."""
    from torch._C._distributed_c10d import Backend as CBackend

    if isinstance(pg_options, Options):
        return pg_options
    if pg_options is None or isinstance(pg_options, CBackend.Options):
        return Options()
    raise TypeError(
        f"pg_options of the harp backend are harp.torch.Options, not {type(pg_options).__name__}"
    )


def _create(options: Any, backend_options: object) -> Backend:
    import atexit

    from harp import _paths
    from harp.torch import building

    compiled = building.module()
    atexit.unregister(compiled.close_all)
    atexit.register(compiled.close_all)
    # HARP_COLL_NET replaces the plugin; libharp-coll reads it.
    plugin = "" if os.environ.get("HARP_COLL_NET") else str(_paths.plugin())
    backend: Backend = compiled.create(
        options.store,
        options.group_rank,
        options.group_size,
        int(options.timeout.total_seconds() * 1000),
        options.group_id,
        plugin,
        _WIRES[_check_options(backend_options).wire],
    )
    return backend


def __getattr__(name: str) -> Any:
    # `import torch` imports this module, which must therefore not import torch.nn.
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
    """Return counters of a process group.

    Parameters
    ----------
    group
        The group; None: the world.

    Returns
    -------
    dict
        Operations; bytes and messages over the network (net) and through shared memory (shm).

    Raises
    ------
    torch.distributed.DistBackendError, ValueError
        The group's CPU backend is not harp, or the group was destroyed.
    """
    from harp.torch import building

    counters: dict[str, int] = building.module().stats(_backend_of(group))
    return counters
