# SPDX-License-Identifier: Apache-2.0
"""If encryption is required, lanes are encrypted, or init fails with one line.

The job is a process that loads the plugin and uses kernel lanes over loopback. It has its own /etc,
in which the test writes /etc/harp.
"""

import base64
import contextlib
import os
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from actor import Actor, ActorError, actors
from daemon_rig import NOBODY, Start, listener
from harpd_rig import HostDaemon, stopped

from harp.daemon.settings import Settings
from harp.lab import Lab

KEY = "01" * 32 + "\n"
REQUIRED = '[lanes]\nencrypt = "aes-256-gcm"\n'
HANDLE_ENCRYPTED_AT = 5


@dataclass
class Job:
    """A job of user `uid` that sees `etc` as /etc."""

    etc: Path
    socket: Path
    uid: int = 0

    def key(self, path: str = "job.key", text: str = KEY, mode: int = 0o600) -> str:
        """Write a key file to /etc/harp; return its path in the job."""
        file = self.etc / "harp" / path
        file.write_text(text)
        file.chmod(mode)
        os.chown(file, self.uid, self.uid)
        return f"/etc/harp/{path}"

    def toml(self, text: str) -> Path:
        file = self.etc / "harp" / "harp.toml"
        file.write_text(text)
        file.chmod(0o644)
        return file

    def _actor(self, variables: dict[str, str]) -> Actor:
        environment = {
            "HARP_PATH": "kernel",
            "HARP_SOCKET": str(self.socket),
            "NCCL_SOCKET_IFNAME": "=lo",
            "NCCL_DEBUG": "INFO",
        }
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
        enter += ['mount --bind "$0" /etc && exec "$@"', str(self.etc)]
        if self.uid:
            enter += ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return Actor(None, environment | variables, enter)

    def is_encrypted(self, **variables: str) -> bool:
        """Initialize the plugin; tell whether its lanes are encrypted."""
        with actors(self._actor(variables)) as (actor,):
            actor.load()
            handle = base64.b64decode(actor.call("listen")[0])
        return bool(handle[HANDLE_ENCRYPTED_AT])

    def refusal(self, **variables: str) -> str:
        """Return the line with which init fails."""
        with actors(self._actor(variables)) as (actor,):
            with pytest.raises(ActorError) as failure:
                actor.load()
        first, *lines = str(failure.value).split("\n")
        assert "init: nccl" in first
        assert len(lines) == 1, lines
        return lines[0]


@pytest.fixture
def job(tmp_path: Path, settings: Settings) -> Job:
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns("harp"))
    (etc / "harp").mkdir()
    return Job(etc, settings.socket_path)


BOTH_MODES = pytest.mark.parametrize(
    "mode", ["auto", "off"], ids=["HARP_DAEMON=auto", "HARP_DAEMON=off"]
)


# --------------------------------------------------------------------------------------------------
# harpd answers.
#
@BOTH_MODES
def test_harpd_requires_encryption(start: Start, settings: Settings, job: Job, mode: str) -> None:
    start(settings=replace(settings, job="HARP_ENCRYPT=aes-256-gcm\n"))
    assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=mode)
    job.key()
    assert job.is_encrypted(HARP_DAEMON=mode)
    line = job.refusal(HARP_DAEMON=mode, HARP_ENCRYPT="off")
    assert "HARP_ENCRYPT=off, and harp.toml requires encryption" in line


@BOTH_MODES
def test_harpd_does_not_require_encryption(
    start: Start, settings: Settings, job: Job, mode: str
) -> None:
    start(settings=replace(settings, job=""))
    job.toml(REQUIRED)  # harpd, which answers, uses another file
    assert not job.is_encrypted(HARP_DAEMON=mode)
    assert not job.is_encrypted(HARP_DAEMON=mode, HARP_ENCRYPT="off")
    key = job.key("other.key")
    assert job.is_encrypted(HARP_DAEMON=mode, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key)


# --------------------------------------------------------------------------------------------------
# harpd's socket exists, but harpd does not answer.
#
def check_silent(job: Job, why: str) -> None:
    """Check all settings of HARP_ENCRYPT at once, because each job waits for harpd."""
    key = {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": job.key("other.key")}
    variables = [{}, {"HARP_ENCRYPT": "off"}, {"HARP_ENCRYPT": "auto"}]
    expected = (
        "cannot learn from harpd whether harp.toml requires encryption "
        f"(HARP_ENCRYPT=aes-256-gcm needs no answer): {job.socket}: {why}"
    )
    with ThreadPoolExecutor() as pool:
        failures = [
            pool.submit(job.refusal, HARP_DAEMON=mode, **setting)
            for mode in ("auto", "off")
            for setting in variables
        ]
        # No answer could require more than this.
        encrypted = [
            pool.submit(job.is_encrypted, HARP_DAEMON=mode, **key) for mode in ("auto", "off")
        ]
        for failure in failures:
            assert expected in failure.result()
        assert all(result.result() for result in encrypted)


@pytest.mark.sample("nothing")
@pytest.mark.parametrize("required", [False, True], ids=["nothing", "required"])
def test_harpd_is_stopped(lab: Lab, job: Job, required: bool) -> None:
    """After SIGSTOP, harpd does not answer. After SIGKILL, its socket exists without a listener."""
    with HostDaemon(lab.hosts[0]) as daemon:
        with daemon.file.open("a") as file:
            file.write(REQUIRED if required else "")
        daemon.start()
        job.socket = daemon.socket
        with stopped(daemon):
            check_silent(job, "harpd does not answer within 3 s; is it stopped?")
        check_answer(job, required)
        daemon.end(signal.SIGKILL)
        check_silent(job, "no process listens; is harpd running")


def check_answer(job: Job, required: bool) -> None:
    for mode in ("auto", "off"):
        if required:
            assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=mode)
        else:
            assert not job.is_encrypted(HARP_DAEMON=mode)


def test_the_listen_backlog_is_full(job: Job) -> None:
    with listener(job.socket, 0), contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.setblocking(False)
                sock.connect(str(job.socket))
        check_silent(job, "harpd accepts no connections; is it stopped?")


def test_the_user_has_no_access_to_the_socket(start: Start, settings: Settings, job: Job) -> None:
    start()
    job.uid = NOBODY
    settings.socket_path.chmod(0o600)
    check_silent(job, "this user has no access; harp.toml names the group that has")


def test_another_user_listens_on_the_socket(job: Job) -> None:
    """Its WELCOME is not read."""
    with listener(job.socket, 64, uid=NOBODY):
        check_silent(
            job, f"its listener is user {NOBODY}; harpd must run as root or as this user (0)"
        )


# --------------------------------------------------------------------------------------------------
# Without harpd.
#
@BOTH_MODES
def test_harp_toml_requires_encryption(job: Job, mode: str) -> None:
    job.toml(REQUIRED)
    assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=mode)
    line = job.refusal(HARP_DAEMON=mode, HARP_ENCRYPT="off")
    assert "HARP_ENCRYPT=off, and harp.toml requires encryption" in line
    assert job.is_encrypted(HARP_DAEMON=mode, HARP_KEY_FILE=job.key("other.key"))
    job.key()
    assert job.is_encrypted(HARP_DAEMON=mode)


@BOTH_MODES
def test_harp_toml_cannot_be_read(job: Job, mode: str) -> None:
    """tests/python/test_toml_scan.py tests each reason."""
    job.uid = NOBODY
    file = job.toml("[job]\nframes = 1024\n")
    assert not job.is_encrypted(HARP_DAEMON=mode)
    file.chmod(0o600)
    for setting in ({}, {"HARP_ENCRYPT": "off"}):
        line = job.refusal(HARP_DAEMON=mode, **setting)
        assert "/etc/harp/harp.toml: it cannot be opened: Permission denied" in line
    key = job.key("other.key")
    assert job.is_encrypted(HARP_DAEMON=mode, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key)


@BOTH_MODES
def test_the_key_file_of_the_host_requires_encryption(job: Job, mode: str) -> None:
    path = job.key()
    assert job.is_encrypted(HARP_DAEMON=mode)
    line = job.refusal(HARP_DAEMON=mode, HARP_ENCRYPT="off")
    assert f"HARP_ENCRYPT=off, and the key file {path} requires encryption" in line
