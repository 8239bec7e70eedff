# SPDX-License-Identifier: Apache-2.0
"""`harpctl start` fails with one line that names the remedy, a stable exit code, and no
leftovers. Signals, and operators that start, stop and restart at the same time."""

import contextlib
import errno
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_rig import bpffs_mounts
from daemon_rig import lease_once
from harpctl import COMMAND
from harpd_rig import HostDaemon, xdp_id
from netns_tools import wait_until
from programs import finished

from harp import procfs
from harp.errors import Exit
from harp.lab import Lab

FAILURE, MISSING, RUNNING = 1, 4, 6


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.fixture
def daemon(lab: Lab) -> Iterator[HostDaemon]:
    """harpd, not started yet. File systems that the test mounts on run_dir are unmounted."""
    daemon = HostDaemon(lab.hosts[0])
    yield daemon
    daemon.harpctl("stop", "--force")
    mounts = Path("/proc/self/mountinfo").read_text()
    if f" {daemon.run_dir} " in mounts:
        subprocess.run(["umount", "-R", "-l", str(daemon.run_dir)], check=True)
    daemon.close()


def mount_tmpfs(daemon: HostDaemon, options: str = "size=16k") -> None:
    """Mount a file system at run_dir."""
    daemon.run_dir.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=755", "harp-test", daemon.run_dir]
    subprocess.run(list(map(str, command)), check=True)


def full_disk(daemon: HostDaemon) -> None:
    mount_tmpfs(daemon)
    with (daemon.run_dir / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(1024)) == 1024:
                pass


def no_inodes(daemon: HostDaemon) -> None:
    mount_tmpfs(daemon, "nr_inodes=1")


def read_only(daemon: HostDaemon) -> None:
    mount_tmpfs(daemon, "ro")


def file_for_directory(daemon: HostDaemon) -> None:
    daemon.run_dir.write_text("")


def file_for_socket(daemon: HostDaemon) -> None:
    daemon.run_dir.mkdir()
    daemon.socket.write_text("precious")


def link_for_socket(daemon: HostDaemon) -> None:
    daemon.run_dir.mkdir()
    daemon.socket.symlink_to("/etc/passwd")


def unknown_key(daemon: HostDaemon) -> None:
    daemon.configure("prot_rest_ms = 1")


def no_file(daemon: HostDaemon) -> None:
    daemon.file.unlink()


def no_socket_directory(daemon: HostDaemon) -> None:
    daemon.configure(f'socket = "{daemon.folder}/absent/s"')


def no_group(daemon: HostDaemon) -> None:
    daemon.configure('socket_group = "nosuchgroup"')


TROUBLES: dict[Callable[[HostDaemon], None], tuple[int, str]] = {
    no_inodes: (FAILURE, "No space left on device"),
    read_only: (FAILURE, "can't be written (read-only?)"),
    file_for_directory: (FAILURE, "can't be made: File exists; set run_dir"),
    file_for_socket: (FAILURE, "exists and is not a socket; remove it"),
    link_for_socket: (FAILURE, "exists and is not a socket; remove it"),
    unknown_key: (FAILURE, "port_rest_ms"),
    no_file: (MISSING, "harp.toml"),
    no_socket_directory: (FAILURE, "absent/s: No such file or directory; make its directory"),
    no_group: (FAILURE, "there is no group nosuchgroup"),
}


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_a_start_fails_with_one_line(
    daemon: HostDaemon, trouble: Callable[[HostDaemon], None]
) -> None:
    code, message = TROUBLES[trouble]
    trouble(daemon)
    done = daemon.harpctl("start")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("harpctl: ")
    assert message in line
    assert xdp_id(daemon.host) == 0
    assert bpffs_mounts(daemon.folder) == []
    reserved = daemon.host.run("sysctl", "-n", "net.ipv4.ip_local_reserved_ports")
    assert reserved.strip() == ""


def test_other_users_cannot_lock_run_dir(daemon: HostDaemon) -> None:
    """harpd would take their lock for that of another harpd."""
    daemon.run_dir.mkdir(mode=0o755)
    assert daemon.harpctl("start").returncode == 0
    lock = ["setpriv", "--reuid=nobody", "--clear-groups", "flock", "--nonblock", daemon.run_dir]
    done = finished([*lock, "true"])
    assert "Permission denied" in done.stderr


OCCUPY = """
import os, socket, subprocess, sys
held = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(500)]
for number, sock in enumerate(held):
    sock.bind(f"\\0harpctl-{os.getpid() + number}")
sys.exit(subprocess.call(sys.argv[1:]))
"""


def test_start_uses_no_name_that_others_can_take(daemon: HostDaemon) -> None:
    command = daemon.command(sys.executable, "-c", OCCUPY, *COMMAND, "start", "--file", daemon.file)
    done = finished(command)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_harpd_without_its_socket_is_named(daemon: HostDaemon) -> None:
    daemon.start()
    daemon.socket.unlink()
    done = daemon.harpctl("stop")
    assert done.returncode == RUNNING
    assert "`lslocks`" in done.stderr
    locks = subprocess.run(["lslocks", "--noheadings"], capture_output=True, text=True, check=True)
    (line,) = [line for line in locks.stdout.splitlines() if line.endswith(str(daemon.run_dir))]
    assert line.split()[1] == str(daemon.process.pid)
    assert daemon.end(signal.SIGTERM) == 0


def test_a_file_at_the_socket_path_is_untouched(daemon: HostDaemon) -> None:
    file_for_socket(daemon)
    assert daemon.harpctl("start").returncode == FAILURE
    assert daemon.socket.read_text() == "precious"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "seq"])
def test_the_socket_of_another_program_is_left_alone(
    daemon: HostDaemon, kind: socket.SocketKind
) -> None:
    daemon.run_dir.mkdir()
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(daemon.socket))
        other.listen(1)
        with subprocess.Popen(
            daemon.command(sys.executable, "-m", "harp.daemon", "--config", daemon.file),
            stderr=subprocess.PIPE,
            text=True,
        ) as harpd:
            _, err = harpd.communicate(timeout=60)
        assert harpd.returncode == RUNNING
        (line,) = [line for line in err.splitlines() if "ERROR" in line]
        assert f"another program listens on {daemon.socket}" in line
    daemon.socket.unlink()


def files(daemon: HostDaemon) -> list[str]:
    return sorted(path.name for path in daemon.run_dir.iterdir())


def test_start_and_restart_without_space_for_the_log(daemon: HostDaemon) -> None:
    full_disk(daemon)
    for command in ("start", "restart", "stop"):
        done = daemon.harpctl(command)
        assert (done.returncode, done.stderr) == (0, "")
    assert files(daemon) == ["filler", "harpd.log"]


def test_a_full_disk_is_reported(daemon: HostDaemon) -> None:
    full_disk(daemon)
    daemon.start()
    status = daemon.harpctl("status").stdout
    assert f"{daemon.run_dir}/state.json can't be written: No space left on device;" in status
    refused = "not changed, because the change can't be recorded: No space left on device\n"
    assert refused in daemon.log.read_text()


def test_an_absent_nic_is_reported(daemon: HostDaemon) -> None:
    daemon.file.write_text(daemon.file.read_text().replace(daemon.host.ifname, "eth77"))
    done = daemon.harpctl("start")
    assert done.returncode == 0
    assert done.stderr == "harpctl: eth77 can't be leased: no such interface\n"
    assert "\neth77 can't be leased: no such interface\n" in daemon.harpctl("status").stdout
    assert daemon.harpctl("stop").returncode == 0


@pytest.mark.parametrize("inodes", [4, 6])
def test_start_and_stop_without_inodes_for_the_state(daemon: HostDaemon, inodes: int) -> None:
    mount_tmpfs(daemon, f"nr_inodes={inodes}")
    for command in ("start", "stop"):
        done = daemon.harpctl(command)
        assert (done.returncode, done.stderr) == (0, "")
    assert files(daemon) == ["harpd.log"]
    assert xdp_id(daemon.host) == 0
    assert bpffs_mounts(daemon.folder) == []


def test_files_that_cannot_be_removed_are_reported(daemon: HostDaemon) -> None:
    mount_tmpfs(daemon)
    daemon.start()  # its log is in another directory
    remount = ["mount", "-o", "remount", str(daemon.run_dir)]
    subprocess.run([*remount, "-r"], check=True)
    done = daemon.harpctl("stop")
    assert done.returncode == FAILURE
    assert done.stderr.startswith(f"harpctl: harpd has ended and left {daemon.socket} behind")
    assert xdp_id(daemon.host) == 0
    subprocess.run([*remount, "-w"], check=True)
    done = daemon.harpctl("stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert files(daemon) == []


def test_missing_huge_pages_are_logged_once(daemon: HostDaemon) -> None:
    """In a container without huge pages, harpd serves and logs one warning."""
    daemon.configure("huge_pages = 4096")
    pages = "/sys/kernel/mm/hugepages /sys/devices/system/node"
    hide = f"for each in {pages}; do mount -t tmpfs -o ro none $each; done"
    daemon.wrapper = ["unshare", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh"]
    daemon.start()
    lines = [line for line in daemon.log_text().splitlines() if "huge" in line]
    assert len(lines) == 1, daemon.log_text()
    assert "WARNING" in lines[0]
    with daemon.client() as client:
        lease_once(client, daemon.host.ifname)


# --------------------------------------------------------------------------------------------------
# Signals and operators.
#
def start_harpctl(daemon: HostDaemon, *arguments: str) -> subprocess.Popen[str]:
    """Start harpctl without waiting for its end."""
    return subprocess.Popen(
        daemon.harpctl_command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def exit_codes(*processes: subprocess.Popen[str]) -> list[int]:
    """Wait for these processes; return their exit codes. Each prints at most two lines."""
    for process in processes:
        output = process.communicate(timeout=60)[0]
        assert "Traceback" not in output
        assert output.count("\n") <= 2, output
        assert process.returncode in (Exit.OK, Exit.RUNNING, Exit.NOT_RUNNING), output
    return [process.returncode for process in processes]


def is_gone(daemon: HostDaemon) -> bool:
    """Tell whether no harpd listens."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(daemon.socket))
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ECONNREFUSED)
    return False


def is_protected(pid: int, number: signal.Signals) -> bool:
    """Tell whether the process blocks or handles a signal."""
    masks = (int(procfs.status_field(pid, name) or "0", 16) for name in ("SigBlk", "SigCgt"))
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_signals_during_start_restart_and_stop(daemon: HostDaemon) -> None:
    daemon.start(wait=False)
    process, done = daemon.process, threading.Event()
    wait_until(lambda: is_protected(process.pid, signal.SIGHUP), "harpd's handler of SIGHUP")

    def send_hangups() -> None:
        while not done.is_set():
            process.send_signal(signal.SIGHUP)
            done.wait(2)  # harpd serves between two restarts

    thread = threading.Thread(target=send_hangups)
    thread.start()
    try:
        wait_until(lambda: not is_gone(daemon), "harpd's socket")
        assert exit_codes(start_harpctl(daemon, "restart")) == [Exit.OK]
        assert daemon.query("status")["pid"] == process.pid
        for _ in range(20):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        done.set()
        thread.join()
    assert list(daemon.run_dir.iterdir()) == []
    assert xdp_id(daemon.host) == 0


def test_concurrent_harpctl_commands_leave_one_harpd(daemon: HostDaemon) -> None:
    """Of five starts one succeeds. Concurrent stops and restarts leave one harpd or none."""
    starts = exit_codes(*(start_harpctl(daemon, "start") for _ in range(5)))
    assert starts.count(Exit.OK) == 1
    assert set(starts) == {Exit.OK, Exit.RUNNING}
    pid = daemon.query("status")["pid"]
    assert exit_codes(start_harpctl(daemon, "restart"))[0] == Exit.OK
    assert daemon.query("status")["pid"] == pid
    codes = exit_codes(*(start_harpctl(daemon, command) for command in ("stop", "restart") * 3))
    assert Exit.OK in codes
    if not is_gone(daemon):
        exit_codes(start_harpctl(daemon, "stop"))
    wait_until(lambda: is_gone(daemon), "the end of harpd")
    wait_until(lambda: xdp_id(daemon.host) == 0, "the removal of the XDP program")
    assert not (daemon.run_dir / "state.json").exists()
