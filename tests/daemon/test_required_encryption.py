# SPDX-License-Identifier: Apache-2.0
"""Where encryption is required lanes are encrypted, or the init fails with one line.

The job is a process with the plugin, on kernel lanes over the loopback interface. Its /etc is its
own, so that /etc/harp is the test's.
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
    """A job of this user, or of `uid`, that sees `etc` as /etc."""

    etc: Path
    socket: Path
    uid: int = 0

    def key(self, path: str = "job.key", text: str = KEY, mode: int = 0o600) -> str:
        """A key file in its /etc/harp; the path as the job sees it."""
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

    def encrypts(self, **variables: str) -> bool:
        """Does it, after an init that succeeds?"""
        with actors(self._actor(variables)) as (actor,):
            actor.load()
            handle = base64.b64decode(actor.call("listen")[0])
        return bool(handle[HANDLE_ENCRYPTED_AT])

    def refusal(self, **variables: str) -> str:
        """The one line with which its init fails."""
        with actors(self._actor(variables)) as (actor,):
            with pytest.raises(ActorError) as failed:
                actor.load()
        first, *lines = str(failed.value).split("\n")
        assert "init: nccl" in first
        assert len(lines) == 1, lines
        return lines[0]


@pytest.fixture
def job(tmp_path: Path, settings: Settings) -> Job:
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns("harp"))
    (etc / "harp").mkdir()
    return Job(etc, settings.socket_path)


BOTH = pytest.mark.parametrize(
    "asked", ["auto", "off"], ids=["HARP_DAEMON=auto", "HARP_DAEMON=off"]
)


# --------------------------------------------------------------------------------------------------
# harpd answers.
#
@BOTH
def test_harpd_requires_it(start: Start, settings: Settings, job: Job, asked: str) -> None:
    start(given=replace(settings, job="HARP_ENCRYPT=aes-256-gcm\n"))
    assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=asked)
    job.key()
    assert job.encrypts(HARP_DAEMON=asked)
    line = job.refusal(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    assert "HARP_ENCRYPT=off, and harp.toml requires encryption" in line


@BOTH
def test_harpd_requires_nothing(start: Start, settings: Settings, job: Job, asked: str) -> None:
    start(given=replace(settings, job=""))
    job.toml(REQUIRED)  # not the file of the harpd that answers
    assert not job.encrypts(HARP_DAEMON=asked)
    assert not job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    key = job.key("other.key")
    assert job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key)


# --------------------------------------------------------------------------------------------------
# harpd is there and does not answer.
#
def check_silent(job: Job, why: str) -> None:
    """With and without a setting in the environment. All at once: each of them waits for harpd."""
    key = {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": job.key("other.key")}
    variables = [{}, {"HARP_ENCRYPT": "off"}, {"HARP_ENCRYPT": "auto"}]
    expected = (
        "cannot learn from harpd whether harp.toml requires encryption "
        f"(HARP_ENCRYPT=aes-256-gcm needs no answer): {job.socket}: {why}"
    )
    with ThreadPoolExecutor() as pool:
        lines = [
            pool.submit(job.refusal, HARP_DAEMON=asked, **each)
            for asked in ("auto", "off")
            for each in variables
        ]
        # No answer could require more than this.
        encrypted = [
            pool.submit(job.encrypts, HARP_DAEMON=asked, **key) for asked in ("auto", "off")
        ]
        for line in lines:
            assert expected in line.result()
        assert all(each.result() for each in encrypted)


@pytest.mark.sample("nothing")
@pytest.mark.parametrize("required", [False, True], ids=["nothing", "required"])
def test_harpd_is_stopped(lab: Lab, job: Job, required: bool) -> None:
    """SIGSTOP: it answers nothing. SIGKILL: its socket is there, and its settings are not known."""
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
    for asked in ("auto", "off"):
        if required:
            assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=asked)
        else:
            assert not job.encrypts(HARP_DAEMON=asked)


def test_the_queue_of_callers_is_full(job: Job) -> None:
    with listener(job.socket, 0), contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            while True:
                caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                caller.setblocking(False)
                caller.connect(str(job.socket))
        check_silent(job, "harpd accepts no connections; is it stopped?")


def test_the_socket_is_not_for_this_user(start: Start, settings: Settings, job: Job) -> None:
    start()
    job.uid = NOBODY
    settings.socket_path.chmod(0o600)
    check_silent(job, "this user has no access; harp.toml names the group that has")


def test_another_user_listens_there(job: Job) -> None:
    """Its WELCOME is not read."""
    with listener(job.socket, 64, uid=NOBODY):
        check_silent(
            job, f"its listener is user {NOBODY}; harpd must run as root or as this user (0)"
        )


# --------------------------------------------------------------------------------------------------
# Without harpd.
#
@BOTH
def test_harp_toml_requires_it(job: Job, asked: str) -> None:
    job.toml(REQUIRED)
    assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=asked)
    line = job.refusal(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    assert "HARP_ENCRYPT=off, and harp.toml requires encryption" in line
    assert job.encrypts(HARP_DAEMON=asked, HARP_KEY_FILE=job.key("other.key"))
    job.key()
    assert job.encrypts(HARP_DAEMON=asked)


@BOTH
def test_harp_toml_can_not_be_read(job: Job, asked: str) -> None:
    """tests/python/test_toml_scan.py has each reason."""
    job.uid = NOBODY
    file = job.toml("[job]\nframes = 1024\n")
    assert not job.encrypts(HARP_DAEMON=asked)
    file.chmod(0o600)
    for environ in ({}, {"HARP_ENCRYPT": "off"}):
        line = job.refusal(HARP_DAEMON=asked, **environ)
        assert "/etc/harp/harp.toml: it cannot be opened: Permission denied" in line
    key = job.key("other.key")
    assert job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key)


@BOTH
def test_the_host_s_key_file_requires_it(job: Job, asked: str) -> None:
    path = job.key()
    assert job.encrypts(HARP_DAEMON=asked)
    line = job.refusal(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    assert f"HARP_ENCRYPT=off, and the key file {path} requires encryption" in line
