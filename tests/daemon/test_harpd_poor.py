# SPDX-License-Identifier: Apache-2.0
"""harpd without capabilities or locked memory, in the unit's sandbox, and with jobs in containers.

Each case logs one clear line, and harpd continues with the parts that still work.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from daemon_rig import NOBODY, lease_once
from harpd_rig import HostDaemon, Job, Send, paused, xdp_id
from netns_tools import wait_until
from programs import finished

from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.lab import Lab

EXPOSURE_MAX = 3.7


def leases(daemon: HostDaemon, count: int = 1) -> None:
    """It gives leases, and takes them back."""
    with daemon.client() as client:
        for _ in range(count):
            lease_once(client, daemon.host.ifname)


def service(root_dir: Path) -> dict[str, list[str]]:
    """The unit's [Service], each key with all its values."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (root_dir / "conf" / "harpd.service").read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).extend(value.split())
    return found


def bounded(root_dir: Path) -> list[str]:
    """A command in front of harpd that leaves it the unit's capabilities."""
    kept = [
        name.removeprefix("CAP_").lower() for name in service(root_dir)["CapabilityBoundingSet"]
    ]
    bounding_set = "--bounding-set=-all," + ",".join(f"+{name}" for name in kept)
    return ["setpriv", "--no-new-privs", bounding_set]


def members(analyze: str, name: str) -> set[str]:
    """Return the system calls of a filter's entry, which may be a set of sets."""
    if not name.startswith("@"):
        return {name}
    done = finished([analyze, "syscall-filter", "--no-pager", name], check=True)
    words = [line.split("#")[0].strip() for line in done.stdout.splitlines()[1:]]
    return set().union(*(members(analyze, word) for word in words if word))


def allowed_calls(root_dir: Path, analyze: str) -> set[str]:
    """The system calls that the unit's filter allows."""
    allowed: set[str] = set()
    remove = False
    for word in service(root_dir)["SystemCallFilter"]:
        # A value that begins with ~ takes its words away; each set here is named once.
        remove = remove or word.startswith("~")
        names = members(analyze, word.removeprefix("~"))
        allowed = allowed - names if remove else allowed | names
    return allowed


def filtered(root_dir: Path, analyze: str) -> list[str]:
    """A command in front of harpd that leaves it the unit's system calls."""
    allowed = allowed_calls(root_dir, analyze)
    found = finished(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-xc", "/dev/null"], check=True
    )
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", found.stdout))
    chosen = ",".join(sorted(numbers[name] for name in allowed if name in numbers))
    return [sys.executable, str(Path(__file__).with_name("filtered.py")), chosen]


# What the unit's mount options do: a mount namespace that receives the host's mounts and gives none
# back. Only run_dir can be written there, and /proc hides other users' processes.
SANDBOX = """
mount --rbind "$0" "$0"
mount -t proc -o hidepid=invisible proc /proc
mount -o remount,bind,ro /
exec "$@"
"""


def sandboxed(daemon: HostDaemon) -> list[str]:
    """A command in front of harpd that gives it the unit's mount namespace."""
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-e", "-c", SANDBOX]
    return [*command, str(daemon.run_dir)]


def mount_before(daemon: HostDaemon) -> None:
    """The unit's ExecStartPre=."""
    arguments = ["--mount", "--config", daemon.file]
    subprocess.run(daemon.command(sys.executable, "-m", "harp.daemon", *arguments), check=True)


def test_the_unit_s_privileges_are_enough(root_dir: Path, lab: Lab) -> None:
    """For a whole life: leases, statistics of other users, a restart, a new start, an end."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here, which knows sets of system calls")
    with HostDaemon(lab.hosts[0], metrics_port=9747) as daemon:
        mount_before(daemon)
        daemon.wrapper = [
            *sandboxed(daemon), *bounded(root_dir), *filtered(root_dir, analyze)
        ]  # fmt: skip
        daemon.start()
        leases(daemon)
        assert "harpd_pages_read 1.0" in scraped(daemon)
        assert "instances" in daemon.query("stats")
        with daemon.client() as client:
            lease, fds = client.lease(daemon.host.ifname)
            assert daemon.harpctl("restart").returncode == 0
            assert len(daemon.query("instances")["instances"]) == 1
            # Its mount namespace ends with it.
            daemon.end(signal.SIGTERM)
            mount_before(daemon)
            daemon.start()
            assert len(daemon.query("instances")["instances"]) == 1
        assert xdp_id(daemon.host)
        with daemon.client() as client:
            client.release(lease.lease_id)
        close_all(fds)
        assert daemon.query("stop")["stopping"]
        assert daemon.process.wait(60) == 0
        assert xdp_id(daemon.host) == 0
        assert "WARNING" not in daemon.log_text()
        assert "ERROR" not in daemon.log_text()


def test_the_unit_writes_no_other_process_s_memory(root_dir: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here, which knows sets of system calls")
    allowed = allowed_calls(root_dir, analyze)
    assert {"read", "bpf", "recvmsg"} <= allowed
    other = {"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise"}
    assert not other & allowed


def test_the_unit_s_exposure(root_dir: Path) -> None:
    """As systemd-analyze rates it, 0 to 10."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    unit = root_dir / "conf" / "harpd.service"
    command = [analyze, "security", "--offline=true", "--no-pager", str(unit)]
    done = finished(command)
    print(done.stdout)
    rated = re.search(r"Overall exposure level for harpd.service: (\d+\.\d)", done.stdout)
    assert rated is not None, done.stderr
    assert float(rated[1]) <= EXPOSURE_MAX


def test_systemd_reads_the_unit(root_dir: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    text = (root_dir / "conf" / "harpd.service").read_text()
    unit = tmp_path / "harpd.service"
    unit.write_text(re.sub(r"^(Exec\w+=\+?)harpd", r"\1/bin/true", text, flags=re.M))
    done = finished([analyze, "verify", "--man=no", str(unit)])
    lines = [line for line in done.stderr.splitlines() if "harpd.service" in line]
    assert not lines, lines


def test_started_without_stdin_stdout_and_stderr(daemon: HostDaemon) -> None:
    """No other descriptor gets their numbers, to which libraries and Python write."""

    def standard() -> list[str]:
        folder = Path("/proc", str(daemon.process.pid), "fd")
        return [str((folder / str(fd)).readlink()) for fd in range(3)]

    daemon.wrapper = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]
    daemon.start()
    assert standard() == ["/dev/null"] * 3
    assert daemon.harpctl("restart").returncode == 0
    assert standard() == ["/dev/null"] * 3
    leases(daemon)


def test_too_few_descriptors_are_an_error_at_the_start(daemon: HostDaemon) -> None:
    """With fewer, harpd would start and then fail at each request, `harpctl stop` among them."""
    daemon.wrapper = ["prlimit", "--nofile=59:59"]
    process = daemon.start(wait=False).process
    assert process is not None
    assert process.wait(30) == 1
    assert "may open 59 files and needs 60: raise the limit (ulimit -Hn" in daemon.log_text()


def test_64_kib_of_locked_memory(daemon: HostDaemon) -> None:
    daemon.wrapper = ["prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock"]
    daemon.start()
    with daemon.client() as client:
        with pytest.raises(RefusedByDaemonError, match="RLIMIT_MEMLOCK") as caught:
            client.lease(daemon.host.ifname)
        assert caught.value.error == errno.EPERM
        assert "\n" not in caught.value.why
        assert client.query("instances") == {"instances": []}

        def free() -> bool:
            return bool(client.query("status")["nics"][0]["queues_free"] == 2)

        wait_until(free, "the queue of the lease that could not be")


def test_no_capability_to_load_the_program(daemon: HostDaemon) -> None:
    daemon.wrapper = ["setpriv", "--bounding-set=-bpf,-sys_admin,-net_admin"]
    daemon.start()
    words = daemon.log_text()
    assert words.count("no BPF file system at") == 1
    assert words.count("can't be leased") == 1
    assert "Traceback" not in words
    with daemon.client() as client:
        assert client.devices[0].queues == 0
        with pytest.raises(RefusedByDaemonError, match="CAP_"):
            client.lease(daemon.host.ifname)


def scraped(daemon: HostDaemon) -> str:
    """/metrics, from the host's network namespace."""

    def scrape(send: Send, _wait_fd: int) -> None:
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            send(answer.read().decode())

    with Job(scrape, uid=None, netns=daemon.host.netns) as job:
        return job.receive(60)


def test_harpd_runs_in_a_container(daemon: HostDaemon) -> None:
    """With PID, IPC, mount and network namespaces; harpd identifies it by its outer number."""
    daemon.start()

    def work(send: Send, wait_fd: int) -> None:
        with daemon.client() as client:
            client.lease(daemon.host.ifname, label="contained")
            send(os.getpid())
            paused(wait_fd)

    with Job(work, container=True) as job:
        assert job.receive() == 1
        found = daemon.query("instances")["instances"][0]
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        assert [found["pid"]] == [int(child) for child in children]
        assert found["uid"] == NOBODY
        job.go()
        assert job.join() == 0
    wait_until(lambda: not daemon.query("instances")["instances"], "the lease's end")
