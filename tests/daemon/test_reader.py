# SPDX-License-Identifier: Apache-2.0
"""The process that reads users' statistics for harpd: privileges, end, failures, restart."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest_stats import Documents, Owner, documents, make_owner, nic, owner, scrape, serving
from daemon_rig import Running, Start, count_descriptors, in_child, refusal
from lease_client import LeaseClient
from programs import finished

from harp._host import Kind
from harp.config import MetricsConfig
from harp.daemon import metrics, table
from harp.daemon.client import DaemonClient
from harp.daemon.limits import Buckets
from harp.daemon.messages import Hello, LeaseId, Refused, Request, pack, unpack
from harp.daemon.metrics import Metrics, listen
from harp.daemon.peer import Peer
from harp.daemon.settings import Settings
from harp.stats import discover, exporter
from harp.stats.confine import KEPT, NOBODY

__all__ = ["make_owner", "owner"]
DOCUMENTS = documents(nic("eth1", "free", verdicts={"rss_mismatch": 3}))


# --------------------------------------------------------------------------------------------------
# Privileges.
#
def test_a_reader_has_two_capabilities_and_owns_nothing() -> None:
    code = "from harp.stats.confine import confine; confine()"
    code += "; print(open('/proc/self/status').read())"
    done = finished([sys.executable, "-c", code], check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")] == [
        KEPT, KEPT, 0, 0,
    ]  # fmt: skip
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == status["Gid"].split() == [str(NOBODY)] * 4
    assert status["Groups"].strip() == ""


def test_without_setuid_the_process_refuses() -> None:
    """It would run as root, which owns most files."""
    command = ["setpriv", "--bounding-set=-setuid", *metrics.COMMAND, "0"]
    with socket.socketpair()[0] as connection:
        done = subprocess.run(
            command, stdin=connection, capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "harpd needs CAP_SETUID and CAP_SETGID" in done.stderr


def test_the_process_ends_with_harpd() -> None:
    """harpd is killed before it answers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen([*metrics.COMMAND, "0"], stdin=theirs)
    with ours:
        assert unpack(ours.recv(65536)).kind is Kind.HELLO
        assert process.poll() is None
    assert process.wait(60) == 1


@pytest.mark.parametrize("room", [0, 1, 2])
def test_the_number_of_descriptors_read_per_user_is_limited(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """A user with millions of them must not prolong the scan. A message names the user."""
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
    preceding = pages[0] if room < 2 else pages[1] + 1
    limit = discover.PROCESS_LINKS + preceding + (room == 1)
    monkeypatch.setattr(discover, "USER_LINKS_MAX", limit)
    with discover.find() as regions:
        assert len(owner.pages(regions)) == room
        messages = [str(error) for _, error in regions.bad]
        is_exceeded = len(discover._numbers(fds)) + discover.PROCESS_LINKS > limit
        assert messages == [f"user {NOBODY} has more descriptors open than the limit: "
                        "the others are left out"] * is_exceeded  # fmt: skip


# --------------------------------------------------------------------------------------------------
# The metrics endpoint.
#
@contextlib.contextmanager
def start_metrics(harpd: Running, *code: str) -> Iterator[Metrics]:
    """Start a metrics endpoint whose process is another program."""
    command = [sys.executable, "-c", *code] if len(code) == 1 else code
    server = harpd.daemon._server
    assert server is not None
    config = MetricsConfig(port=0)
    endpoint = harpd.call(lambda: Metrics(harpd.daemon.loop, config, server, command))
    try:
        yield endpoint
    finally:
        harpd.call(endpoint.close)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an element per attempt to start the process; the delay of a restart is short."""
    attempts: list[int] = []
    popen = subprocess.Popen

    def attempt(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        attempts.append(1)
        return popen(*arguments, **options)

    monkeypatch.setattr(metrics.subprocess, "Popen", attempt)
    monkeypatch.setattr(metrics, "RESTART_S", 0.01)
    return attempts


def test_all_requests_of_a_second_get_one_answer(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 1000.0)
    calls = []

    def source() -> Documents:
        calls.append(1)
        return DOCUMENTS

    texts: list[str] = []
    with serving(source) as url:
        threads = [threading.Thread(target=lambda: texts.append(scrape(url))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(texts), len(set(texts)), calls) == (4, 1, [1])
        assert 'harp_tcp_conns{device="harp7"' in texts[0]
        assert "harpd_pages_read 1.0" in texts[0]
        monkeypatch.setattr(exporter, "AGE_S", 0.0)
        scrape(url)
        assert len(calls) == 2


def test_metrics_without_statistics_are_those_of_harpd(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter, "AGE_S", 0.0)
    monkeypatch.setattr(exporter, "find", lambda: 1 / 0)
    with serving(lambda: DOCUMENTS) as url:
        for _ in range(2):
            text = scrape(url)
    assert "harpd_pages_read 0.0" in text
    assert 'harp_steering_packets_total{device="eth1",verdict="rss_mismatch"} 3.0' in text
    assert "harp_tcp_conns" not in text
    reason = "reading statistics: ZeroDivisionError: division by zero\n"
    assert capsys.readouterr().err == reason, "logged once"


def test_a_killed_metrics_process_is_restarted(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with listen("127.0.0.1", 0) as unused:
        config = MetricsConfig(port=unused.getsockname()[1])
    harpd = start(settings=replace(settings, metrics=config))
    endpoint = harpd.daemon._metrics

    def serves() -> int:
        text = scrape(endpoint.url)
        assert 'harpd_nic_usable{device="eth0"} 1.0' in text
        assert "process_resident_memory_bytes" in text
        assert endpoint._process is not None
        return endpoint._process.pid

    harpd.until(lambda: endpoint._process is not None, "the process")
    first = serves()
    os.kill(first, signal.SIGKILL)
    harpd.until(lambda: endpoint._process.pid != first, "another process")  # type: ignore[union-attr]
    assert serves() != first
    assert caplog.text.count("the process that serves /metrics has ended") == 1


def test_metrics_begin_when_their_port_is_free(
    start: Start,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process of a killed harpd may hold the port for a moment."""
    monkeypatch.setattr(metrics, "BUSY_S", 0.01)
    attempts = []

    def attempt(address: str, port: int) -> socket.socket:
        attempts.append(port)
        return listen(address, port)

    with listen("127.0.0.1", 0) as holder:
        monkeypatch.setattr(metrics, "listen", attempt)
        config = MetricsConfig(port=holder.getsockname()[1])
        harpd = start(settings=replace(settings, metrics=config))
        harpd.until(lambda: len(attempts) > 2, "harpd's third attempt")
        assert harpd.daemon.status()["metrics"] == ""
    harpd.until(lambda: harpd.daemon.status()["metrics"] != "", "the endpoint")
    assert caplog.text.count("harpd serves without metrics until it can bind the port") == 1


@pytest.mark.parametrize("log_interval_s", [0.0, metrics.LOG_AGAIN_S])
def test_a_metrics_process_that_fails_is_restarted(
    harpd: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    starts: list[int],
    log_interval_s: float,
) -> None:
    """The reason is logged once per hour, however often it fails."""
    monkeypatch.setattr(metrics, "LOG_AGAIN_S", log_interval_s)
    with start_metrics(harpd, "import sys; sys.exit('no \\x1b')") as endpoint:
        harpd.until(lambda: len(starts) > 2, "a third attempt")
        assert len(endpoint._logged) == (2 if log_interval_s else 1), "expired lines are forgotten"
    for text in (": no ?", " has ended; harpd starts it again"):
        count = caplog.text.count(f"the process that serves /metrics{text}")
        assert count == 1 if log_interval_s else count > 1


def test_a_problem_is_logged_while_the_process_runs(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "SETTLE_S", 0.01)
    with start_metrics(
        harpd, "import sys; print('why', file=sys.stderr); sys.stdin.read()"
    ) as endpoint:
        harpd.until(lambda: "the process that serves /metrics: why" in caplog.text, "the reason")
        assert endpoint._process is not None
        assert endpoint._process.poll() is None


# Writes two lines, the second one after harpd has read the first one.
TRACEBACK = """
import array, fcntl, sys, termios
print("Traceback (most recent call last):", file=sys.stderr, flush=True)
unread = array.array("i", [1])
while unread[0]:
    fcntl.ioctl(2, termios.FIONREAD, unread)
sys.exit("ValueError: why")
"""


def test_a_traceback_of_the_process_is_one_line_of_the_log(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "SETTLE_S", 1000.0)
    monkeypatch.setattr(metrics, "RESTART_S", 1000.0)
    with start_metrics(harpd, TRACEBACK):
        harpd.until(lambda: "has ended" in caplog.text, "the end of the process")
    reasons = [line for line in caplog.messages if "serves /metrics:" in line]
    assert reasons == ["the process that serves /metrics: ValueError: why"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (pack(Kind.REFUSED, 1, Refused(errno.EPERM, "no")), "harpd refuses: no\n"),
        (b"?", "harpd at its socket uses another protocol: "),
    ],
)
def test_a_process_without_welcome_ends_with_one_line(answer: bytes, why: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listen("127.0.0.1", 0) as unused, ours:
        with theirs:
            process = subprocess.Popen(
                [*metrics.COMMAND, str(unused.fileno())],
                stdin=theirs, stderr=subprocess.PIPE, text=True, pass_fds=[unused.fileno()],
            )  # fmt: skip
        assert unpack(ours.recv(65536)).kind is Kind.HELLO
        ours.send(answer)
        _, written = process.communicate(timeout=60)
    assert process.returncode == 1
    assert written.startswith(why)
    assert written.count("\n") == 1


def test_a_process_that_cannot_be_watched_serves_no_metrics(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """harpd can open only one of the two pidfds that it needs."""
    before = harpd.call(count_descriptors)
    monkeypatch.setattr(metrics, "RESTART_S", 1000.0)
    remaining, pidfd_open = [1], os.pidfd_open

    def limited(pid: int) -> int:
        if not remaining:
            raise OSError(errno.EMFILE, "Too many open files")
        remaining.pop()
        return pidfd_open(pid)

    monkeypatch.setattr(metrics.os, "pidfd_open", limited)
    with start_metrics(harpd, "import sys; sys.stdin.read()") as endpoint:
        harpd.until(lambda: "can't be started: Too many open files" in caplog.text, "a failure")
        assert not harpd.daemon._server.clients
        assert harpd.call(count_descriptors) == before + 1, "the listening socket"
        assert endpoint._process is not None
        assert endpoint._process.wait(60) == 0, "it ends when its connection is closed"


@contextlib.contextmanager
def internal(harpd: Running) -> Iterator[socket.socket]:
    """Connect to harpd as its own exporter process, with user nobody."""
    server = harpd.daemon._server
    assert server is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def add() -> None:
        process = table.Owner(os.getpid(), 0, NOBODY)
        peer = Peer(process, frozenset(), os.pidfd_open(os.getpid()), "exporter")
        server.add(theirs, peer, internal=True)

    with ours:
        ours.settimeout(10)
        harpd.call(add)
        yield ours


def test_the_metrics_process_does_not_count_for_its_user(start: Start, settings: Settings) -> None:
    """It shares no limit with jobs of the same user."""
    harpd = start(settings=replace(settings, connections_per_uid=1))
    harpd.daemon._server.buckets = Buckets(1e-9, 2.0)  # HELLO and QUERY of the job

    def job() -> bool:
        with LeaseClient(harpd.path, "job", 10) as client:
            return client.query("status")["leases"] == 0

    with internal(harpd) as connection:
        assert in_child(job, NOBODY), "the exporter's connection does not count"
        with DaemonClient(Path("here"), sock=connection) as client:
            assert refusal(client.query, "unknown").error == errno.ENOSYS
            assert client.query("status")["leases"] == 0


@pytest.mark.parametrize(
    "message", [pack(Kind.LEASE, 2, Request("eth0")), pack(Kind.RELEASE, 2, LeaseId(1))]
)
def test_the_metrics_process_cannot_lease(
    harpd: Running, caplog: pytest.LogCaptureFixture, message: bytes
) -> None:
    with internal(harpd) as connection:
        connection.send(pack(Kind.HELLO, 1, Hello("exporter")))
        assert unpack(connection.recv(65536)).kind is Kind.WELCOME
        connection.send(message)
        assert connection.recv(65536) == b""
    assert "is for jobs, not for harpd's own process; its connection is closed" in caplog.text


def test_a_metrics_process_that_cannot_be_started_is_started_later(
    harpd: Running,
    caplog: pytest.LogCaptureFixture,
    starts: list[int],
    tmp_path: Path,
) -> None:
    command = tmp_path / "exporter"
    with start_metrics(harpd, str(command), "") as endpoint:
        harpd.until(lambda: len(starts) > 2, "a third attempt")
        (tmp_path / "new").write_text("#!/bin/sh\nread -r line\n")
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").rename(command)
        harpd.until(lambda: endpoint._process is not None, "a process that runs")
    assert caplog.text.count("the process that serves /metrics can't be started: No such file") == 1


def test_the_delay_of_a_restart_grows(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def serve(_self: Metrics, _listening: int) -> None:
        if len(delays) == 9:  # it has served for a long time
            monkeypatch.setattr(metrics, "RESTART_MAX_S", 0.0)

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) == 10:
            await asyncio.Event().wait()

    monkeypatch.setattr(Metrics, "_serve", serve)
    monkeypatch.setattr(metrics.asyncio, "sleep", sleep)
    with start_metrics(harpd, ""):
        harpd.until(lambda: len(delays) == 10, "ten starts")
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, metrics.RESTART_S]


def test_the_metrics_process_cannot_fill_the_log(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "RESTART_S", 1000.0)
    monkeypatch.setattr(metrics, "LOGS_BURST", 2.0)
    monkeypatch.setattr(metrics, "SETTLE_S", 0.0)
    code = "import sys\nfor i in range(1000): print(i, file=sys.stderr, flush=True)"
    with start_metrics(harpd, code) as endpoint:
        harpd.until(lambda: endpoint._process.poll() is not None, "the end of the process")  # type: ignore[union-attr]
        harpd.call(lambda: None)
    assert 1 <= caplog.text.count("the process that serves /metrics") <= 2


def test_no_second_process_serves_metrics(harpd: Running, starts: list[int]) -> None:
    """harpd can't kill a process that closes its connection and continues."""
    with start_metrics(harpd, "import os, time; os.close(0); time.sleep(60)") as endpoint:
        harpd.until(
            lambda: endpoint._client is not None and not endpoint._client.open,
            "the end of the connection",
        )
        process = endpoint._process
        # Timers run in order: a start caused by the close would run before this one.
        delay_over = threading.Event()
        harpd.call(lambda: harpd.daemon.loop.call_later(5 * metrics.RESTART_S, delay_over.set))
        assert delay_over.wait(10)
        assert starts == [1]
        assert process is not None
        assert process is endpoint._process
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        harpd.until(lambda: endpoint._process is not process, "another process")
        assert len(starts) > 1

        def end() -> None:
            os.kill(endpoint._process.pid, signal.SIGKILL)
            endpoint.close()

        harpd.call(end)
