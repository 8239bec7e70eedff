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
        raise ValueError(f"no reduction {op!r}: use {', '.join(_REDUCTIONS)}") from None


def _wire(wire: str | None) -> int:
    try:
        return _WIRES[wire]
    except KeyError:
        raise ValueError(f"no wire format {wire!r}: native, float16, bfloat16 or None") from None


def _plugin_path(plugin: str | Path | None) -> str:
    """Accept what NCCL_NET_PLUGIN accepts: a path, or a name for the loader. "harp": our own."""
    if plugin is None or str(plugin) == "harp":
        return str(_paths.plugin())
    if isinstance(plugin, str) and "/" not in plugin:
        return plugin
    return str(_paths.plugin(str(plugin)))


Arguments: TypeAlias = dict[str, Any]  # of Group.run()
Plan: TypeAlias = tuple[int, Arguments, T]  # an operation, its arguments and its result
Method: TypeAlias = "Callable[Concatenate[Communicator, P], T]"
Planner: TypeAlias = "Callable[Concatenate[Communicator, P], Plan[T]]"


def _methods(plan: "Planner[P, T]") -> "tuple[Method[P, T], Method[P, Request]]":
    """Return the blocking method and the nonblocking one of an operation."""
    name = plan.__name__.lstrip("_")

    @functools.wraps(plan)
    def call(self: "Communicator", /, *args: P.args, **options: P.kwargs) -> T:
        op, arguments, result = plan(self, *args, **options)
        self._run(op, **{"dtype": self._dtype} | arguments)
        return result

    @functools.wraps(plan)
    def start(self: "Communicator", /, *args: P.args, **options: P.kwargs) -> Request:
        op, arguments, result = plan(self, *args, **options)
        return self._start(op, result=result, **{"dtype": self._dtype} | arguments)

    call.__name__, start.__name__ = name, f"i{name}"
    start.__doc__ = f"Start {name}() and return its Request.\n\n{inspect.getdoc(plan)}"
    return call, start


class Communicator(Closing):
    """One rank of a group of processes. All ranks call the same operations in the same order.

    Arrays are C-contiguous, of numpy's integers, floats, complex numbers or bool; with
    bfloat16=True, uint16 arrays hold bfloat16. Operations work in the caller's memory. Methods that
    begin with `i` are nonblocking: they return a Request, whose wait() returns the result of the
    blocking method. Do not change the arrays before that. An error of one operation ends the
    group: all later calls raise CollectiveError with the same text.

    Parameters
    ----------
    rank, world
        The rank of this process, and the number of ranks.
    store
        The key-value store: an object with set(key, bytes), get(key) and wait(key, seconds).
    name
        The name of the group, unique in the store.
    plugin
        Path or name of an ncclNet plugin; None: HARP's.
    device
        The plugin's device.
    timeout_s
        Timeout of each operation, in seconds.
    host
        Ranks with equal texts share memory; "": this rank does not. None: HARP_COLL_HOST, else
        ranks on the same host share memory.
    wire
        The format in which allreduce sends float32 between hosts for sums and averages. "float16"
        and "bfloat16" halve the bytes and round the values; sums are float32. All ranks must use
        the same format. None: HARP_COLL_WIRE, else "native".
    bfloat16
        Whether uint16 arrays hold bfloat16.

    Raises
    ------
    CollectiveError
        An operation, or opening the group, failed or timed out; the text names the ranks.
    ValueError
        Arguments of a call contradict each other, or the communicator is closed.
    TypeError
        The type of an array is not supported.
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
        """Join the job that torchrun, Slurm or MPI started; without one, the world is one process.

        Rank 0 serves the key-value store at the job's address. harp.collectives.Job describes the
        variables.

        Parameters
        ----------
        environment
            The job's variables; None: this process's.
        **options
            Communicator's options.

        Returns
        -------
        Communicator
            The communicator. Closing it closes the store.

        Raises
        ------
        ValueError
            A variable is missing or invalid.
        OSError
            Rank 0's store cannot be reached, or refuses this process.
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
        """Open a group of some of this group's ranks. Only these ranks call it.

        Parameters
        ----------
        ranks
            Ranks of this group, in the order of their new ranks.
        **options
            Communicator's options; the defaults are those of this communicator.

        Returns
        -------
        Communicator
            The communicator of the new group.
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
        """Reduce all ranks' values; the results are equal bit for bit on all ranks.

        Parameters
        ----------
        values
            This rank's values.
        op
            sum, avg, prod, min, max, band, bor or bxor.
        out
            The array for the result; None: `values`.
        wire
            The format for this call, as of Communicator.

        Returns
        -------
        numpy.ndarray
            `out`, or `values`.
        """
        target = values if out is None else out
        self._same_shape(values, target)
        arguments = {
            "reduce": _reduction(op),
            "wire": _wire(wire),
            "source": values,
            "target": target,
        }
        return _ALLREDUCE, arguments, target

    allreduce, iallreduce = _methods(_allreduce)

    def _reduce(
        self, values: Array, root: int = 0, op: str = "sum", *, out: Array | None = None
    ) -> Plan[Array | None]:
        """Reduce all ranks' values for the root.

        Parameters
        ----------
        values, op, out
            As of allreduce(); without `out`, the root returns a new array.
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
        arguments = {"reduce": _reduction(op), "peer": root, "source": values, "target": target}
        return _REDUCE, arguments, target

    reduce, ireduce = _methods(_reduce)

    def _reduce_scatter(
        self,
        values: Array,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Plan[Array]:
        """Reduce all ranks' values; each rank gets a block. Blocks are in rank order.

        Parameters
        ----------
        values, op
            As of allreduce().
        counts
            Elements of each rank's block; None: all have the same number.
        out
            The array for the block; None: a new one.

        Returns
        -------
        numpy.ndarray
            This rank's block.
        """
        self._check_counts(counts, values, "counts")
        number = values.size // self.world if counts is None else counts[self.rank]
        if counts is None and values.size % self.world:
            raise ValueError(
                f"reduce_scatter: {values.size} elements cannot be divided among {self.world} "
                "ranks: pass counts"
            )
        target = np.empty(number, values.dtype) if out is None else out
        self._check_size(target, number, "out")
        arguments = {"reduce": _reduction(op), "source": values, "target": target, "count": number}
        return _REDUCE_SCATTER, arguments | {"in_counts": counts}, target

    reduce_scatter, ireduce_scatter = _methods(_reduce_scatter)

    # ---- copies --------------------------------------------------------------------------------

    def _broadcast(self, values: Array, root: int = 0) -> Plan[Array]:
        """Copy the root's values to all ranks, in place.

        Parameters
        ----------
        values
            On the root, the values; on other ranks, the array for them.
        root
            The rank that has the values.

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
                f"rank {self.rank} has {values.size} elements, but counts has {counts[self.rank]}"
            )
        target = np.empty(sum(counts), values.dtype) if out is None else out
        self._check_size(target, sum(counts), "out")
        return target

    def _allgather(
        self, values: Array, *, counts: Sequence[int] | None = None, out: Array | None = None
    ) -> Plan[Array]:
        """Concatenate all ranks' values in rank order, on all ranks.

        Parameters
        ----------
        values
            This rank's values.
        counts
            Elements of each rank, if the numbers differ.
        out
            The array for the result; None: a new one.

        Returns
        -------
        numpy.ndarray
            An array of shape (world, *shape), or a flat one with counts.
        """
        target = self._gather_target(values, counts, out)
        arguments = {"source": values, "target": target, "count": values.size, "out_counts": counts}
        return _ALLGATHER, arguments, target

    allgather, iallgather = _methods(_allgather)

    def _gather(
        self,
        values: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Plan[Array | None]:
        """Concatenate all ranks' values at the root.

        Parameters
        ----------
        values, counts, out
            As of allgather(); only the root needs counts.
        root
            The rank that gets the result.

        Returns
        -------
        numpy.ndarray or None
            The result at the root, None on the other ranks.
        """
        target = self._gather_target(values, counts, out) if self.rank == root else None
        arguments = {"peer": root, "source": values, "target": target, "count": values.size}
        return _GATHER, arguments | {"out_counts": counts if self.rank == root else None}, target

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
            The root's values; not used on other ranks.
        out
            The array for this rank's block.
        root
            The rank that has the values.
        counts
            Elements of each rank's block; None: all have the same number.

        Returns
        -------
        numpy.ndarray
            `out`.
        """
        arguments: dict[str, Any] = {"peer": root, "target": out, "count": out.size}
        if self.rank != root:
            return _SCATTER, arguments, out
        if values is None:
            raise ValueError("scatter: values is None on the root: pass an array")
        self._check_counts(counts, values, "counts")
        if counts is None:
            self._check_size(values, self.world * out.size, "values")
        else:
            self._check_size(out, counts[root], "out")
        return _SCATTER, arguments | {"source": values, "in_counts": counts}, out

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
            Elements of the block to, and from, each rank; None: all have the same number.
        out
            The array for the result; None: a new one.

        Returns
        -------
        numpy.ndarray
            One block from each rank.
        """
        if (in_counts is None) != (out_counts is None):
            raise ValueError("alltoall: pass both in_counts and out_counts, or neither")
        if out_counts is None:
            if values.size % self.world:
                raise ValueError(
                    f"alltoall: {values.size} elements cannot be divided among {self.world} ranks: "
                    "pass in_counts and out_counts"
                )
            target = np.empty_like(values, order="C") if out is None else out
            self._check_size(target, values.size, "out")
        else:
            self._check_counts(in_counts, values, "in_counts")
            self._check_count(out_counts)
            target = np.empty(sum(out_counts), values.dtype) if out is None else out
            self._check_size(target, sum(out_counts), "out")
        arguments = {"source": values, "target": target, "count": values.size // self.world}
        return _ALLTOALL, arguments | {"in_counts": in_counts, "out_counts": out_counts}, target

    alltoall, ialltoall = _methods(_alltoall)

    # ---- messages and barrier ------------------------------------------------------------------

    def _send(self, values: Array, to: int, tag: int = 0) -> Plan[None]:
        """Send values, and return when the array may be changed.

        Up to 32 KiB are copied and sent eagerly; for more, this waits until they are received.

        Parameters
        ----------
        values, to, tag
            The elements, the receiving rank, and a number that its recv() must match.
        """
        return _SEND, {"peer": to, "tag": tag, "source": values}, None

    send, isend = _methods(_send)

    def _recv(self, out: Array, source: int | None = None, tag: int = 0) -> Plan[Array]:
        """Receive up to out.size elements.

        Parameters
        ----------
        out
            The array for the elements.
        source, tag
            The sending rank (None: any), and the tag of its send().
        """
        peer = -1 if source is None else source
        return _RECV, {"peer": peer, "tag": tag, "target": out}, out

    _, irecv = _methods(_recv)

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> tuple[int, int]:
        """Receive up to out.size elements.

        The Request of irecv() has the returned values as `source` and `count`.

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
        """Fail operations in progress and all later ones, on all ranks. Any thread may call it.

        Parameters
        ----------
        reason
            A text for the errors.
        """
        self._group.abort(reason)

    def stats(self) -> dict[str, int]:
        """Return counters: operations; bytes and messages of the plugin (net) and memory (shm)."""
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
            raise ValueError(f"out has {out.size} elements, but values has {values.size}")

    def _check_size(self, array: Array, size: int, name: str) -> None:
        if array.size != size:
            raise ValueError(f"{name} has {array.size} elements, but needs {size}")

    def _check_count(self, counts: Sequence[int]) -> None:
        if len(counts) != self.world or min(counts) < 0:
            raise ValueError(f"counts must be {self.world} numbers of elements, one for each rank")

    def _check_counts(self, counts: Sequence[int] | None, values: Array, name: str) -> None:
        if counts is None:
            return
        self._check_count(counts)
        if sum(counts) != values.size:
            raise ValueError(f"{name} add up to {sum(counts)}, but values has {values.size}")
