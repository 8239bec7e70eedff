# SPDX-License-Identifier: Apache-2.0
"""Calls the plugin's tuner for NCCL, to show what it decides by a profile.

The numbers of functions, algorithms and protocols are NCCL's (plugin/tuner/tuner_abi.h).
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harp import _paths
from harp.config.profile import ProfileError, read
from harp.errors import Exit, HarpError

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_ALGORITHMS = ("tree", "ring", None, None, None, None, "PAT")  # None: needs special hardware
_PROTOCOLS = ("LL", "LL128", "Simple")
IGNORED = -1.0
_CHUNK_BYTES = 1 << 20  # NCCL's proposal

_Init = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_size_t,
    *[ctypes.c_void_p] * 3,
)
_Info = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_int] * 3,
    ctypes.POINTER(ctypes.c_int),
)
_Finalize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Chunk = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    *[ctypes.c_int] * 3,
    ctypes.POINTER(ctypes.c_size_t),
)


class _Table(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", _Init),
        ("info", _Info),
        ("finalize", _Finalize),
        ("chunk", _Chunk),
    )


@contextmanager
def _profile(file: Path) -> Iterator[None]:
    """Set HARP_PROFILE, which the plugin reads, inside the block."""
    before = os.environ.get("HARP_PROFILE")
    os.environ["HARP_PROFILE"] = str(file)
    try:
        yield
    finally:
        del os.environ["HARP_PROFILE"]
        if before is not None:
            os.environ["HARP_PROFILE"] = before


def _check(file: Path) -> None:
    try:
        read(file)
    except FileNotFoundError:
        raise HarpError(
            f"{file}: no such file; measure with `harpctl tune --nccl`", Exit.MISSING
        ) from None
    except (UnicodeDecodeError, ProfileError) as error:
        raise HarpError(f"{file} cannot be used: {error}") from error


def explain(file: Path, function: str, size: int, ranks: int, hosts: int) -> dict[str, Any]:
    """Return the costs by which NCCL chooses among algorithms that need no special hardware.

    channels: None if the tuner leaves their number to NCCL.
    """
    _check(file)
    table = _Table.in_dll(ctypes.CDLL(str(_paths.plugin())), "ncclTunerPlugin_v6")
    context = ctypes.c_void_p()
    with _profile(file):
        table.init(ctypes.byref(context), 0, ranks, hosts, None, None, None)
    if not context:
        raise HarpError(
            f"{file}: no [tuner], or not yours; measure with `harpctl tune --nccl`",
            Exit.MISSING,
        )
    number = FUNCTIONS.index(function)
    columns = len(_PROTOCOLS)
    # 1e30: a time that the tuner never returns; an entry that keeps it has no model.
    initial = [1e30 if name else IGNORED for name in _ALGORITHMS for _ in range(columns)]
    costs = (ctypes.c_float * len(initial))(*initial)
    channels = ctypes.c_int(0)
    chunk = ctypes.c_size_t(_CHUNK_BYTES)
    table.info(
        context, number, size, 1, costs, len(_ALGORITHMS), columns, 0, ctypes.byref(channels)
    )
    simple = _PROTOCOLS.index("Simple")
    table.chunk(context, number, size, 1, simple, channels.value, ctypes.byref(chunk))
    table.finalize(context)
    rows: list[dict[str, Any]] = [
        {"algorithm": name, "protocol": protocol, "us": costs[a * columns + p], "chosen": False}
        for a, name in enumerate(_ALGORITHMS)
        for p, protocol in enumerate(_PROTOCOLS)
        if 0 <= costs[a * columns + p] < 1e29 and not (name == "PAT" and protocol != "Simple")
    ]
    min(rows, key=lambda row: float(row["us"]))["chosen"] = True
    return {"costs": rows, "channels": channels.value or None, "chunk_bytes": chunk.value}
