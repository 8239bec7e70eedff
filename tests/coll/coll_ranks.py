# SPDX-License-Identifier: Apache-2.0
"""Ranks of a group, for test_coll.py: forks them, runs a scenario in each, prints what they say.

python coll_ranks.py SCENARIO WORLD RANKS HOSTS FOLDER: RANKS are this process's, as "0,2"; HOSTS is
how many hosts they pretend to be (rank r is on host r modulo HOSTS; 0: each has its own), or
"real". The ranks meet in FOLDER. One JSON line for each: [rank, result].
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from forked_ranks import expected, run, values

from harp.collectives import CollectiveError, Communicator

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
SIZES = (0, 1, 1000, 8192, 8193, 50001)


class FolderStore:
    """A key-value store in a folder that all ranks see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "_")

    def set(self, key: str, value: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(value)
        Path(file.name).rename(self._path(key))

    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def wait(self, key: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._path(key).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(key)
            time.sleep(0.001)


class Place:
    """One rank: where it is and how it opens groups."""

    def __init__(self, rank: int, world: int, hosts: str, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.hosts = world if hosts == "0" else 2 if hosts == "real" else int(hosts)
        self.store = FolderStore(folder)
        self.host = None
        if hosts != "real":
            self.host = f"host{rank % int(hosts)}" if int(hosts) else ""

    def open(self, name: str = "g", **options: Any) -> Communicator:
        options = {"timeout_s": 30.0, "host": self.host} | options
        return Communicator(self.rank, self.world, self.store, name=name, **options)


def same(got: Any, wanted: Any, what: object) -> None:
    assert got.tobytes() == wanted.tobytes(), (what, got[:8], wanted[:8])


def check_reductions(comm: Communicator, dtype: str, size: int) -> None:
    world = range(comm.world)
    ops = ["sum", "avg", "prod"]
    ops += ["min", "max"] if "complex" not in dtype else []
    ops += ["band", "bor", "bxor"] if dtype in TYPES else []
    root = size % comm.world
    arrays = [values(r, size, dtype) for r in world]
    blocks = [values(r, size * comm.world, dtype) for r in world]
    for op in ops:
        wanted = expected(op, arrays)
        what = (op, dtype, size, comm.rank)
        out = np.zeros(size, dtype)
        same(comm.allreduce(arrays[comm.rank], op, out=out), wanted, what)
        same(comm.allreduce(arrays[comm.rank].copy(), op), wanted, what)
        got = comm.reduce(arrays[comm.rank], root, op)
        if comm.rank == root:
            same(got, wanted, what)
        wanted = expected(op, blocks)[size * comm.rank : size * (comm.rank + 1)]
        same(comm.reduce_scatter(blocks[comm.rank], op), wanted, what)
        for place in (0, size * comm.rank):  # the output is a part of the input
            block = blocks[comm.rank].copy()
            out = block[place : place + size]
            same(comm.reduce_scatter(block, op, out=out), wanted, what)


def check_copies(comm: Communicator, dtype: str, size: int) -> None:
    me, world, root = comm.rank, comm.world, (size + 1) % comm.world
    arrays = [values(r, size, dtype) for r in range(world)]
    what = (dtype, size, me)
    together = np.concatenate(arrays)
    out = arrays[root].copy() if me == root else np.zeros(size, dtype)
    same(comm.broadcast(out, root), arrays[root], what)
    same(comm.allgather(arrays[me]).ravel(), together, what)
    got = comm.gather(arrays[me], root)
    if me == root:
        same(got.ravel(), together, what)
    out = np.zeros(size, dtype)
    same(comm.scatter(together if me == root else None, out, root), arrays[me], what)
    blocks = [values(r, size * world, dtype) for r in range(world)]
    wanted = np.concatenate([blocks[r][size * me : size * (me + 1)] for r in range(world)])
    same(comm.alltoall(blocks[me]), wanted, what)
    same(comm.alltoall(blocks[me], out=blocks[me]), wanted, what)


def check_counts(comm: Communicator, size: int) -> None:
    """Each rank has another number of elements, one has none."""
    me, world = comm.rank, comm.world
    counts = [(size * r) // 2 for r in range(world)]
    arrays = [values(r, counts[r], "int32") for r in range(world)]
    together = np.concatenate(arrays)
    same(comm.allgather(arrays[me], counts=counts), together, size)
    got = comm.gather(arrays[me], counts=counts if me == 0 else None)
    if me == 0:
        same(got, together, size)
    out = np.zeros(counts[me], "int32")
    whole = together if me == 0 else None
    same(comm.scatter(whole, out, counts=counts if me == 0 else None), arrays[me], size)
    same(comm.reduce_scatter(together, counts=counts), (arrays[me] * world).astype("int32"), size)
    numbers = [[(size * (r + to)) // 3 for to in range(world)] for r in range(world)]
    sent = [
        [values(r * 7 + to, numbers[r][to], "int32") for to in range(world)] for r in range(world)
    ]
    got = comm.alltoall(
        np.concatenate(sent[me]),
        in_counts=numbers[me],
        out_counts=[numbers[r][me] for r in range(world)],
    )
    same(got, np.concatenate([sent[r][me] for r in range(world)]), size)


def check_messages(comm: Communicator, size: int) -> None:
    me, world = comm.rank, comm.world
    if world == 1:
        return
    right, left = (me + 1) % world, (me - 1) % world
    sends = [comm.isend(values(me, size + t, "int64"), right, tag=t) for t in (1, 2)]
    for tag in (2, 1):  # another order than they were sent in
        out = np.zeros(size + 5, "int64")
        assert comm.recv(out, left, tag=tag) == (left, size + tag)
        same(out[: size + tag], values(left, size + tag, "int64"), size)
    for send in sends:
        send.wait()
    if me:
        comm.send(values(me, size, "int64"), 0, tag=9)
        return
    heard = []
    for _ in range(world - 1):
        out = np.zeros(size, "int64")
        source, number = comm.recv(out, tag=9)
        assert number == size
        same(out, values(source, size, "int64"), size)
        heard.append(source)
    assert sorted(heard) == list(range(1, world))


def check_requests(comm: Communicator, size: int) -> None:
    """All operations started before the first is waited for; results equal the plain forms'."""
    me, world = comm.rank, comm.world
    whole, root = values(me, size * world, "int32"), size % world
    mine = whole[:size].copy()
    out = np.zeros(size, "int32")
    requests = [
        comm.iallreduce(mine.copy(), "max"),
        comm.ireduce(mine, root),
        comm.ireduce_scatter(whole),
        comm.ibroadcast(mine.copy(), root),
        comm.iallgather(mine),
        comm.igather(mine, root),
        comm.iscatter(whole if me == root else None, out, root),
        comm.ialltoall(whole),
        comm.ibarrier(),
    ]
    got = [request.wait(30) for request in requests]
    assert all(request.test() for request in requests)
    wanted = [
        comm.allreduce(mine.copy(), "max"),
        comm.reduce(mine, root),
        comm.reduce_scatter(whole),
        comm.broadcast(mine.copy(), root),
        comm.allgather(mine),
        comm.gather(mine, root),
        comm.scatter(whole if me == root else None, np.zeros(size, "int32"), root),
        comm.alltoall(whole),
        None,
    ]
    for number, (found, plain) in enumerate(zip(got, wanted, strict=True)):
        assert (found is None) == (plain is None), number
        if plain is not None:
            same(found, plain, ("request", number, size))


def rough_values(rank: int, size: int) -> Any:
    """Values that 16-bit formats round."""
    return np.random.default_rng(rank).standard_normal(size).astype("float32")


def check_rounded(comm: Communicator, got: Any, op: str, wire: str) -> None:
    """Is `got` the reduction of all ranks' rough values, up to what the format rounds?

    A value travels at most `world` times, and each time is rounded by half a unit in the last of
    11 (float16) or 8 (bfloat16) bits. float16 below 2^-14 has steps of 2^-24.
    """
    arrays = [rough_values(r, got.size).astype("float64") for r in range(comm.world)]
    exact, magnitude = sum(arrays), sum(map(abs, arrays))
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[wire]
    bound = comm.world * (unit * 1.01 * magnitude + 2.0**-24)
    scale = comm.world if op == "avg" else 1
    error = abs(got - exact / scale)
    assert (error <= bound / scale).all(), (op, wire, got.size, (error * scale / bound).max())
    assert (comm.allgather(got) == got).all(), "ranks differ in the last bits"


def check_wire(comm: Communicator, size: int) -> None:
    for wire in ("float16", "bfloat16"):
        arrays = [values(r, size, "float32") for r in range(comm.world)]
        mine = arrays[comm.rank].copy()
        same(comm.allreduce(mine, wire=wire), expected("sum", arrays), (wire, size))
        for op in ("sum", "avg"):
            rough = rough_values(comm.rank, size)
            check_rounded(comm, comm.allreduce(rough, op, wire=wire), op, wire)


def sent_by(comm: Communicator, data: Any, op: str, **options: Any) -> tuple[int, Any]:
    before = comm.stats()["net_sent_bytes"]
    result = comm.allreduce(data.copy(), op, **options)
    return comm.stats()["net_sent_bytes"] - before, result


def wires(place: Place) -> list[float]:
    """The group's format: a part of the bytes, for sums of float32 only."""
    shares = []
    for number, wire in enumerate(("float16", "bfloat16")):
        if number:
            os.environ["HARP_COLL_WIRE"] = wire
        with place.open(f"w{number}", wire=None if number else wire) as comm:
            mine = rough_values(comm.rank, 300_001)
            plain, exact = sent_by(comm, mine, "sum", wire="native")
            for op in ("sum", "avg"):
                half, got = sent_by(comm, mine, op)
                check_rounded(comm, got, op, wire)
                if plain > 10_000:  # in a flat ring, some have the next rank on their host
                    shares.append(half / plain)
            assert (comm.iallreduce(mine.copy(), "avg").wait(30) == got).all()
            assert (comm.allreduce(mine.copy()) == exact).all() == (place.hosts == 1)
            check_reductions(comm, "float64", 50_001)
            wanted = expected("max", [rough_values(r, mine.size) for r in range(comm.world)])
            same(comm.allreduce(mine.copy(), "max"), wanted, "max is not rounded")
            large = comm.allreduce(np.full(mine.size, 60_000, "float32"))
            assert np.isinf(large).all() == (wire == "float16" and place.hosts != 1)
            with comm.subgroup(range(comm.world)) as sub:
                assert (sub.allreduce(mine.copy(), "avg") == got).all(), "it has the format, too"
    return shares


def different_settings(place: Place) -> list[str]:
    """Wire formats of the groups, of the variables, of one call; no format or algorithm at all."""
    texts = [failure(lambda: place.open("a", wire="float16" if place.rank else None))]
    if place.rank == 0:
        os.environ["HARP_COLL_WIRE"] = "bfloat16"
    texts.append(failure(lambda: place.open("b")))
    os.environ["HARP_COLL_WIRE"] = "float8"
    texts.append(failure(lambda: place.open("c")))
    del os.environ["HARP_COLL_WIRE"]
    os.environ["HARP_COLL_ALGO"] = "tree"
    texts.append(failure(lambda: place.open("d")))
    os.environ["HARP_COLL_ALGO"] = "ring" if place.rank else ""
    texts.append(failure(lambda: place.open("e")))
    del os.environ["HARP_COLL_ALGO"]
    data, wire = np.ones(100, "float32"), "float16" if place.rank else None
    return [*texts, _mismatch(place, lambda comm: comm.allreduce(data, wire=wire))]


def types(place: Place) -> None:
    """Every type and reduction."""
    every = os.environ.get("HARP_TEST_TYPES") == "all"
    with place.open() as comm:
        for size in SIZES[1:]:
            some = not every and size not in (1000, 50001)
            for dtype in ("float32", "int8") if some else (*TYPES, *FLOATS):
                check_reductions(comm, dtype, size)
                check_copies(comm, dtype, size)
        flags = np.array([comm.rank == 0, True, False])
        assert comm.allreduce(flags.copy(), "band").tolist() == [comm.world == 1, True, False]
    with place.open("bfloat16", bfloat16=True) as comm:
        ones = np.full(9, 0x3F80, "uint16")
        wanted = int(np.float32(comm.world).view("uint32")) >> 16
        assert (comm.allreduce(ones) == wanted).all()


def ops(place: Place) -> Any:
    """Every operation in several sizes."""
    with place.open() as comm:
        for size in SIZES if comm.world < 9 else (0, 1000, 9000):
            check_reductions(comm, "float32", size)
            check_copies(comm, "int16", size)
            check_counts(comm, size)
            check_messages(comm, size)
            check_wire(comm, size)
            check_requests(comm, size)
        rough = np.random.default_rng(comm.rank).standard_normal(70000).astype("float32")
        got = comm.allreduce(rough)
        assert (comm.allgather(got) == got).all(), "ranks differ in the last bits"
        comm.barrier()
        return comm.stats()


def large(place: Place) -> Any:
    """Many pieces, several requests in progress, one rank late."""
    with place.open() as comm:
        arrays = [values(0, size, "float32") for size in (3_000_001, 10, 1_000_000)]
        requests = [comm.iallreduce(array) for array in arrays]
        if comm.rank == 0:
            time.sleep(0.05)  # the others start without it
        for array, request in zip(arrays, requests, strict=True):
            got = request.wait(30)
            same(got, values(0, array.size, "float32") * comm.world, array.size)
        ones, sent = np.ones(1 << 20, "float32"), []
        for run in (
            lambda: comm.allreduce(ones),
            lambda: comm.reduce_scatter(ones),
            lambda: comm.allgather(ones[: ones.size // comm.world]),
        ):
            before = comm.stats()["net_sent_bytes"]
            run()
            sent.append(comm.stats()["net_sent_bytes"] - before)
        return sent


def failure(run: Callable[[], object]) -> str:
    try:
        run()
    except CollectiveError as error:
        return f"{error.code} {error}"
    except ValueError as error:
        return str(error)
    return "no error"


def _mismatch(place: Place, mine: Callable[[Communicator], object]) -> str:
    with place.open() as comm:
        # A rank that is late in the barrier fails with the others.
        first = failure(lambda: (comm.barrier(), mine(comm)))
        if first == "no error":  # it was done before the others noticed
            first = failure(lambda: comm.allreduce(np.ones(3)))
        assert failure(comm.barrier) == first, "the first error stays"
        return first


def different_ops(place: Place) -> str:
    data = np.ones(100, "float32")
    if place.rank:
        return _mismatch(place, lambda comm: comm.allreduce(data))
    return _mismatch(place, lambda comm: comm.broadcast(data))


def different_blocks(place: Place) -> str:
    counts = [[1, 2], [3, 1]][place.rank]
    data = np.ones(sum(counts))
    return _mismatch(place, lambda comm: comm.alltoall(data, in_counts=counts, out_counts=[1, 1]))


def late(place: Place) -> str:
    with place.open("first") as comm:  # loading and connecting take no part of the timeout
        comm.barrier()
    # Ranks publish what they wait for after a second: earlier, each would name its neighbor.
    with place.open(timeout_s=2.0) as comm:
        comm.barrier()
        if place.rank == 2:
            place.store.wait("0", 20.0)
            place.store.wait("1", 20.0)
            return ""
        text = failure(lambda: comm.allreduce(np.ones(10)))
        place.store.set(str(place.rank), b"")
        return text


def idle_after_an_operation(place: Place) -> None:
    """Rank 0 is late: it has rank 1's message before its own connection is there."""
    with place.open() as comm:
        if place.rank == 0:
            place.store.wait("called", 20.0)
            time.sleep(0.2)  # the library's thread, idle for 50 ms, sleeps
            comm.barrier()
            place.store.wait("done", 20.0)
        else:
            place.store.set("called", b"")
            comm.barrier()
            place.store.set("done", b"")


def killed(place: Place) -> str:
    with place.open() as comm:
        data = np.ones(1 << 20)
        if place.rank == 1:
            comm.allreduce(data)
            os.kill(os.getpid(), 9)
        # The others may still be in the first one.
        return failure(lambda: [comm.allreduce(data) for _ in range(4)])


class LateStore(FolderStore):
    """Tells the other ranks only after the second one was killed."""

    def get(self, key: str) -> bytes | None:
        if key.endswith("/all"):
            self.wait("killed", 20.0)
        return super().get(key)


class DeadlyStore(FolderStore):
    """Kills its process when it reads this key."""

    def __init__(self, folder: Path, key: str) -> None:
        super().__init__(folder)
        self._key = key

    def get(self, key: str) -> bytes | None:
        if key.endswith(self._key):
            self.set("killed", b"")
            os.kill(os.getpid(), 9)
        return super().get(key)


def _opened(place: Place, **options: Any) -> list[Any]:
    """Open a group and use it; return the error, and what is left in /dev/shm."""

    def use() -> None:
        with place.open(**options) as comm:
            comm.barrier()

    return [failure(use), [path.name for path in Path("/dev/shm").iterdir()]]


def killed_before_mapping(place: Place) -> list[Any]:
    if place.rank == 1:
        place.store = DeadlyStore(place.folder, "/all")
    return _opened(place)


def killed_after_mapping(place: Place) -> list[Any]:
    """Rank 0, which made the segment, waits for rank 2."""
    if place.rank == 0:
        place.store = DeadlyStore(place.folder, "/error")
    if place.rank == 2:
        place.store = LateStore(place.folder)
    return _opened(place)


def stopped_before_mapping(place: Place) -> list[Any]:
    """Rank 1 comes when the others have given up."""
    if place.rank == 1:
        place.store = LateStore(place.folder)
    found = _opened(place, timeout_s=5.0)
    place.store.set("killed", b"")
    return found


def no_space(place: Place) -> str:
    def run() -> None:
        with place.open(timeout_s=2.0) as comm:
            comm.allreduce(np.ones(100000))

    return failure(run)


def absent(place: Place) -> str:
    if place.rank == 1:
        return ""
    return failure(lambda: place.open(timeout_s=1.0))


def other_world(place: Place) -> str:
    place.world += place.rank
    return failure(lambda: place.open(timeout_s=5.0))


def other_version(place: Place) -> str:
    """Rank 1 is of a library that says less about itself; it reads what rank 0 says of that."""
    if place.rank == 0:
        return failure(lambda: place.open(timeout_s=20.0))
    place.store.set("harp/coll/g/info/1", b"INFO" + bytes(50))
    place.store.wait("harp/coll/g/all", 20.0)
    return (place.store.get("harp/coll/g/all") or b"").decode()


class BrokenStore(FolderStore):
    """Its server has gone."""

    def set(self, key: str, value: bytes) -> None:
        raise ConnectionError(f"no answer to {key.rpartition('/')[0]}")


def broken_store(place: Place) -> str:
    place.store = BrokenStore(place.folder)
    return failure(place.open)


def aborted(place: Place) -> str:
    with place.open() as comm:
        comm.barrier()
        if place.rank == 0:
            time.sleep(0.1)
            comm.abort("lunch")
        return failure(comm.barrier)


def forked(place: Place) -> str:
    with place.open() as comm:
        comm.barrier()
        pid = os.fork()
        if pid == 0:
            try:
                texts = [failure(comm.barrier), failure(lambda: place.open("h"))]
                comm.close()
                is_good = all(text.startswith("130 this process was forked") for text in texts)
                os._exit(0 if is_good else 1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        comm.barrier()  # the parent goes on
    with place.open("again") as comm:
        comm.barrier()
    return f"child {status}"


def in_flight(place: Place) -> str:
    """Rank 0 leaves with work in progress."""
    comm = place.open()
    data = [np.ones(2_000_000) for _ in range(3)]
    comm.barrier()

    def work() -> None:
        requests = [comm.iallreduce(array) for array in data]
        requests.append(comm.irecv(np.ones(5), tag=1))
        if place.rank == 0:
            time.sleep(0.002)
            comm.close()
        for request in requests:
            request.wait(20)

    text = failure(work)
    comm.close()
    return text


def usage() -> tuple[int, int, int]:
    """Descriptors, threads and resident KiB of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        int(status["Threads"]),
        int(status["VmRSS"].split()[0]),
    )


def groups_come_and_go(place: Place) -> list[Any]:
    """How many there were, and what they have left: descriptors, threads, KiB."""
    count = int(os.environ.get("HARP_TEST_GROUPS", "100"))
    data = np.ones(20_000, "float32")

    def one(name: str) -> None:
        with place.open(name) as comm:
            assert (comm.allreduce(data.copy()) == place.world).all()
            comm.send(data, 1 - place.rank, tag=1) if place.rank else comm.recv(data, tag=1)

    with place.open("always") as always:
        for index in range(20):
            one(f"warm{index}")
        always.barrier()
        before = usage()
        for index in range(count):
            one(f"g{index}")
        always.barrier()
        return [count, *(after - then for after, then in zip(usage(), before, strict=True))]


def bad_calls(place: Place) -> list[str]:
    texts = []
    with place.open() as comm:
        for call in (
            lambda: comm.allreduce(np.ones(3), "mean"),
            lambda: comm.allreduce(np.ones(3), "band"),
            lambda: comm.allreduce(np.ones(3), wire="float16"),
            lambda: comm.allreduce(np.ones(3), out=np.ones(4)),
            lambda: comm.allreduce(np.array(["text"])),
            lambda: comm.broadcast(np.ones(3), comm.world),
            lambda: comm.send(np.ones(3), comm.rank),
            lambda: comm.reduce_scatter(np.ones(2 * comm.world + 1)),
        ):
            try:
                call()
            except (TypeError, ValueError) as error:
                texts.append(str(error))
        comm.barrier()  # none of them harmed the group
    return texts


def main() -> int:
    """Entry point."""
    scenario, world, ranks, hosts, folder = sys.argv[1:]
    if hosts != "real":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def work(rank: int) -> Any:
        return globals()[scenario](Place(rank, int(world), hosts, Path(folder)))

    victim = 0 if scenario == "killed_after_mapping" else 1
    may_fail = [victim] if scenario.startswith("killed") else []
    return run(map(int, ranks.split(",")), work, may_fail)


if __name__ == "__main__":
    sys.exit(main())
