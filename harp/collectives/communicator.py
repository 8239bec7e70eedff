# SPDX-License-Identifier: Apache-2.0
"""Communicator: one rank of a group, for numpy arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harp import _paths
from harp._coll import Group, Request
from harp.collectives.environment import Job
from harp.collectives.store import Store, TcpStore

Array = NDArray[Any]

# Values of coll/harp_coll.h.
_ALLREDUCE, _BROADCAST, _REDUCE, _ALLGATHER, _REDUCE_SCATTER = 0, 1, 2, 3, 4
_GATHER, _SCATTER, _ALLTOALL, _BARRIER, _SEND, _RECV = 5, 6, 7, 8, 9, 10
_BFLOAT16 = 9
_REDUCTIONS = {
    name: value
    for value, name in enumerate(("sum", "avg", "prod", "min", "max", "band", "bor", "bxor"))
}
_WIRES = {None: 0, "native": 1, "float16": 2, "bfloat16": 3}


def _reduction(op: str) -> int:
    try:
        return _REDUCTIONS[op]
    except KeyError:
        raise ValueError(f"no reduction {op!r}: one of {', '.join(_REDUCTIONS)}") from None


def _wire(wire: str | None) -> int:
    try:
        return _WIRES[wire]
    except KeyError:
        raise ValueError(f"no wire format {wire!r}: native, float16, bfloat16 or None") from None


def _plugin_path(plugin: str | Path | None) -> str:
    """As NCCL_NET_PLUGIN: a path, or a name that the loader finds; "harp" is this HARP's."""
    if plugin is None or str(plugin) == "harp":
        return str(_paths.plugin())
    if isinstance(plugin, str) and "/" not in plugin:
        return plugin
    return str(_paths.plugin(str(plugin)))


class Communicator:
    """One rank of a group of processes. All ranks call the same operations in the same order.

    Arrays are C-contiguous, of numpy's integers, floats, complex numbers or bool; with
    bfloat16=True, uint16 arrays hold bfloat16. Operations work in the caller's memory. Those that
    begin with `i` start and return a Request, whose wait() returns what the operation without the
    `i` returns; the arrays belong to the operation until then. An error of one operation ends the
    group: all later calls raise CollectiveError with the same text.

    store: where the ranks meet, an object with set(key, bytes), get(key) and wait(key, seconds);
    name: unique in it; plugin: path or name of an ncclNet plugin, by default this HARP's;
    timeout_s: of each operation; host: ranks with equal texts share memory, "" shares none.

    wire: "float16" or "bfloat16" halves what crosses the network for sums and averages of float32
    by allreduce, and rounds it; sums are float32. All ranks give the same. None: HARP_COLL_WIRE,
    else "native".
    """

    def __init__(
        self,
        rank: int,
        world: int,
        store: Store | None,
        *,
        name: str = "world",
        plugin: str | Path | None = None,
        device: int = 0,
        timeout_s: float = 300,
        host: str | None = None,
        wire: str | None = None,
        bfloat16: bool = False,
    ) -> None:
        self.rank, self.world, self.name = rank, world, name
        self._options: dict[str, Any] = {"device": device, "timeout_s": timeout_s, "host": host}
        self._options["wire"] = wire
        self._plugin = _plugin_path(plugin)
        self._dtype = _BFLOAT16 if bfloat16 else -1
        self._owned_store: TcpStore | None = None
        self._numbers: dict[str, count[int]] = {}
        options = self._options | {"wire": _wire(wire)}
        self._group = Group(rank, world, name, store, plugin=self._plugin, **options)
        self._run, self._start = self._group.run, self._group.start

    @classmethod
    def from_env(
        cls, environment: Mapping[str, str] | None = None, **options: Any
    ) -> "Communicator":
        """The rank that torchrun, Slurm or MPI started; without them, a world of one.

        Rank 0 serves the key-value store at the job's address (harp.collectives.Job says which
        variables count).
        """
        job = Job.from_env(environment)
        timeout_s = options.get("timeout_s", 300)
        store = job.store(timeout_s) if job.world > 1 else None
        try:
            comm = cls(job.rank, job.world, store, name=options.pop("name", job.name), **options)
        except BaseException:
            if store is not None:
                store.close()
            raise
        comm._owned_store = store
        return comm

    def subgroup(self, ranks: Sequence[int], **options: Any) -> "Communicator":
        """A group of some ranks, numbered in the given order. They alone call this."""
        if self.rank not in ranks:
            raise ValueError(f"rank {self.rank} is not in the subgroup {list(ranks)}")
        if len(set(ranks)) != len(ranks) or not all(0 <= r < self.world for r in ranks):
            raise ValueError(f"{list(ranks)} are not different ranks of a world of {self.world}")
        text = ",".join(map(str, ranks))
        digest = hashlib.sha256(f"{self.name}:{text}".encode()).hexdigest()[:16]
        number = next(self._numbers.setdefault(text, count()))
        return Communicator(
            list(ranks).index(self.rank),
            len(ranks),
            self._group.store,
            name=f"{digest}.{number}",
            plugin=self._plugin,
            **(self._options | options),
        )

    # ---- reductions ----------------------------------------------------------------------------

    def allreduce(
        self, values: Array, op: str = "sum", *, out: Array | None = None, wire: str | None = None
    ) -> Array:
        """The reduction of all ranks' values on all ranks, the same bits everywhere.

        op: sum, avg, prod, min, max, band, bor, bxor. Without out, in place. wire: as the
        communicator's, for this call.
        """
        target = values if out is None else out
        self._same_shape(values, target)
        self._run(
            _ALLREDUCE,
            _reduction(op),
            _wire(wire),
            source=values,
            target=target,
            dtype=self._dtype,
        )
        return target

    def iallreduce(
        self, values: Array, op: str = "sum", *, out: Array | None = None, wire: str | None = None
    ) -> Request:
        """Starts allreduce()."""
        target = values if out is None else out
        self._same_shape(values, target)
        return self._start(
            _ALLREDUCE,
            _reduction(op),
            _wire(wire),
            source=values,
            target=target,
            dtype=self._dtype,
            result=target,
        )

    def _reduce(
        self, values: Array, root: int, op: str, out: Array | None
    ) -> tuple[dict[str, Any], Array | None]:
        target = None
        if self.rank == root:
            target = np.empty_like(values, order="C") if out is None else out
            self._same_shape(values, target)
        words = {"reduce": _reduction(op), "peer": root, "source": values, "target": target}
        return words | {"dtype": self._dtype}, target

    def reduce(
        self, values: Array, root: int = 0, op: str = "sum", *, out: Array | None = None
    ) -> Array | None:
        """The reduction of all ranks' values at the root, which gets it; others get None."""
        words, target = self._reduce(values, root, op, out)
        self._run(_REDUCE, **words)
        return target

    def ireduce(
        self, values: Array, root: int = 0, op: str = "sum", *, out: Array | None = None
    ) -> Request:
        """Starts reduce()."""
        words, target = self._reduce(values, root, op, out)
        return self._start(_REDUCE, result=target, **words)

    def _reduce_scatter(
        self, values: Array, op: str, counts: Sequence[int] | None, out: Array | None
    ) -> tuple[dict[str, Any], Array]:
        self._check_counts(counts, values, "counts")
        number = values.size // self.world if counts is None else counts[self.rank]
        if counts is None and values.size % self.world:
            raise ValueError(
                f"reduce_scatter: {values.size} elements can't be divided among {self.world} ranks:"
                " give counts"
            )
        target = np.empty(number, values.dtype) if out is None else out
        self._check_size(target, number, "out")
        words = {"reduce": _reduction(op), "source": values, "target": target, "count": number}
        return words | {"in_counts": counts, "dtype": self._dtype}, target

    def reduce_scatter(
        self,
        values: Array,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array:
        """This rank's block of the reduction. Blocks lie in rank order; counts: their elements."""
        words, target = self._reduce_scatter(values, op, counts, out)
        self._run(_REDUCE_SCATTER, **words)
        return target

    def ireduce_scatter(
        self,
        values: Array,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Request:
        """Starts reduce_scatter()."""
        words, target = self._reduce_scatter(values, op, counts, out)
        return self._start(_REDUCE_SCATTER, result=target, **words)

    # ---- copies --------------------------------------------------------------------------------

    def broadcast(self, values: Array, root: int = 0) -> Array:
        """The root's values on all ranks, in place."""
        self._run(_BROADCAST, peer=root, target=values, dtype=self._dtype)
        return values

    def ibroadcast(self, values: Array, root: int = 0) -> Request:
        """Starts broadcast()."""
        return self._start(_BROADCAST, peer=root, target=values, dtype=self._dtype, result=values)

    def _gather_target(
        self, values: Array, counts: Sequence[int] | None, out: Array | None
    ) -> Array:
        if counts is None:
            target = np.empty((self.world, *values.shape), values.dtype) if out is None else out
            self._check_size(target, self.world * values.size, "out")
            return target
        self._check_count(counts)
        if values.size != counts[self.rank]:
            raise ValueError(
                f"rank {self.rank} has {values.size} elements, and counts say {counts[self.rank]}"
            )
        target = np.empty(sum(counts), values.dtype) if out is None else out
        self._check_size(target, sum(counts), "out")
        return target

    def allgather(
        self, values: Array, *, counts: Sequence[int] | None = None, out: Array | None = None
    ) -> Array:
        """All ranks' values on all ranks, in rank order: (world, *shape), or flat with counts.

        counts: elements of each rank, where they differ.
        """
        target = self._gather_target(values, counts, out)
        self._run(
            _ALLGATHER,
            source=values,
            target=target,
            count=values.size,
            out_counts=counts,
            dtype=self._dtype,
        )
        return target

    def iallgather(
        self, values: Array, *, counts: Sequence[int] | None = None, out: Array | None = None
    ) -> Request:
        """Starts allgather()."""
        target = self._gather_target(values, counts, out)
        return self._start(
            _ALLGATHER,
            source=values,
            target=target,
            count=values.size,
            out_counts=counts,
            dtype=self._dtype,
            result=target,
        )

    def _gather(
        self, values: Array, root: int, counts: Sequence[int] | None, out: Array | None
    ) -> tuple[dict[str, Any], Array | None]:
        target = self._gather_target(values, counts, out) if self.rank == root else None
        words = {"peer": root, "source": values, "target": target, "count": values.size}
        out_counts = counts if self.rank == root else None
        return words | {"out_counts": out_counts, "dtype": self._dtype}, target

    def gather(
        self,
        values: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array | None:
        """allgather() for the root only; others get None. Only the root needs counts."""
        words, target = self._gather(values, root, counts, out)
        self._run(_GATHER, **words)
        return target

    def igather(
        self,
        values: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Request:
        """Starts gather()."""
        words, target = self._gather(values, root, counts, out)
        return self._start(_GATHER, result=target, **words)

    def _scatter(
        self, values: Array | None, root: int, counts: Sequence[int] | None, out: Array
    ) -> dict[str, Any]:
        in_counts = None
        if self.rank == root:
            if values is None:
                raise ValueError("scatter: the root has no values")
            self._check_counts(counts, values, "counts")
            if counts is None:
                self._check_size(values, self.world * out.size, "values")
            else:
                self._check_size(out, counts[root], "out")
            in_counts = counts
        source = values if self.rank == root else None
        words = {"peer": root, "source": source, "target": out, "count": out.size}
        return words | {"in_counts": in_counts, "dtype": self._dtype}

    def scatter(
        self,
        values: Array | None,
        out: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
    ) -> Array:
        """Block r of the root's values into out on rank r. Other ranks' values are not used."""
        self._run(_SCATTER, **self._scatter(values, root, counts, out))
        return out

    def iscatter(
        self,
        values: Array | None,
        out: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
    ) -> Request:
        """Starts scatter()."""
        return self._start(_SCATTER, result=out, **self._scatter(values, root, counts, out))

    def _alltoall(
        self,
        values: Array,
        in_counts: Sequence[int] | None,
        out_counts: Sequence[int] | None,
        out: Array | None,
    ) -> tuple[dict[str, Any], Array]:
        if (in_counts is None) != (out_counts is None):
            raise ValueError("alltoall: in_counts and out_counts go together")
        if out_counts is None:
            if values.size % self.world:
                raise ValueError(
                    f"alltoall: {values.size} elements can't be divided among {self.world} ranks: "
                    "give in_counts and out_counts"
                )
            target = np.empty_like(values, order="C") if out is None else out
            self._check_size(target, values.size, "out")
        else:
            self._check_counts(in_counts, values, "in_counts")
            self._check_count(out_counts)
            target = np.empty(sum(out_counts), values.dtype) if out is None else out
            self._check_size(target, sum(out_counts), "out")
        words = {"source": values, "target": target, "count": values.size // self.world}
        words |= {"in_counts": in_counts, "out_counts": out_counts, "dtype": self._dtype}
        return words, target

    def alltoall(
        self,
        values: Array,
        *,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array:
        """Block r of the values to rank r; the result's block r comes from rank r."""
        words, target = self._alltoall(values, in_counts, out_counts, out)
        self._run(_ALLTOALL, **words)
        return target

    def ialltoall(
        self,
        values: Array,
        *,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Request:
        """Starts alltoall()."""
        words, target = self._alltoall(values, in_counts, out_counts, out)
        return self._start(_ALLTOALL, result=target, **words)

    # ---- messages and barrier ------------------------------------------------------------------

    def send(self, values: Array, to: int, tag: int = 0) -> None:
        """Returns when values may be changed: up to 32 KiB at once, more when it is received."""
        self._run(_SEND, peer=to, tag=tag, source=values, dtype=self._dtype)

    def isend(self, values: Array, to: int, tag: int = 0) -> Request:
        """Starts send()."""
        return self._start(_SEND, peer=to, tag=tag, source=values, dtype=self._dtype)

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> tuple[int, int]:
        """Receives up to out.size elements from a rank, or any rank: (its rank, elements)."""
        request = self.irecv(out, source, tag)
        request.wait()
        return request.source, request.count

    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Request:
        """Starts recv(); the request's source and count say what came."""
        peer = -1 if source is None else source
        return self._start(_RECV, peer=peer, tag=tag, target=out, dtype=self._dtype, result=out)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._run(_BARRIER)

    def ibarrier(self) -> Request:
        """Starts barrier()."""
        return self._start(_BARRIER)

    # ---- the rest ------------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """Any thread: operations in progress and all later ones fail, on all ranks."""
        self._group.abort(reason)

    def stats(self) -> dict[str, int]:
        """Operations; bytes and messages over the plugin (net) and shared memory (shm)."""
        return self._group.stats()

    def net(self) -> dict[str, str | int]:
        """The plugin in use: name, path, device, ABI version."""
        return self._group.net()

    @property
    def closed(self) -> bool:
        """Was close() called?"""
        return self._group.closed

    def close(self) -> None:
        """Ends operations in progress and leaves the group. Not collective; safe to call twice."""
        self._group.close()
        if self._owned_store is not None:
            self._owned_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _same_shape(self, values: Array, out: Array) -> None:
        if out is not values and out.size != values.size:
            raise ValueError(f"out has {out.size} elements, and values has {values.size}")

    def _check_size(self, array: Array, size: int, name: str) -> None:
        if array.size != size:
            raise ValueError(f"{name} has {array.size} elements, and needs {size}")

    def _check_count(self, counts: Sequence[int]) -> None:
        if len(counts) != self.world or min(counts) < 0:
            raise ValueError(f"counts are {self.world} numbers of elements, one for each rank")

    def _check_counts(self, counts: Sequence[int] | None, values: Array, name: str) -> None:
        if counts is None:
            return
        self._check_count(counts)
        if sum(counts) != values.size:
            raise ValueError(f"{name} add up to {sum(counts)}, and values has {values.size}")
