# SPDX-License-Identifier: Apache-2.0
"""The processes that read users' statistics for harpd: privileges, end, failures, restart."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_stats import Owner, make_owner, owner, scraped, serving
from daemon_rig import Running
from harpd_documents import Documents, documents, nic

from harp.config import MetricsConfig
from harp.daemon.documents import READER, read_statistics
from harp.daemon.metrics import Metrics, listen
from harp.daemon.settings import Settings
from harp.daemon.table import RefusedError
from harp.stats import discover, exporter
from harp.stats.reader import KEPT, NOBODY

__all__ = ["make_owner", "owner"]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: capabilities are given up")
DOCUMENTS = documents(nic("eth1", "free", verdicts={"rss_mismatch": 3}))


def variant(change: str) -> list[str]:
    """A command that is the reader with something changed."""
    code = f"import os, time; from harp.stats import discover, reader; {change}; reader.main()"
    return [sys.executable, "-P", "-c", code]


@pytest.fixture
def alive() -> Iterator[socket.socket]:
    """Readers live as long as its peer is open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs


# --------------------------------------------------------------------------------------------------
# What they may do.
#
@ROOT_ONLY
def test_a_reader_has_two_capabilities_and_owns_nothing() -> None:
    code = "from harp.stats.reader import confine; confine()"
    code += "; print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert [int(found[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == [
        KEPT, KEPT, 0, 0,
    ]  # fmt: skip
    assert found["NoNewPrivs"] == "1"
    assert found["Uid"].split() == found["Gid"].split() == [str(NOBODY)] * 4
    assert found["Groups"].strip() == ""


@ROOT_ONLY
def test_without_setuid_a_reader_refuses(alive: socket.socket) -> None:
    """It would be root otherwise, which owns most files."""
    command = ["setpriv", "--bounding-set=-setuid", *READER]
    with pytest.raises(RefusedError, match="harpd needs CAP_SETUID and CAP_SETGID"):
        read_statistics(alive, False, command)


def test_an_exception_of_the_reader_is_the_reason_of_a_refusal(alive: socket.socket) -> None:
    with pytest.raises(RefusedError, match="the reader of statistics failed: ZeroDivisionError"):
        read_statistics(alive, False, variant("discover.find = lambda: 1 / 0"))


def test_a_reader_ends_with_harpd(tmp_path: Path) -> None:
    """Which is killed during a scan."""
    path = tmp_path / "pid"
    change = f"open({str(path)!r}, 'w').write(str(os.getpid()))"
    change += "; discover.find = lambda: time.sleep(1000)"
    harpd = os.fork()
    if harpd == 0:
        try:
            _ours, theirs = socket.socketpair()
            read_statistics(theirs, False, variant(change))
        finally:
            os._exit(1)
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    pidfd = os.pidfd_open(int(path.read_text()))
    try:
        os.kill(harpd, signal.SIGKILL)
        os.waitpid(harpd, 0)
        assert select.select([pidfd], [], [], 30)[0]
    finally:
        os.close(pidfd)


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


# --------------------------------------------------------------------------------------------------
# The metrics endpoint.
#
def test_all_requests_of_a_second_get_one_answer(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 1000.0)
    asked: list[str] = []

    def source(problem: str) -> Documents:
        asked.append(problem)
        return DOCUMENTS

    texts: list[str] = []
    with serving(source) as url:
        threads = [threading.Thread(target=lambda: texts.append(scraped(url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(texts), len(set(texts)), asked) == (4, 1, [""])
        assert 'harp_tcp_conns{device="harp7"' in texts[0]
        assert "harpd_pages_read 1.0" in texts[0]
        monkeypatch.setattr(exporter, "AGE_S", 0.0)
        scraped(url)
        assert len(asked) == 2


def test_metrics_without_statistics_are_harpd_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 0.0)
    monkeypatch.setattr(exporter, "find", lambda: 1 / 0)
    problems: list[str] = []

    def source(problem: str) -> Documents:
        problems.append(problem)
        return DOCUMENTS

    with serving(source) as url:
        for _ in range(2):
            text = scraped(url)
    assert "harpd_pages_read 0.0" in text
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert "harp_tcp_conns" not in text
    assert problems == ["", "reading statistics: ZeroDivisionError: division by zero"]


def test_the_process_that_serves_metrics_is_started_again(
    start: Callable[..., Running], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with listen("127.0.0.1", 0) as unused:
        config = MetricsConfig(port=unused.getsockname()[1])
    harpd = start(given=replace(settings, metrics=config))
    metrics = harpd.daemon._metrics
    assert metrics is not None

    def serves() -> int:
        harpd.until(lambda: metrics.pid > 0, "the process")
        text = scraped(metrics.url)
        assert 'harpd_nic_usable{device="eth0"} 1.0' in text
        assert "process_resident_memory_bytes" in text
        return metrics.pid

    first = serves()
    os.kill(first, signal.SIGKILL)
    harpd.until(lambda: metrics.pid == 0, "its end")
    assert serves() != first
    assert caplog.text.count("the process that serves /metrics has ended") == 1


def test_a_process_that_can_not_serve_metrics_is_started_once(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", "import socket; socket.socket(fileno=0).send(b'no \\x1b')"]
    made: list[Any] = []
    config = MetricsConfig(port=0)
    harpd.call(lambda: made.append(Metrics(harpd.daemon.loop, config, lambda: DOCUMENTS, command)))
    harpd.until(lambda: "there are no metrics" in caplog.text, "its end")
    assert "the process that serves /metrics: no ?" in caplog.text
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(made[0].url, timeout=0.01)
    harpd.call(made[0].close)
