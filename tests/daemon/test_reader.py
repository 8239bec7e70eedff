# SPDX-License-Identifier: Apache-2.0
"""The processes that read users' statistics for harpd: privileges, end, failures, restart."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest_stats import Owner, make_owner, owner, scraped, serving
from daemon_rig import Running
from harpd_documents import Documents, documents, nic

from harp.config import MetricsConfig
from harp.daemon import metrics
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
@contextlib.contextmanager
def made(harpd: Running, *code: str) -> Iterator[Metrics]:
    """An endpoint whose process is another program."""
    command = [sys.executable, "-c", *code] if len(code) == 1 else code
    server = harpd.daemon._server
    assert server is not None
    config = MetricsConfig(port=0)
    endpoint = harpd.call(lambda: Metrics(harpd.daemon.loop, config, server, command))
    try:
        yield endpoint
    finally:
        harpd.call(endpoint.close)


def test_all_requests_of_a_second_get_one_answer(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 1000.0)
    asked = []

    def source() -> Documents:
        asked.append(1)
        return DOCUMENTS

    texts: list[str] = []
    with serving(source) as url:
        threads = [threading.Thread(target=lambda: texts.append(scraped(url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(texts), len(set(texts)), asked) == (4, 1, [1])
        assert 'harp_tcp_conns{device="harp7"' in texts[0]
        assert "harpd_pages_read 1.0" in texts[0]
        monkeypatch.setattr(exporter, "AGE_S", 0.0)
        scraped(url)
        assert len(asked) == 2


def test_metrics_without_statistics_are_harpd_s_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 0.0)
    monkeypatch.setattr(exporter, "find", lambda: 1 / 0)
    with serving(lambda: DOCUMENTS) as url:
        for _ in range(2):
            text = scraped(url)
    assert "harpd_pages_read 0.0" in text
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert "harp_tcp_conns" not in text
    reason = "reading statistics: ZeroDivisionError: division by zero\n"
    assert capsys.readouterr().err == reason, "once"


def test_the_process_that_serves_metrics_is_started_again(
    start: Callable[..., Running], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with listen("127.0.0.1", 0) as unused:
        config = MetricsConfig(port=unused.getsockname()[1])
    harpd = start(given=replace(settings, metrics=config))
    endpoint = harpd.daemon._metrics
    assert endpoint is not None

    def serves() -> int:
        text = scraped(endpoint.url)
        assert 'harpd_nic_usable{device="eth0"} 1.0' in text
        assert "process_resident_memory_bytes" in text
        assert endpoint._process is not None
        return endpoint._process.pid

    harpd.until(lambda: endpoint._process is not None, "the process")
    first = serves()
    os.kill(first, signal.SIGKILL)
    harpd.until(lambda: endpoint._process.pid != first, "another one")  # type: ignore[union-attr]
    assert serves() != first
    assert caplog.text.count("the process that serves /metrics has ended") == 1


def test_metrics_begin_when_their_port_is_free(
    start: Callable[..., Running],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process of a harpd that was killed has the port for a moment."""
    monkeypatch.setattr(metrics, "BUSY_S", 0.01)
    attempts = []

    def attempt(address: str, port: int) -> socket.socket:
        attempts.append(port)
        return listen(address, port)

    with listen("127.0.0.1", 0) as other:
        monkeypatch.setattr(metrics, "listen", attempt)
        config = MetricsConfig(port=other.getsockname()[1])
        harpd = start(given=replace(settings, metrics=config))
        harpd.until(lambda: len(attempts) > 2, "harpd tries again")
        assert harpd.daemon.status()["metrics"] == ""
    harpd.until(lambda: harpd.daemon.status()["metrics"] != "", "the endpoint")
    assert caplog.text.count("harpd serves without metrics until it can bind the port") == 1


def test_a_process_that_can_not_serve_metrics_is_started_again(
    harpd: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Its reason is logged once, however often it fails."""
    monkeypatch.setattr(metrics, "RESTART_S", 0.01)
    starts = tmp_path / "starts"
    code = f"import sys; print('start', file=open({str(starts)!r}, 'a')); sys.exit('no \\x1b')"
    with made(harpd, code):
        harpd.until(lambda: starts.exists() and starts.read_text().count("start") > 2, "a third")
    assert caplog.text.count("the process that serves /metrics: no ?") == 1
    assert caplog.text.count("the process that serves /metrics has ended; another one") == 1


def test_a_process_for_metrics_that_can_not_be_started_is_started_later(
    harpd: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(metrics, "RESTART_S", 0.01)
    command = tmp_path / "exporter"
    with made(harpd, str(command), "") as endpoint:
        harpd.until(lambda: "can't be started" in caplog.text, "a failure")
        (tmp_path / "new").write_text("#!/bin/sh\nread -r line\n")
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").rename(command)
        harpd.until(lambda: endpoint._process is not None, "it serves")
    assert caplog.text.count("the process that serves /metrics can't be started: No such file") == 1


def test_the_delay_of_a_restart_grows(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def ends(_self: Metrics, _listening: int) -> None:
        if len(delays) == 9:  # it has served for long
            monkeypatch.setattr(metrics, "RESTART_MAX_S", 0.0)

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) == 10:
            await asyncio.Event().wait()

    monkeypatch.setattr(Metrics, "_serve", ends)
    monkeypatch.setattr(metrics.asyncio, "sleep", sleep)
    with made(harpd, ""):
        harpd.until(lambda: len(delays) == 10, "ten starts")
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, metrics.RESTART_S]


def test_a_process_for_metrics_can_not_fill_the_log(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "RESTART_S", 1000.0)
    monkeypatch.setattr(metrics, "LOGS_BURST", 2.0)
    code = "import sys\nfor i in range(1000): print(i, file=sys.stderr, flush=True)"
    with made(harpd, code) as endpoint:
        harpd.until(lambda: endpoint._process.poll() is not None, "its end")  # type: ignore[union-attr]
        harpd.call(lambda: None)
    assert 1 <= caplog.text.count("the process that serves /metrics") <= 2


def test_no_second_process_serves_metrics(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """harpd can't kill one that has closed its connection and continues."""
    monkeypatch.setattr(metrics, "RESTART_S", 0.01)
    with made(harpd, "import os, time; os.close(0); time.sleep(60)") as endpoint:
        harpd.until(lambda: endpoint._client is not None and not endpoint._client.open, "its close")
        process = endpoint._process
        assert process is not None
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        harpd.until(lambda: endpoint._process is not process, "another one")

        def end() -> None:
            assert endpoint._process is not None
            os.kill(endpoint._process.pid, signal.SIGKILL)
            endpoint.close()

        harpd.call(end)
