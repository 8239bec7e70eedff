# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of a group and runs a scenario in each, for test_coll.py.

python coll_ranks.py SCENARIO WORLD RANKS HOSTS FOLDER: RANKS are the ranks to fork, as "0,2". HOSTS
is the number of simulated hosts (rank r is on host r modulo HOSTS; 0: a host per rank), or "real".
FOLDER contains the key-value store. Prints a JSON line per rank: [rank, result].
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
    """A key-value store in a folder that all ranks share."""

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


class Member:
    """A rank: its host, and how it opens groups."""

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


def compare(actual: Any, reference: Any, context: object) -> None:
    assert actual.tobytes() == reference.tobytes(), (context, actual[:8], reference[:8])


def check_reductions(comm: Communicator, dtype: str, size: int) -> None:
    world = range(comm.world)
    ops = ["sum", "avg", "prod"]
    ops += ["min", "max"] if "complex" not in dtype else []
    ops += ["band", "bor", "bxor"] if dtype in TYPES else []
    root = size % comm.world
    arrays = [values(r, size, dtype) for r in world]
    blocks = [values(r, size * comm.world, dtype) for r in world]
    for op in ops:
        reference = expected(op, arrays)
        context = (op, dtype, size, comm.rank)
        out = np.zeros(size, dtype)
        compare(comm.allreduce(arrays[comm.rank], op, out=out), reference, context)
        compare(comm.allreduce(arrays[comm.rank].copy(), op), reference, context)
        actual = comm.reduce(arrays[comm.rank], root, op)
        if comm.rank == root:
            compare(actual, reference, context)
        reference = expected(op, blocks)[size * comm.rank : size * (comm.rank + 1)]
        compare(comm.reduce_scatter(blocks[comm.rank], op), reference, context)
        for offset in (0, size * comm.rank):  # the output is a part of the input
            block = blocks[comm.rank].copy()
            out = block[offset : offset + size]
            compare(comm.reduce_scatter(block, op, out=out), reference, context)


def check_copies(comm: Communicator, dtype: str, size: int) -> None:
    me, world, root = comm.rank, comm.world, (size + 1) % comm.world
    arrays = [values(r, size, dtype) for r in range(world)]
    context = (dtype, size, me)
    together = np.concatenate(arrays)
    out = arrays[root].copy() if me == root else np.zeros(size, dtype)
    compare(comm.broadcast(out, root), arrays[root], context)
    compare(comm.allgather(arrays[me]).ravel(), together, context)
    actual = comm.gather(arrays[me], root)
    if me == root:
        compare(actual.ravel(), together, context)
    out = np.zeros(size, dtype)
    compare(comm.scatter(together if me == root else None, out, root), arrays[me], context)
    blocks = [values(r, size * world, dtype) for r in range(world)]
    reference = np.concatenate([blocks[r][size * me : size * (me + 1)] for r in range(world)])
    compare(comm.alltoall(blocks[me]), reference, context)
    compare(comm.alltoall(blocks[me], out=blocks[me]), reference, context)


def check_counts(comm: Communicator, size: int) -> None:
    """Each rank has a different number of elements, rank 0 none."""
    me, world = comm.rank, comm.world
    counts = [(size * r) // 2 for r in range(world)]
    arrays = [values(r, counts[r], "int32") for r in range(world)]
    together = np.concatenate(arrays)
    compare(comm.allgather(arrays[me], counts=counts), together, size)
    actual = comm.gather(arrays[me], counts=counts if me == 0 else None)
    if me == 0:
        compare(actual, together, size)
    out = np.zeros(counts[me], "int32")
    whole = together if me == 0 else None
    compare(comm.scatter(whole, out, counts=counts if me == 0 else None), arrays[me], size)
    compare(
        comm.reduce_scatter(together, counts=counts), (arrays[me] * world).astype("int32"), size
    )
    numbers = [[(size * (r + to)) // 3 for to in range(world)] for r in range(world)]
    sent = [
        [values(r * 7 + to, numbers[r][to], "int32") for to in range(world)] for r in range(world)
    ]
    actual = comm.alltoall(
        np.concatenate(sent[me]),
        in_counts=numbers[me],
        out_counts=[numbers[r][me] for r in range(world)],
    )
    compare(actual, np.concatenate([sent[r][me] for r in range(world)]), size)


def check_messages(comm: Communicator, size: int) -> None:
    me, world = comm.rank, comm.world
    if world == 1:
        return
    right, left = (me + 1) % world, (me - 1) % world
    sends = [comm.isend(values(me, size + t, "int64"), right, tag=t) for t in (1, 2)]
    for tag in (2, 1):  # not in the order of the sends
        out = np.zeros(size + 5, "int64")
        assert comm.recv(out, left, tag=tag) == (left, size + tag)
        compare(out[: size + tag], values(left, size + tag, "int64"), size)
    for send in sends:
        send.wait()
    if me:
        comm.send(values(me, size, "int64"), 0, tag=9)
        return
    sources = []
    for _ in range(world - 1):
        out = np.zeros(size, "int64")
        source, number = comm.recv(out, tag=9)
        assert number == size
        compare(out, values(source, size, "int64"), size)
        sources.append(source)
    assert sorted(sources) == list(range(1, world))


def check_requests(comm: Communicator, size: int) -> None:
    """Starts all nonblocking operations before the first wait; compares with blocking ones."""
    me, world = comm.rank, comm.world
    whole, root = values(me, size * world, "int32"), size % world
    local = whole[:size].copy()
    out = np.zeros(size, "int32")
    requests = [
        comm.iallreduce(local.copy(), "max"),
        comm.ireduce(local, root),
        comm.ireduce_scatter(whole),
        comm.ibroadcast(local.copy(), root),
        comm.iallgather(local),
        comm.igather(local, root),
        comm.iscatter(whole if me == root else None, out, root),
        comm.ialltoall(whole),
        comm.ibarrier(),
    ]
    actual = [request.wait(30) for request in requests]
    assert all(request.test() for request in requests)
    reference = [
        comm.allreduce(local.copy(), "max"),
        comm.reduce(local, root),
        comm.reduce_scatter(whole),
        comm.broadcast(local.copy(), root),
        comm.allgather(local),
        comm.gather(local, root),
        comm.scatter(whole if me == root else None, np.zeros(size, "int32"), root),
        comm.alltoall(whole),
        None,
    ]
    for number, (nonblocking, blocking) in enumerate(zip(actual, reference, strict=True)):
        assert (nonblocking is None) == (blocking is None), number
        if blocking is not None:
            compare(nonblocking, blocking, ("request", number, size))


def rough_values(rank: int, size: int) -> Any:
    """Values that 16-bit formats round."""
    return np.random.default_rng(rank).standard_normal(size).astype("float32")


def check_rounded(comm: Communicator, actual: Any, op: str, wire: str) -> None:
    """Checks that `actual` is the reduction of all ranks' rough values, within rounding errors.

    A value is sent at most `world` times, each time rounded by half a unit in the last of 11
    (float16) or 8 (bfloat16) bits. float16 below 2^-14 has steps of 2^-24.
    """
    arrays = [rough_values(r, actual.size).astype("float64") for r in range(comm.world)]
    exact, magnitude = sum(arrays), sum(map(abs, arrays))
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[wire]
    bound = comm.world * (unit * 1.01 * magnitude + 2.0**-24)
    scale = comm.world if op == "avg" else 1
    error = abs(actual - exact / scale)
    assert (error <= bound / scale).all(), (op, wire, actual.size, (error * scale / bound).max())
    assert (comm.allgather(actual) == actual).all(), "ranks differ in the last bits"


def check_wire(comm: Communicator, size: int) -> None:
    for wire in ("float16", "bfloat16"):
        arrays = [values(r, size, "float32") for r in range(comm.world)]
        local = arrays[comm.rank].copy()
        compare(comm.allreduce(local, wire=wire), expected("sum", arrays), (wire, size))
        for op in ("sum", "avg"):
            rough = rough_values(comm.rank, size)
            check_rounded(comm, comm.allreduce(rough, op, wire=wire), op, wire)


def measure_sent(comm: Communicator, data: Any, op: str, **options: Any) -> tuple[int, Any]:
    before = comm.stats()["net_sent_bytes"]
    result = comm.allreduce(data.copy(), op, **options)
    return comm.stats()["net_sent_bytes"] - before, result


def wires(member: Member) -> list[float]:
    """The group's wire format halves the bytes, and applies to sums of float32 only."""
    shares = []
    for number, wire in enumerate(("float16", "bfloat16")):
        if number:
            os.environ["HARP_COLL_WIRE"] = wire
        with member.open(f"w{number}", wire=None if number else wire) as comm:
            local = rough_values(comm.rank, 300_001)
            native_bytes, exact = measure_sent(comm, local, "sum", wire="native")
            for op in ("sum", "avg"):
                wire_bytes, actual = measure_sent(comm, local, op)
                check_rounded(comm, actual, op, wire)
                if native_bytes > 10_000:  # in a flat ring, the next rank may be on the same host
                    shares.append(wire_bytes / native_bytes)
            assert (comm.iallreduce(local.copy(), "avg").wait(30) == actual).all()
            assert (comm.allreduce(local.copy()) == exact).all() == (member.hosts == 1)
            check_reductions(comm, "float64", 50_001)
            reference = expected("max", [rough_values(r, local.size) for r in range(comm.world)])
            compare(comm.allreduce(local.copy(), "max"), reference, "max is not rounded")
            large = comm.allreduce(np.full(local.size, 60_000, "float32"))
            assert np.isinf(large).all() == (wire == "float16" and member.hosts != 1)
            with comm.subgroup(range(comm.world)) as sub:
                assert (sub.allreduce(local.copy(), "avg") == actual).all(), (
                    "a subgroup inherits the format"
                )
    return shares


def different_settings(member: Member) -> list[str]:
    """Ranks differ in the format of the group, its variable, or a call; unknown values."""
    texts = [failure(lambda: member.open("a", wire="float16" if member.rank else None))]
    if member.rank == 0:
        os.environ["HARP_COLL_WIRE"] = "bfloat16"
    texts.append(failure(lambda: member.open("b")))
    os.environ["HARP_COLL_WIRE"] = "float8"
    texts.append(failure(lambda: member.open("c")))
    del os.environ["HARP_COLL_WIRE"]
    os.environ["HARP_COLL_ALGO"] = "tree"
    texts.append(failure(lambda: member.open("d")))
    os.environ["HARP_COLL_ALGO"] = "ring" if member.rank else ""
    texts.append(failure(lambda: member.open("e")))
    del os.environ["HARP_COLL_ALGO"]
    data, wire = np.ones(100, "float32"), "float16" if member.rank else None
    return [*texts, _mismatch(member, lambda comm: comm.allreduce(data, wire=wire))]


def types(member: Member) -> None:
    all_types = os.environ.get("HARP_TEST_TYPES") == "all"
    with member.open() as comm:
        for size in SIZES[1:]:
            is_short = not all_types and size not in (1000, 50001)
            for dtype in ("float32", "int8") if is_short else (*TYPES, *FLOATS):
                check_reductions(comm, dtype, size)
                check_copies(comm, dtype, size)
        flags = np.array([comm.rank == 0, True, False])
        assert comm.allreduce(flags.copy(), "band").tolist() == [comm.world == 1, True, False]
    with member.open("bfloat16", bfloat16=True) as comm:
        ones = np.full(9, 0x3F80, "uint16")
        reference = int(np.float32(comm.world).view("uint32")) >> 16
        assert (comm.allreduce(ones) == reference).all()


def ops(member: Member) -> Any:
    """Every operation in several sizes."""
    with member.open() as comm:
        for size in SIZES if comm.world < 9 else (0, 1000, 9000):
            check_reductions(comm, "float32", size)
            check_copies(comm, "int16", size)
            check_counts(comm, size)
            check_messages(comm, size)
            check_wire(comm, size)
            check_requests(comm, size)
        rough = np.random.default_rng(comm.rank).standard_normal(70000).astype("float32")
        actual = comm.allreduce(rough)
        assert (comm.allgather(actual) == actual).all(), "ranks differ in the last bits"
        comm.barrier()
        return comm.stats()


def large(member: Member) -> Any:
    """Large messages, several requests in progress, one late rank."""
    with member.open() as comm:
        arrays = [values(0, size, "float32") for size in (3_000_001, 10, 1_000_000)]
        requests = [comm.iallreduce(array) for array in arrays]
        if comm.rank == 0:
            time.sleep(0.05)  # the others start without it
        for array, request in zip(arrays, requests, strict=True):
            actual = request.wait(30)
            compare(actual, values(0, array.size, "float32") * comm.world, array.size)
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


def _mismatch(member: Member, call: Callable[[Communicator], object]) -> str:
    with member.open() as comm:
        # A rank that is late in the barrier fails with the others.
        first = failure(lambda: (comm.barrier(), call(comm)))
        if first == "no error":  # completed before the other rank detected the mismatch
            first = failure(lambda: comm.allreduce(np.ones(3)))
        assert failure(comm.barrier) == first, "the first error is permanent"
        return first


def different_ops(member: Member) -> str:
    data = np.ones(100, "float32")
    if member.rank:
        return _mismatch(member, lambda comm: comm.allreduce(data))
    return _mismatch(member, lambda comm: comm.broadcast(data))


def different_blocks(member: Member) -> str:
    counts = [[1, 2], [3, 1]][member.rank]
    data = np.ones(sum(counts))
    return _mismatch(member, lambda comm: comm.alltoall(data, in_counts=counts, out_counts=[1, 1]))


def late(member: Member) -> str:
    with member.open("first") as comm:  # loads and connects before the timeout starts
        comm.barrier()
    # After a second, ranks publish what they wait for. Before, each can only name its neighbor.
    with member.open(timeout_s=2.0) as comm:
        comm.barrier()
        if member.rank == 2:
            member.store.wait("0", 20.0)
            member.store.wait("1", 20.0)
            return ""
        text = failure(lambda: comm.allreduce(np.ones(10)))
        member.store.set(str(member.rank), b"")
        return text


def idle_after_an_operation(member: Member) -> None:
    """Rank 0 is late: rank 1's message arrives before rank 0 has connected."""
    with member.open() as comm:
        if member.rank == 0:
            member.store.wait("called", 20.0)
            time.sleep(0.2)  # the library's thread sleeps after 50 ms without work
            comm.barrier()
            member.store.wait("done", 20.0)
        else:
            member.store.set("called", b"")
            comm.barrier()
            member.store.set("done", b"")


def killed(member: Member) -> str:
    with member.open() as comm:
        data = np.ones(1 << 20)
        if member.rank == 1:
            comm.allreduce(data)
            os.kill(os.getpid(), 9)
        # The first operation of the others may still complete.
        return failure(lambda: [comm.allreduce(data) for _ in range(4)])


class LateStore(FolderStore):
    """Returns the data of all ranks only after the key "killed" is set."""

    def get(self, key: str) -> bytes | None:
        if key.endswith("/all"):
            self.wait("killed", 20.0)
        return super().get(key)


class DeadlyStore(FolderStore):
    """Kills the process when it reads this key."""

    def __init__(self, folder: Path, key: str) -> None:
        super().__init__(folder)
        self._key = key

    def get(self, key: str) -> bytes | None:
        if key.endswith(self._key):
            self.set("killed", b"")
            os.kill(os.getpid(), 9)
        return super().get(key)


def _open_and_use(member: Member, **options: Any) -> list[Any]:
    """Opens and uses a group; returns the error, and the files in /dev/shm."""

    def use() -> None:
        with member.open(**options) as comm:
            comm.barrier()

    return [failure(use), [path.name for path in Path("/dev/shm").iterdir()]]


def killed_before_mapping(member: Member) -> list[Any]:
    if member.rank == 1:
        member.store = DeadlyStore(member.folder, "/all")
    return _open_and_use(member)


def killed_after_mapping(member: Member) -> list[Any]:
    """Rank 0, which created the segment, waits for rank 2."""
    if member.rank == 0:
        member.store = DeadlyStore(member.folder, "/error")
    if member.rank == 2:
        member.store = LateStore(member.folder)
    return _open_and_use(member)


def stopped_before_mapping(member: Member) -> list[Any]:
    """Rank 1 opens the group after the others' timeout."""
    if member.rank == 1:
        member.store = LateStore(member.folder)
    result = _open_and_use(member, timeout_s=5.0)
    member.store.set("killed", b"")
    return result


def no_space(member: Member) -> str:
    def run() -> None:
        with member.open(timeout_s=2.0) as comm:
            comm.allreduce(np.ones(100000))

    return failure(run)


def absent(member: Member) -> str:
    if member.rank == 1:
        return ""
    return failure(lambda: member.open(timeout_s=1.0))


def other_world(member: Member) -> str:
    member.world += member.rank
    return failure(lambda: member.open(timeout_s=5.0))


def other_version(member: Member) -> str:
    """Rank 1 publishes a shorter record, as another version would, and returns the answer."""
    if member.rank == 0:
        return failure(lambda: member.open(timeout_s=20.0))
    member.store.set("harp/coll/g/info/1", b"INFO" + bytes(50))
    member.store.wait("harp/coll/g/all", 20.0)
    return (member.store.get("harp/coll/g/all") or b"").decode()


class BrokenStore(FolderStore):
    """A store whose server has ended."""

    def set(self, key: str, value: bytes) -> None:
        raise ConnectionError(f"no answer to {key.rpartition('/')[0]}")


def broken_store(member: Member) -> str:
    member.store = BrokenStore(member.folder)
    return failure(member.open)


def aborted(member: Member) -> str:
    with member.open() as comm:
        comm.barrier()
        if member.rank == 0:
            time.sleep(0.1)
            comm.abort("lunch")
        return failure(comm.barrier)


def forked(member: Member) -> str:
    with member.open() as comm:
        comm.barrier()
        pid = os.fork()
        if pid == 0:
            try:
                texts = [failure(comm.barrier), failure(lambda: member.open("h"))]
                comm.close()
                is_good = all(text.startswith("130 this process was forked") for text in texts)
                os._exit(0 if is_good else 1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        comm.barrier()  # works in the parent
    with member.open("again") as comm:
        comm.barrier()
    return f"child {status}"


def in_flight(member: Member) -> str:
    """Rank 0 closes the group with operations in progress."""
    comm = member.open()
    data = [np.ones(2_000_000) for _ in range(3)]
    comm.barrier()

    def work() -> None:
        requests = [comm.iallreduce(array) for array in data]
        requests.append(comm.irecv(np.ones(5), tag=1))
        if member.rank == 0:
            time.sleep(0.002)
            comm.close()
        for request in requests:
            request.wait(20)

    text = failure(work)
    comm.close()
    return text


def resource_usage() -> tuple[int, int, int]:
    """Descriptors, threads and resident KiB of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        int(status["Threads"]),
        int(status["VmRSS"].split()[0]),
    )


def many_groups(member: Member) -> list[Any]:
    """The number of groups, and the growth of descriptors, threads, KiB."""
    count = int(os.environ.get("HARP_TEST_GROUPS", "100"))
    data = np.ones(20_000, "float32")

    def use_group(name: str) -> None:
        with member.open(name) as comm:
            assert (comm.allreduce(data.copy()) == member.world).all()
            comm.send(data, 1 - member.rank, tag=1) if member.rank else comm.recv(data, tag=1)

    with member.open("always") as base:
        for index in range(20):
            use_group(f"warm{index}")
        base.barrier()
        before = resource_usage()
        for index in range(count):
            use_group(f"g{index}")
        base.barrier()
        return [
            count,
            *(after - then for after, then in zip(resource_usage(), before, strict=True)),
        ]


def bad_calls(member: Member) -> list[str]:
    texts = []
    with member.open() as comm:
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
        comm.barrier()  # the group still works
    return texts


def main() -> int:
    scenario, world, ranks, hosts, folder = sys.argv[1:]
    if hosts != "real":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def work(rank: int) -> Any:
        return globals()[scenario](Member(rank, int(world), hosts, Path(folder)))

    victim = 0 if scenario == "killed_after_mapping" else 1
    may_fail = [victim] if scenario.startswith("killed") else []
    return run(map(int, ranks.split(",")), work, may_fail)


if __name__ == "__main__":
    sys.exit(main())
