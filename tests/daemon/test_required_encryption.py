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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from actor import Actor, ActorError, actors
from daemon_rig import NOBODY, Running
from harpd_rig import HostDaemon

from harp import _paths
from harp.daemon.settings import Settings
from harp.lab import Lab, LabOptions

KEY = "01" * 32 + "\n"
REQUIRED = '[lanes]\nencrypt = "aes-256-gcm"\n'
HANDLE_FLAGS_AT, HANDLE_SEALED = 11, 4
pytestmark = pytest.mark.usefixtures("need_root")


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
            actor.call("load", path=str(_paths.plugin()))
            handle = base64.b64decode(actor.call("listen")[0])
        return bool(handle[HANDLE_FLAGS_AT] & HANDLE_SEALED)

    def refusal(self, **variables: str) -> str:
        """The one line with which its init fails."""
        with actors(self._actor(variables)) as (actor,):
            with pytest.raises(ActorError) as failed:
                actor.call("load", path=str(_paths.plugin()))
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


Start = Callable[..., Running]


def with_settings(settings: Settings, **variables: str) -> Settings:
    """Return harpd's messages about a harp.toml."""
    return replace(settings, job="".join(f"{name}={text}\n" for name, text in variables.items()))


BOTH = pytest.mark.parametrize(
    "asked", ["auto", "off"], ids=["HARP_DAEMON=auto", "HARP_DAEMON=off"]
)


# --------------------------------------------------------------------------------------------------
# harpd answers.
#
@BOTH
def test_harpd_requires_it(start: Start, settings: Settings, job: Job, asked: str) -> None:
    key = job.key("other.key")
    start(given=with_settings(settings, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key))
    assert job.encrypts(HARP_DAEMON=asked)
    assert job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="auto")
    line = job.refusal(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    assert "HARP_ENCRYPT=off, and harp.toml requires encryption" in line


@BOTH
def test_harpd_requires_it_and_there_is_no_key(
    start: Start, settings: Settings, job: Job, asked: str
) -> None:
    start(given=with_settings(settings, HARP_ENCRYPT="aes-256-gcm"))
    assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=asked)
    job.key()
    assert job.encrypts(HARP_DAEMON=asked)


@BOTH
def test_harpd_requires_nothing(start: Start, settings: Settings, job: Job, asked: str) -> None:
    start(given=with_settings(settings))
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
def test_harpd_is_stopped(job: Job, required: bool) -> None:
    """SIGSTOP: it answers nothing. SIGKILL: its socket is there, and its settings are not known."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(LabOptions()))
        daemon = HostDaemon(lab.hosts[0])
        stack.callback(daemon.close)
        with daemon.file.open("a") as file:
            file.write(REQUIRED if required else "")
        daemon.start()
        job.socket = daemon.socket
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        stack.callback(daemon.process.send_signal, signal.SIGCONT)
        check_silent(job, "harpd does not answer within 3 s; is it stopped?")
        daemon.process.send_signal(signal.SIGCONT)
        check_answer(job, required)
        daemon.end(signal.SIGKILL)
        check_silent(job, "no process listens; is harpd running")


def check_answer(job: Job, required: bool) -> None:
    for asked in ("auto", "off"):
        if required:
            assert "there is no key: needs HARP_KEY_FILE" in job.refusal(HARP_DAEMON=asked)
        else:
            assert not job.encrypts(HARP_DAEMON=asked)


@contextlib.contextmanager
def listener(path: Path, room: int, uid: int = 0) -> Iterator[socket.socket]:
    """A socket at harpd's path that accepts no connection."""
    path.parent.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        sock.bind(str(path))
        path.chmod(0o666)
        os.seteuid(uid)  # SO_PEERCRED names the user that listened
        try:
            sock.listen(room)
        finally:
            os.seteuid(0)
        yield sock


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
    job.uid = NOBODY
    file = job.toml("")
    assert not job.encrypts(HARP_DAEMON=asked)
    for spoil, why in (
        (lambda: file.chmod(0o600), "it cannot be opened: Permission denied"),
        (lambda: file.chmod(0o664), "others may write it (mode 664): chmod go-w"),
        (lambda: os.chown(file, 60001, 60001), "it belongs to user 60001"),
    ):
        job.toml("")
        spoil()
        for environ in ({}, {"HARP_ENCRYPT": "off"}):
            line = job.refusal(HARP_DAEMON=asked, **environ)
            assert f"/etc/harp/harp.toml: {why}" in line
        os.chown(file, 0, 0)
    key = job.key("other.key")
    assert job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="aes-256-gcm", HARP_KEY_FILE=key)


@BOTH
def test_harp_toml_requires_nothing(job: Job, asked: str) -> None:
    job.toml("[job]\nframes = 1024\n")
    assert not job.encrypts(HARP_DAEMON=asked)
    assert not job.encrypts(HARP_DAEMON=asked, HARP_ENCRYPT="off")


# --------------------------------------------------------------------------------------------------
# The host's key file.
#
@BOTH
def test_a_key_file_requires_it(job: Job, asked: str) -> None:
    path = job.key()
    assert job.encrypts(HARP_DAEMON=asked)
    line = job.refusal(HARP_DAEMON=asked, HARP_ENCRYPT="off")
    assert f"HARP_ENCRYPT=off, and the key file {path} requires encryption" in line


def test_a_key_file_that_can_not_be_used(job: Job) -> None:
    path = job.key(text="00" * 32 + "\n")
    assert f"key file {path}: it holds a key of zeros" in job.refusal()
    job.key(mode=0o640)
    assert "is open to its group or to others" in job.refusal()
    job.key()
    job.uid = NOBODY
    assert f"key file {path}: it cannot be opened: Permission denied" in job.refusal()
    (job.etc / "harp").chmod(0o700)  # its existence can't be checked either
    assert "/etc/harp/harp.toml: it cannot be opened: Permission denied" in job.refusal()
    key = "/etc/harp-other.key"
    job.key(f"..{key.removeprefix('/etc')}")
    variables = {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": key}
    assert job.encrypts(**variables)


def test_nothing_requires_it(job: Job) -> None:
    assert not job.encrypts()
    assert not job.encrypts(HARP_ENCRYPT="off")
    assert "there is no key" in job.refusal(HARP_ENCRYPT="aes-256-gcm")


# --------------------------------------------------------------------------------------------------
# harpd sends more than it may.
#
def test_no_library_comes_from_harpd(start: Start, settings: Settings, job: Job) -> None:
    start(
        given=with_settings(
            settings, HARP_LIBDIR="/tmp/evil", HARP_DPDK_ARGS="-d /tmp/evil.so", HARP_ECN="off"
        )
    )
    with actors(job._actor({})) as (actor,):
        actor.call("load", path=str(_paths.plugin()))
        log = "\n".join(actor.call("log"))
    assert "harp.toml of harpd: HARP_LIBDIR is not known as a key of harp.toml, and ignored" in log
    assert "harp.toml of harpd: HARP_DPDK_ARGS is not known" in log
    assert "HARP_ECN" not in log
