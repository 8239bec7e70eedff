# SPDX-License-Identifier: Apache-2.0
"""The process that reads users' statistics for harpd: its privileges, its end, and its absence."""

import gzip
import json
import logging
import os
import select
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest_stats import Owner, make_owner, owner
from harpd_documents import Documents, documents, nic

from harp.daemon import exporter
from harp.daemon import reader as reading
from harp.daemon.reader import Reader, ReaderError
from harp.procfs import status_field
from harp.stats import discover
from harp.stats.reader import KEPT, NOBODY

__all__ = ["make_owner", "owner"]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: capabilities are given up")
DOCUMENTS = documents(nic("eth1", "free", verdicts={"rss_mismatch": 3}))
DOCUMENT = {"kind": "document", "flows": False}


def variant(change: str) -> list[str]:
    """A command that is the reader with something changed."""
    code = f"import time; from harp.stats import discover, reader; {change}; reader.main()"
    return [sys.executable, "-P", "-c", code]


@pytest.fixture
def make_reader() -> Iterator[Callable[..., Reader]]:
    """Starts readers, and ends them."""
    made: list[Reader] = []

    def make(*arguments: Any) -> Reader:
        made.append(Reader(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def document(reader: Reader) -> Any:
    with os.fdopen(reader.ask(DOCUMENT), "rb") as file:
        return json.load(file)


def pids(reader: Reader) -> set[int]:
    return {each["pid"] for each in document(reader)["instances"]}


def has_ended(pid: int, pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 30)[0]) or not Path(f"/proc/{pid}").exists()


# --------------------------------------------------------------------------------------------------
# What it may do.
#
@ROOT_ONLY
def test_the_reader_has_two_capabilities_and_owns_nothing(
    make_reader: Callable[..., Reader], owner: Owner
) -> None:
    """And sees a page of root's process with them."""
    reader = make_reader()
    assert owner.process.pid in pids(reader)
    for name in ("CapEff", "CapPrm"):
        assert int(status_field(reader.pid, name), 16) == KEPT
    assert int(status_field(reader.pid, "CapInh"), 16) == 0
    assert int(status_field(reader.pid, "CapAmb"), 16) == 0
    assert status_field(reader.pid, "NoNewPrivs") == "1"
    for name in ("Uid", "Gid"):
        assert status_field(reader.pid, name).split() == [str(NOBODY)] * 4
    assert status_field(reader.pid, "Groups") == ""
    assert Path(f"/proc/{reader.pid}/fd/0").readlink().name.startswith("socket:")


@ROOT_ONLY
def test_without_setuid_the_reader_refuses(
    make_reader: Callable[..., Reader],
) -> None:
    """It would be root otherwise, which owns most files."""
    command = ["setpriv", "--bounding-set=-setuid", *reading.COMMAND]
    with pytest.raises(ReaderError, match="harpd needs CAP_SETUID and CAP_SETGID"):
        make_reader(command).ask(DOCUMENT)


# --------------------------------------------------------------------------------------------------
# Its end.
#
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in-a-scan"])
def test_the_reader_ends_with_harpd(busy: bool) -> None:
    """Which is killed."""
    reading_end, writing_end = os.pipe()
    harpd = os.fork()
    if harpd == 0:
        try:
            reader = (
                Reader(variant("discover.find = lambda: time.sleep(1000)")) if busy else Reader()
            )
            asking = threading.Thread(target=reader.ask, args=(DOCUMENT,), daemon=True)
            asking.start()
            if not busy:
                asking.join()
            while not (reader.pid and reader._connection and reader._connection.gettimeout() == 60):
                threading.Event().wait(0.01)
            os.write(writing_end, str(reader.pid).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing_end)
    pid = int(os.read(reading_end, 20))
    os.close(reading_end)
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(harpd, signal.SIGKILL)
        os.waitpid(harpd, 0)
        assert has_ended(pid, pidfd)
    finally:
        os.close(pidfd)


def test_a_dead_reader_is_started_again(
    make_reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader()
    document(reader)
    first = reader.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ReaderError, match="has failed"):
        document(reader)
    monkeypatch.setattr(reading, "RESTART_S", 1e9)
    with pytest.raises(ReaderError, match="started again in a moment"):
        document(reader)
    monkeypatch.setattr(reading, "RESTART_S", 0)
    document(reader)
    assert reader.pid not in (0, first)


def test_a_reader_that_does_not_answer_is_ended(make_reader: Callable[..., Reader]) -> None:
    reader = make_reader(variant("discover.find = lambda: time.sleep(1000)"))
    with pytest.raises(ReaderError, match="timed out"):
        reader.ask(DOCUMENT, 0.05)
    assert reader.pid == 0


def test_an_exception_of_the_reader_is_an_answer(make_reader: Callable[..., Reader]) -> None:
    reader = make_reader(variant("discover.find = lambda: 1 / 0"))
    for _ in range(2):
        with pytest.raises(ReaderError, match="ZeroDivisionError"):
            reader.ask(DOCUMENT)


# --------------------------------------------------------------------------------------------------
# What a scan costs.
#


@pytest.mark.parametrize("room", [0, 1, 2])
def test_the_number_of_descriptors_read_per_user_is_limited(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """A user with millions of them must not make the scan long; a message names the user."""
    pid = owner.process.pid
    uid = discover._uid
    monkeypatch.setattr(discover, "_uid", lambda p, n: NOBODY if n == pid else uid(p, n))
    monkeypatch.setattr(discover, "_processes", lambda _proc: iter((pid,)))
    fds = Path(f"/proc/{pid}/fd")
    pages = [
        number
        for number in discover._numbers(fds)
        if "harp-page" in str((fds / str(number)).readlink())
    ]
    before = pages[0] if room < 2 else pages[1] + 1
    most = discover.PROCESS_LINKS + before + (room == 1)
    monkeypatch.setattr(discover, "USER_LINKS_MAX", most)
    with discover.find() as found:
        assert len(owner.pages(found)) == room
        messages = [str(error) for _, error in found.bad]
        more = len(discover._numbers(fds)) + discover.PROCESS_LINKS > most
        assert messages == [f"user {NOBODY} has more descriptors open than the limit: "
                        "the others are left out"] * more  # fmt: skip


class Counted(Reader):
    """Counts what it is asked."""

    asked = 0

    def ask(self, *arguments: Any, **named: Any) -> int:
        self.asked += 1
        return super().ask(*arguments, **named)


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: bytes = answer.read()
        return gzip.decompress(text) if answer.headers["Content-Encoding"] == "gzip" else text


def test_all_requests_of_a_second_get_one_answer(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 1000.0)
    reader, views = Counted(), []

    def view() -> Documents:
        views.append(1)
        return DOCUMENTS

    running = exporter.Exporter(port=0, source=view, reader=reader)
    try:
        texts: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: texts.append(get(running.url))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        texts.append(get(running.url, **{"Accept-Encoding": "gzip"}))
        assert len(set(texts)) == 1
        assert len(texts) == 5
        assert (reader.asked, len(views)) == (1, 1)
        assert b'harp_tcp_conns{device="harp7"' in texts[0]
        assert b"harpd_pages_read 1.0" in texts[0]
        monkeypatch.setattr(exporter, "AGE_S", 0.0)
        get(running.url)
        assert (reader.asked, len(views)) == (2, 2)
    finally:
        running.close()


# --------------------------------------------------------------------------------------------------
# Without it.
#
def test_metrics_without_the_reader_are_harpd_s_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 0.0)
    running = exporter.Exporter(
        port=0, source=lambda: DOCUMENTS, reader=Reader(["/no/such/program"])
    )
    monkeypatch.setattr(reading, "RESTART_S", 0)
    try:
        with caplog.at_level(logging.ERROR, "harpd"):
            for _ in range(3):
                text = get(running.url).decode()
    finally:
        running.close()
    assert "harpd_pages_read 0.0" in text
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert "harp_tcp_conns" not in text
    (line,) = [record.getMessage() for record in caplog.records]
    assert "can't be started: No such file" in line
    assert "/metrics is without jobs' statistics" in line
