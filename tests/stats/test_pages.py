# SPDX-License-Identifier: Apache-2.0
"""Statistics regions of other processes: discovery, owners, contents, and hostile contents."""

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest_stats import MakeOwner, Owner, content_of, memory

from harp import _host, _page, memfd, stats
from harp.daemon import peer
from harp.stats import discover, instance
from harp.stats.instance import look
from harp.stats.page import text
from harp.stats.view import Rates, quantile_ns
from harp.stats.view import rates as rates_of


def test_the_pages_of_a_process_are_found_and_read(owner: Owner) -> None:
    with stats.find() as regions:
        first, second = owner.pages(regions)
        assert (first.uid, first.comm) == (os.geteuid(), "page_owner")
        snapshot = stats.read(first.fd)
        assert snapshot.identity.ifname == "harp7"
        assert snapshot.identity.label == "train rank 0"
        assert snapshot.identity.pid == owner.process.pid
        assert snapshot.status.flows_open == 3
        assert not snapshot.status.ended
        assert snapshot.counters["tcp_active_opens"] == 3
        assert stats.read(second.fd).counters["tcp_passive_opens"] == 3
        assert snapshot.counters["tx_packets"] > 200
        flows = snapshot.flows
        assert sorted(flows["label"]) == [b"send comm 0", b"send comm 1", b"send comm 2"]
        assert np.all(flows["srtt_ns"] > 0)
        assert np.all(flows["acked_bytes"] > 100_000)
        names = [name for name, _ in _page.LISTS["histogram"]]
        gaps = snapshot.histograms[names.index("poll_gap")]
        assert gaps["count"] == sum(gaps["bucket"])
        # Polls are 50 us apart; buckets are a quarter wide.
        assert quantile_ns(gaps["bucket"].tolist(), 0.5) == 57344
    assert first.fd == -1


def test_rates_are_changes_between_two_readings(owner: Owner) -> None:
    before = instance.document(owner.instances()[0])
    owner.send("latency 1000", "latency 500000", "run 100")
    now = instance.document(owner.instances()[0])
    rates = Rates(before, now, 2.0)
    sent = now["counters"]["tx_packets"] - before["counters"]["tx_packets"]
    assert sent > 100
    assert rates.moved("tx_packets") == sent / 2.0
    assert rates.quantile_ns("message_latency", 0.5) == 1024
    assert rates.quantile_ns("message_latency", 0.99) == 524288
    assert Rates(None, now, 0).moved("tx_packets") == now["counters"]["tx_packets"]
    assert Rates(None, before, 0).quantile_ns("message_latency", 0.5) is None
    other = {**before, "identity": {**before["identity"], "start_wall_ns": 1}}
    (restarted,) = rates_of({"instances": [now]}, 2.0, {"instances": [other]})
    assert restarted.moved("tx_packets") == now["counters"]["tx_packets"]


def test_a_page_of_an_ended_process_is_not_found(make_owner: MakeOwner) -> None:
    owner = make_owner()
    with stats.find() as regions:
        page = owner.pages(regions)[0]
        owner.send("end")
        assert stats.read(page.fd).status.ended  # its last write
        owner.close()
        assert stats.read(page.fd).status.ended  # the memory stays readable for its holder
    with stats.find() as regions:
        assert not owner.pages(regions)


def test_an_unfinished_write_is_an_error(owner: Owner) -> None:
    owner.send("tear")
    with stats.find() as regions:
        host = look(regions)
    errors = [why for pid, why in host.bad if pid == owner.process.pid]
    assert errors == ["statistics page: its owner is in the middle of a write, stopped or dead"]
    queues = [
        entry.snapshot.identity.queue for entry in host.instances if entry.pid == owner.process.pid
    ]
    assert queues == [1]


def test_a_page_that_several_processes_hold_is_found_once(owner: Owner) -> None:
    """harpd and forked children may hold a job's page, which names its owner."""
    with stats.find() as regions:
        page = owner.pages(regions)[0]
        child = subprocess.Popen(
            [sys.executable, "-c", "print('ready', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[page.fd],
        )
        try:
            assert child.stdout.readline() == b"ready\n"
            with stats.find() as later:
                assert len([other for other in later.pages if other.inode == page.inode]) == 1
                assert len(owner.pages(later)) == 2
        finally:
            child.communicate(b"\n")


def test_a_page_that_the_search_opens_does_not_become_its_own(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page names our PID, which an ended process had before, and another process holds it. The
    search opens it first there, and then finds that descriptor in our process."""
    us = os.getpid()
    with stats.find() as regions:
        inode = owner.pages(regions)[0].inode
    monkeypatch.setattr(discover, "_processes", lambda _proc: iter((owner.process.pid, us)))
    # The page names our PID as its owner's.
    own_pid = discover._own_pid
    swapped = {us: owner.process.pid, owner.process.pid: us}
    monkeypatch.setattr(
        discover, "_own_pid", lambda proc, pid: own_pid(proc, swapped.get(pid, pid))
    )
    with stats.find() as regions:
        (page,) = [candidate for candidate in regions.pages if candidate.inode == inode]
        assert page.pid == owner.process.pid


# --------------------------------------------------------------------------------------------------
# Hostile pages. page_rig's C tests cover the header; these cover the code in Python.
#


def _copy(owner: Owner, change: dict[int, bytes]) -> bytes:
    with stats.find() as regions:
        raw = content_of(owner.pages(regions)[0])
    for offset, content in change.items():
        raw[offset : offset + len(content)] = content
    return bytes(raw)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({0: b"\0" * 8}, "its owner has not published yet"),
        ({0: b"NONSENSE"}, "not a statistics page: wrong magic"),
        ({8: struct.pack("=I", 9)}, "version 9 of the page's format; this reader knows 2"),
        ({24: struct.pack("=I", 0xFFFFFFC0)}, "part 0 exceeds the page"),
        ({24 + 2 * 16 + 8: struct.pack("=I", 0x7FFFFFFF)}, "part 2 exceeds the page"),
        ({16: struct.pack("=Q", 1 << 60)}, "the page's header is invalid"),
    ],
    ids=["fresh", "magic", "version", "offset", "count", "size"],
)
def test_an_invalid_header_is_an_error(owner: Owner, change: dict[int, bytes], why: str) -> None:
    with memory(_copy(owner, change)) as fd, pytest.raises(stats.PageError, match=why):
        stats.read(fd)


def test_control_characters_in_strings_are_replaced(owner: Owner) -> None:
    """A label must not move a terminal's cursor or end a line of /metrics."""
    raw = _copy(owner, {})
    label = raw.index(b"train rank 0")
    raw = raw[:label] + b'\x1b[2J\n\xff\xfe"}' + b"\0" * 4 + raw[label + 12 :]
    with memory(raw) as fd:
        assert stats.read(fd).identity.label == '?[2J?\ufffd\ufffd"}'
    assert text(b"a\0b") == "a"


NOBODY = 65534


def of_nobody(monkeypatch: pytest.MonkeyPatch, *owners: Owner) -> None:
    """The search sees only these processes, and their pages belong to user nobody."""
    described, pids = discover._page_of, sorted(owner.process.pid for owner in owners)

    def describe(*arguments: Any) -> stats.Page:
        page = described(*arguments)
        page.uid = NOBODY
        return page

    monkeypatch.setattr(discover, "_page_of", describe)
    monkeypatch.setattr(discover, "_processes", lambda _proc: iter(pids))


@pytest.mark.parametrize("limit", ["pages", "bytes"])
def test_the_number_of_regions_read_per_user_is_limited(
    make_owner: MakeOwner, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Pages above the limit are left out, with one message."""
    of_nobody(monkeypatch, make_owner(), make_owner())
    with stats.find() as regions:
        size = regions.pages[0].size
        assert len(regions.pages) == 4
    maximum = 3 * (size if limit == "bytes" else 1)
    monkeypatch.setattr(discover, f"USER_{limit.upper()}_MAX", maximum)
    with stats.find() as regions:
        assert len(regions.pages) == 3
        assert ["publishes more pages" in str(error) for _, error in regions.bad] == [True]


def test_a_region_above_the_limit_does_not_count(
    make_owner: MakeOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regions of the user's other processes are still read."""
    first, second = sorted((make_owner(), make_owner()), key=lambda owner: owner.process.pid)
    of_nobody(monkeypatch, first, second)
    with stats.find() as regions:
        monkeypatch.setattr(discover, "USER_BYTES_MAX", 2 * regions.pages[0].size)
    monkeypatch.setattr(discover, "USER_PAGES_MAX", 2)
    described = discover._page_of

    def describe_large(*arguments: Any) -> stats.Page:
        page = described(*arguments)
        page.size <<= 2 * (page.pid == first.process.pid)
        return page

    monkeypatch.setattr(discover, "_page_of", describe_large)
    with stats.find() as regions:
        assert {page.pid for page in regions.pages} == {second.process.pid}
        assert len(regions.pages) == 2
        assert ["publishes more pages" in str(error) for _, error in regions.bad] == [True]


@pytest.mark.parametrize(
    "name",
    [b"\xff\xfe", b"x\x0bUid:\t0", b"x\x0cCapEff:\t1000", b"x\xc2\x85Uid:\t7", b"a\nUid:\t0"],
)
def test_any_process_name_is_safe(name: bytes) -> None:
    """Names with invalid UTF-8, and names that look like lines of /proc/PID/status."""
    fd, _ = _host.page_create(0)
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        uid = NOBODY if os.geteuid() == 0 else os.geteuid()
        page = discover._page_of(Path("/proc"), pid, fd, os.fstat(fd))
        assert (page.uid, page.comm.isprintable()) == (uid, True)
        assert peer.capabilities(pid) == 0 or uid == 0
        with stats.find() as regions:
            look(regions)
    finally:
        os.close(fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_an_unknown_state_is_shown_as_such(owner: Owner) -> None:
    """A connection in such a state does not affect others."""
    with stats.find() as regions:
        flow = stats.read(owner.pages(regions)[0].fd).flows[0]
    flow["state"] = flow["congestion"] = 2**64 - 1
    document = instance.flow_document(flow)
    assert (document["state"], document["congestion"]) == ("?", "?")


def test_files_named_like_a_page_are_reported(owner: Owner) -> None:
    """Unsealed, short and unowned files are reported or ignored; other pages are found."""
    fresh, _ = _host.page_create(0)
    with memory(_copy(owner, {}), seals=0), memory(b"short"), stats.find() as regions:
        os.close(fresh)
        assert len(owner.pages(regions)) == 2
        errors = [error for pid, error in regions.bad if pid == os.getpid()]
        assert sorted(error.errno for error in errors) == sorted([errno.EPERM, errno.EMSGSIZE])
        assert "not sealed against resizing" in " ".join(map(str, errors))


def test_disappearing_entries_of_proc_are_skipped(tmp_path: Path) -> None:
    """Processes and descriptors may end during the scan."""
    (tmp_path / "12" / "fd").mkdir(parents=True)
    (tmp_path / "12" / "fd" / "3").symlink_to(_page.LINK)
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    with stats.find(tmp_path) as regions:
        assert (regions.pages, regions.bad, regions.hidden_processes) == ([], [], 0)


@pytest.mark.parametrize("kind", ["fifo", "terminal", "device", "file", "directory", "socket"])
def test_only_memory_is_opened(tmp_path: Path, kind: str) -> None:
    """A link may lead to another file at the moment at which it is opened."""
    fds = []
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
        fds.append(os.open(path, os.O_PATH))
    elif kind == "terminal":
        fds += os.openpty()
        fds.reverse()
    elif kind == "device":
        fds.append(os.open("/dev/null", os.O_RDONLY))
    elif kind == "file":
        path.write_text("x")
        fds.append(os.open(path, os.O_RDONLY))
    elif kind == "directory":
        fds.append(os.open(tmp_path, os.O_RDONLY))
    else:
        fds += os.pipe()
    try:
        with pytest.raises(memfd.NotMemoryError) as failure:
            memfd.open_link(Path("/proc/self/fd", str(fds[0])), os.O_RDONLY)
        assert failure.value.errno == errno.EINVAL
    finally:
        for fd in fds:
            os.close(fd)
