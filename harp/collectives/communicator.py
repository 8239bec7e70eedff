# SPDX-License-Identifier: Apache-2.0
"""Communicator: one rank of a group, for numpy arrays."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from harp import _paths
from harp._coll import Group, Request
from harp.closing import Closing
from harp.collectives.environment import Job
from harp.collectives.store import Store, TcpStore

Array = NDArray[Any]
P = ParamSpec("P")
T = TypeVar("T")

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


Words: TypeAlias = dict[str, Any]  # arguments of Group.run()
Plan: TypeAlias = tuple[int, Words, T]  # an operation, and what it returns in the end
Method: TypeAlias = "Callable[Concatenate[Communicator, P], T]"
Planner: TypeAlias = "Callable[Concatenate[Communicator, P], Plan[T]]"


def _methods(plan: "Planner[P, T]") -> "tuple[Method[P, T], Method[P, Request]]":
    """Return the method that does the operation, and the one that starts it."""
    name = plan.__name__.lstrip("_")

    @functools.wraps(plan)
    def call(self: "Communicator", /, *args: P.args, **options: P.kwargs) -> T:
        op, words, result = plan(self, *args, **options)
        self._run(op, **{"dtype": self._dtype} | words)
        return result

    @functools.wraps(plan)
    def start(self: "Communicator", /, *args: P.args, **options: P.kwargs) -> Request:
        op, words, result = plan(self, *args, **options)
        return self._start(op, result=result, **{"dtype": self._dtype} | words)

    call.__name__, start.__name__ = name, f"i{name}"
    start.__doc__ = f"Start {name}() and return its Request.\n\n{inspect.getdoc(plan)}"
    return call, start


class Communicator(Closing):
    """One rank of a group of processes. All ranks call the same operations in the same order.

    Arrays are C-contiguous, of numpy's integers, floats, complex numbers or bool; with
    bfloat16=True, uint16 arrays hold bfloat16. Operations work in the caller's memory. Those that
    begin with `i` start and return a Request, whose wait() returns what the operation without the
    `i` returns; the arrays belong to the operation until then. An error of one operation ends the
    group: all later calls raise CollectiveError with the same text.

    Parameters
    ----------
    rank, world
        This rank's number and their count.
    store
        Where the ranks meet: an object with set(key, bytes), get(key) and wait(key, seconds).
    name
        Of the group, unique in the store.
    plugin
        Path or name of an ncclNet plugin; None: this HARP's.
    device
        The plugin's device.
    timeout_s
        Of each operation, in seconds.
    host
        Ranks with equal texts share memory; "": none do; None: those of one host do.
    wire
        "float16" or "bfloat16" halves what crosses the network for sums and averages of float32 by
        allreduce, and rounds it; sums are float32. All ranks give the same. None: HARP_COLL_WIRE,
        else "native".
    bfloat16
        Whether uint16 arrays hold bfloat16.

    Raises
    ------
    CollectiveError
        An operation failed or timed out; the text names the ranks. Also for making a communicator.
    ValueError
        Arguments of a call contradict each other, or the communicator is closed.
    TypeError
        An array has a type that can't be moved.
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
        """Join the job that torchrun, Slurm or MPI started; without them, a world of one.

        Rank 0 serves the key-value store at the job's address (harp.collectives.Job says which
        variables count).

        Parameters
        ----------
        environment
            The job's variables; None: this process's.
        **options
            Those of Communicator.

        Returns
        -------
        Communicator
            This process's rank. Closing it closes the store.

        Raises
        ------
        ValueError
            A variable is missing or wrong.
        OSError
            Rank 0's store can't be reached, or refuses this process.
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
        """Make a group of some ranks, which alone call this.

        Parameters
        ----------
        ranks
            Their numbers in this group; their order gives the new ones.
        **options
            Those of Communicator; the others are this one's.

        Returns
        -------
        Communicator
            The new group's.
        """
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

    def _allreduce(
        self, values: Array, op: str = "sum", *, out: Array | None = None, wire: str | None = None
    ) -> Plan[Array]:
        """Reduce all ranks' values; all ranks get the same bits.

        Parameters
        ----------
        values
            This rank's part.
        op
            sum, avg, prod, min, max, band, bor or bxor.
        out
            Where the result goes; None: in place.
        wire
            As the communicator's, for this call.

        Returns
        -------
        numpy.ndarray
            `out`, or `values`.
        """
        target = values if out is None else out
        self._same_shape(values, target)
        words = {"reduce": _reduction(op), "wire": _wire(wire), "source": values, "target": target}
        return _ALLREDUCE, words, target

    allreduce, iallreduce = _methods(_allreduce)

    def _reduce(
        self, values: Array, root: int = 0, op: str = "sum", *, out: Array | None = None
    ) -> Plan[Array | None]:
        """Reduce all ranks' values for the root.

        Parameters
        ----------
        values, op, out
            As of allreduce(); without `out`, the root gets a new array.
        root
            The rank that gets the result.

        Returns
        -------
        numpy.ndarray or None
            The result at the root, None on the other ranks.
        """
        target = None
        if self.rank == root:
            target = np.empty_like(values, order="C") if out is None else out
            self._same_shape(values, target)
        words = {"reduce": _reduction(op), "peer": root, "source": values, "target": target}
        return _REDUCE, words, target

    reduce, ireduce = _methods(_reduce)

    def _reduce_scatter(
        self,
        values: Array,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Plan[Array]:
        """Reduce all ranks' values, of which each rank gets a block. Blocks lie in rank order.

        Parameters
        ----------
        values, op
            As of allreduce().
        counts
            Elements of each rank's block; None: all have the same number.
        out
            Where the block goes; None: to a new array.

        Returns
        -------
        numpy.ndarray
            This rank's block.
        """
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
        return _REDUCE_SCATTER, words | {"in_counts": counts}, target

    reduce_scatter, ireduce_scatter = _methods(_reduce_scatter)

    # ---- copies --------------------------------------------------------------------------------

    def _broadcast(self, values: Array, root: int = 0) -> Plan[Array]:
        """Copy the root's values to all ranks, in place.

        Parameters
        ----------
        values
            The root's values; the other ranks' are replaced.
        root
            The rank that has them.

        Returns
        -------
        numpy.ndarray
            `values`.
        """
        return _BROADCAST, {"peer": root, "target": values}, values

    broadcast, ibroadcast = _methods(_broadcast)

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

    def _allgather(
        self, values: Array, *, counts: Sequence[int] | None = None, out: Array | None = None
    ) -> Plan[Array]:
        """Join all ranks' values on all ranks, in rank order.

        Parameters
        ----------
        values
            This rank's part.
        counts
            Elements of each rank, where they differ.
        out
            Where the result goes; None: to a new array.

        Returns
        -------
        numpy.ndarray
            An array of shape (world, *shape), or a flat one with counts.
        """
        target = self._gather_target(values, counts, out)
        words = {"source": values, "target": target, "count": values.size, "out_counts": counts}
        return _ALLGATHER, words, target

    allgather, iallgather = _methods(_allgather)

    def _gather(
        self,
        values: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Plan[Array | None]:
        """Join all ranks' values at the root, as allgather().

        Parameters
        ----------
        values, counts, out
            As of allgather(). Only the root needs counts.
        root
            The rank that gets the result.

        Returns
        -------
        numpy.ndarray or None
            The result at the root, None on the other ranks.
        """
        target = self._gather_target(values, counts, out) if self.rank == root else None
        words = {"peer": root, "source": values, "target": target, "count": values.size}
        return _GATHER, words | {"out_counts": counts if self.rank == root else None}, target

    gather, igather = _methods(_gather)

    def _scatter(
        self,
        values: Array | None,
        out: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
    ) -> Plan[Array]:
        """Copy block r of the root's values to rank r.

        Parameters
        ----------
        values
            The root's values; the other ranks' are not used.
        out
            Where this rank's block goes.
        root
            The rank that has the values.
        counts
            Elements of each rank's block; None: all have the same number.

        Returns
        -------
        numpy.ndarray
            `out`.
        """
        words: dict[str, Any] = {"peer": root, "target": out, "count": out.size}
        if self.rank != root:
            return _SCATTER, words, out
        if values is None:
            raise ValueError("scatter: the root has no values")
        self._check_counts(counts, values, "counts")
        if counts is None:
            self._check_size(values, self.world * out.size, "values")
        else:
            self._check_size(out, counts[root], "out")
        return _SCATTER, words | {"source": values, "in_counts": counts}, out

    scatter, iscatter = _methods(_scatter)

    def _alltoall(
        self,
        values: Array,
        *,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Plan[Array]:
        """Send block r of the values to rank r.

        Parameters
        ----------
        values
            One block for each rank.
        in_counts, out_counts
            Elements of the blocks for, and from, each rank; None: all have the same number.
        out
            Where the result goes; None: to a new array.

        Returns
        -------
        numpy.ndarray
            One block from each rank.
        """
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
        return _ALLTOALL, words | {"in_counts": in_counts, "out_counts": out_counts}, target

    alltoall, ialltoall = _methods(_alltoall)

    # ---- messages and barrier ------------------------------------------------------------------

    def _send(self, values: Array, to: int, tag: int = 0) -> Plan[None]:
        """Send values; return when they may be changed: up to 32 KiB at once, more when they are
        received.

        Parameters
        ----------
        values, to, tag
            The elements, the receiving rank, and a number that its recv() names as well.
        """
        return _SEND, {"peer": to, "tag": tag, "source": values}, None

    send, isend = _methods(_send)

    def _recv(self, out: Array, source: int | None = None, tag: int = 0) -> Plan[Array]:
        """Receive up to out.size elements.

        Parameters
        ----------
        out
            Where they go.
        source, tag
            The sending rank (None: any), and the number that its send() names.
        """
        peer = -1 if source is None else source
        return _RECV, {"peer": peer, "tag": tag, "target": out}, out

    _, irecv = _methods(_recv)

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> tuple[int, int]:
        """Receive up to out.size elements; the Request of irecv() has what this returns.

        Parameters
        ----------
        out, source, tag
            As of irecv().

        Returns
        -------
        tuple
            The sending rank, and the number of elements.
        """
        request = self.irecv(out, source, tag)
        request.wait()
        return request.source, request.count

    def _barrier(self) -> Plan[None]:
        """Return when all ranks have called it."""
        return _BARRIER, {"dtype": -1}, None

    barrier, ibarrier = _methods(_barrier)

    # ---- the rest ------------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """Let operations in progress and all later ones fail, on all ranks. Any thread may call it.

        Parameters
        ----------
        reason
            The text of their errors.
        """
        self._group.abort(reason)

    def stats(self) -> dict[str, int]:
        """Return counts of operations, bytes and messages, of the plugin (net) and memory (shm)."""
        return self._group.stats()

    def net(self) -> dict[str, str | int]:
        """Return the plugin in use: name, path, device, ABI version."""
        return self._group.net()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._group.closed

    def close(self) -> None:
        """End operations in progress and leave the group. Not collective; safe to call twice."""
        self._group.close()
        if self._owned_store is not None:
            self._owned_store.close()

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
