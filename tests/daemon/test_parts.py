# SPDX-License-Identifier: Apache-2.0
"""Units of harpd: state file, mounts, limits, workers, access, messages, processes, log."""

import ctypes
import errno
import os
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from daemon_rig import Start
from programs import finished

from harp._host import Kind
from harp.daemon import notify, peer, rundir
from harp.daemon.limits import Bucket, Buckets, MemoryBudget
from harp.daemon.loop import WORKERS, Loop
from harp.daemon.messages import (
    HEADER,
    LAYOUTS,
    Device,
    Hello,
    Leased,
    LeaseId,
    Neighbor,
    Neighbors,
    Port,
    Refused,
    Request,
    RouteQuery,
    Welcome,
    pack,
    unpack,
)
from harp.daemon.ports import Block
from harp.daemon.settings import Access
from harp.daemon.state import NicState, State, StateFile
from harp.daemon.table import Lease, Owner
from harp.errors import HarpError
from harp.nicprep import Entry, Undo

# ---- state ----


def some_state() -> State:
    lease = Lease(5, Owner(1, 2, 3), "eth0", 4, 1, Block(61000, 61255), "a \u00e9", 12.5)
    lease.mark("NIC is down")
    lease.frames = 1, 2**32
    return State(
        pid=7,
        start_ticks=8,
        version="0.1.0",
        nics={"eth0": NicState(4, [b"\1".hex() * 16])},
        leases=[lease],
        rests={"eth0": [(62000, 62255, 99.5)]},
        undo=Undo([Entry("rings", "eth0", {"rx": 1}, {"rx": [2]}, 2)]),
    )


def test_a_written_state_is_read_unchanged(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.read() == State()
    file.write(some_state())
    assert file.read() == some_state()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_failed_write_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path)
    file.write(State(pid=1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", lambda _fd, _mode: os.write(-1, b""))
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.write(State(pid=2))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert file.read().pid == 1


def test_the_state_is_written_without_waiting_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop writes it at every change of a lease."""
    monkeypatch.setattr(os, "fsync", lambda _fd: pytest.fail("waits for the disk"))
    StateFile(tmp_path).write(some_state())


# ---- mounts ----


def test_mounts_of_other_users_hide_none(tmp_path: Path) -> None:
    # FUSE mounts of users. Their names have invalid UTF-8, and characters at which str splits lines
    # or words.
    other = b"1 1 0:1 / /home/u/%s rw - fuse u rw\n"
    names = (b"\xff", b"a\fb", b"a\rb", "a\u2028b\u00a0c".encode(), b"a\\134134", b"\\043")
    run_dir = tmp_path / "h\u00e4rp run#\\040"
    escaped = os.fsencode(run_dir).replace(b"\\", b"\\134").replace(b" ", b"\\040")
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_bytes(
        b"".join(other % name for name in names)
        + b"1 1 0:1 / %s rw shared:1 - bpf b rw\n" % escaped
    )
    assert rundir.is_mounted(run_dir, "bpf", mountinfo)
    assert not rundir.is_mounted(run_dir, "tmpfs", mountinfo)
    assert not rundir.is_mounted(tmp_path, "bpf", mountinfo)


# ---- limits ----


def test_a_bucket_bounds_the_rate() -> None:
    bucket = Bucket(rate_per_s=10, burst=5)
    assert [bucket.take(0) for _ in range(5)] == [0] * 5
    assert bucket.take(0) == pytest.approx(0.1)
    assert bucket.take(0.1) == 0
    assert bucket.take(0.1) > 0
    assert [bucket.take(100) for _ in range(5)] == [0] * 5
    assert bucket.take(100) > 0, "idle time adds no more than the burst"


def test_buckets_of_idle_users_are_forgotten() -> None:
    buckets = Buckets(10, 5)
    for uid in range(5000):
        assert buckets.take(uid, uid * 1.0) == 0
    assert len(buckets._buckets) < 1100


def test_memory_is_refused_before_the_kernel_kills_harpd(tmp_path: Path) -> None:
    """The memory of leases in progress and of harpd itself is counted."""
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text(f"{1 << 30}\n")
    used.write_text(f"{256 << 20}\n")
    room = MemoryBudget(tmp_path)
    with room.take(300 << 20):
        with pytest.raises(OSError, match="has 468 MiB left") as failure:
            room.take(300 << 20).__enter__()
        assert failure.value.errno == errno.ENOMEM
        with room.take(200 << 20):
            pass
    with room.take(512 << 20):
        pass
    limit.write_text("max\n")
    with room.take(1 << 50):
        pass
    limit.unlink()
    with room.take(1 << 50):
        pass


# ---- workers ----


def limit_threads(monkeypatch: pytest.MonkeyPatch, count: int = 0) -> None:
    start = threading.Thread.start
    remaining = [None] * count

    def limited(thread: threading.Thread) -> None:
        if not remaining:
            raise RuntimeError("can't start new thread")
        remaining.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_all_workers_exist_before_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker could not start, its job would run later, although the caller got an error."""
    loop = Loop()
    try:
        limit_threads(monkeypatch)
        barrier = threading.Barrier(WORKERS)
        jobs = [loop.work(barrier.wait) for _ in range(WORKERS)]
        results = [loop.run_until_complete(job) for job in jobs]
        assert sorted(results) == list(range(WORKERS))
    finally:
        loop.finish_work()
        loop.close()


@pytest.mark.parametrize("threads", [0, 1, WORKERS - 1])
def test_a_harpd_without_threads_does_not_start(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    limit_threads(monkeypatch, threads)
    with pytest.raises(HarpError, match="worker threads: can't start new thread; raise TasksMax="):
        Loop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("harpd-work")]


# ---- access ----


def test_users_and_groups_decide_who_may_lease() -> None:
    access = Access.of(["nobody", "4711", "no-such-user"], ["daemon", "no-such-group"])
    assert access.unknown == ("user no-such-user", "group no-such-group")
    assert access.allows(0, [])
    assert access.allows(65534, [])
    assert access.allows(4711, [])
    assert not access.allows(4712, [4711])
    assert access.allows(4712, [5, 1])
    assert Access.of(["*"], []).allows(4712, [])


def test_a_harpd_that_cannot_start_leaves_no_worker(start: Start) -> None:
    """Otherwise Python would close its event loop at garbage collection, in any thread."""

    def workers() -> int:
        return sum(thread.name.startswith("harpd-work") for thread in threading.enumerate())

    start()
    with pytest.raises(HarpError, match="another harpd runs in"):
        start()
    assert workers() == WORKERS


# ---- messages ----


STRUCTS = {  # the C structs, by body
    Hello: "hello", Welcome: "welcome", Device: "device", Request: "request", Leased: "leased",
    Port: "port", Refused: "refused", LeaseId: "release", Neighbor: "neighbor",
    Neighbors: "neighbors", RouteQuery: "route_query",
}  # fmt: skip


def test_bodies_are_laid_out_as_in_the_header(root_dir: Path) -> None:
    assert set(LAYOUTS) == set(STRUCTS)
    asserts = []
    for body, name in STRUCTS.items():
        struct, kind = f"struct harp_lease_{name}", LAYOUTS[body]
        begin = 0 if body in (Device, Neighbor) else HEADER.size
        for member, *_ in kind._fields_:
            at, size = begin + getattr(kind, member).offset, getattr(kind, member).size
            in_c = member.replace("rss_", "rss.")
            asserts.append(f"offsetof({struct}, {in_c}) == {at}")
            asserts.append(f"sizeof((({struct} *)0)->{in_c}) == {size}")
        if body is not Neighbors:  # only a part of which is sent
            asserts.append(f"sizeof({struct}) == {begin + ctypes.sizeof(kind)}")
    code = '#include <stddef.h>\n#include "harp_lease.h"\n'
    code += "".join(f'_Static_assert({condition}, "{condition}");\n' for condition in asserts)
    include = root_dir / "dataplane" / "include"
    command = ["cc", "-fsyntax-only", f"-I{include}", "-xc", "-"]
    done = finished(command, input=code)
    assert done.returncode == 0, done.stderr


def test_a_text_is_cut_between_characters() -> None:
    assert unpack(pack(Kind.HELLO, 1, Hello("\u00e9" * 40))).body == Hello("\u00e9" * 15)


def test_a_longer_message_of_a_later_version_is_accepted() -> None:
    longer = bytearray(pack(Kind.HELLO, 1, Hello("new")) + b"\0" * 24)
    longer[8:12] = len(longer).to_bytes(4, "little")
    assert unpack(bytes(longer)).body == Hello("new")


# ---- processes ----


def test_the_start_time_of_a_process_is_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(3, 53))
    (tmp_path / "7/stat").write_text(f"7 (a) ) S (b) {fields}\n")
    assert peer.start_ticks(7, tmp_path) == 22
    with pytest.raises(peer.PeerGoneError):
        peer.start_ticks(8, tmp_path)


def test_an_owner_is_identified_by_pid_and_start_time() -> None:
    ticks = peer.start_ticks(os.getpid())
    fd = peer.reopen(Owner(os.getpid(), ticks, 0))
    assert peer.pidfd_pid(fd) == os.getpid()
    os.close(fd)
    with pytest.raises(peer.PeerGoneError, match="another process"):
        peer.reopen(Owner(os.getpid(), ticks + 1, 0))


def test_the_watchdog_is_notified_twice_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert notify.watchdog_period_s() == 1.5
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notify.watchdog_period_s() is None


# ---- the log ----

LOGS = """
import logging
from harp.daemon.__main__ import _log_to
_log_to(None)
for number in range(5000):
    logging.warning("line %d of a log that is not read", number)
print("done", flush=True)
input()
logging.warning("the reader continues")
"""


def test_a_stopped_reader_of_stderr_does_not_stop_harpd() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", LOGS], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    ) as process:
        try:
            assert select.select([process.stdout], [], [], 60)[0], "the writer is blocked"
            assert process.stdout.readline() == b"done\n"
            before = os.read(process.stderr.fileno(), 1 << 20).splitlines()
            _, after = process.communicate(b"\n", timeout=60)
        finally:
            process.kill()
    lines = [line.decode() for line in (*before, *after.splitlines())]
    count = len(lines) - 2
    assert 100 < count < 5000
    assert lines[count - 1] == f"harpd: WARNING: line {count - 1} of a log that is not read"
    assert lines[count:] == [
        f"harpd: WARNING: stderr: {5000 - count} lines dropped: its reader had stopped",
        "harpd: WARNING: the reader continues",
    ]
