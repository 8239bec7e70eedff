# SPDX-License-Identifier: Apache-2.0
"""harpd without capabilities or locked memory, in the unit's sandbox, and with jobs in containers.

In each case harpd logs one line and continues with the parts that work.
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
from harpd_rig import HostDaemon, Job, Send, wait_for_go, xdp_id
from netns_tools import wait_until
from programs import finished

from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.lab import Lab

EXPOSURE_MAX = 3.7


def check_leases(daemon: HostDaemon, count: int = 1) -> None:
    with daemon.client() as client:
        for _ in range(count):
            lease_once(client, daemon.host.ifname)


def service(root_dir: Path) -> dict[str, list[str]]:
    """Return the unit's [Service] section: all values of each key."""
    values: dict[str, list[str]] = {}
    section = ""
    for line in (root_dir / "conf" / "harpd.service").read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values.setdefault(key, []).extend(value.split())
    return values


def capability_prefix(root_dir: Path) -> list[str]:
    """Return a command prefix that limits harpd to the unit's capabilities."""
    names = [
        name.removeprefix("CAP_").lower() for name in service(root_dir)["CapabilityBoundingSet"]
    ]
    bounding_set = "--bounding-set=-all," + ",".join(f"+{name}" for name in names)
    return ["setpriv", "--no-new-privs", bounding_set]


def members(analyze: str, name: str) -> set[str]:
    """Return the system calls of a filter's entry, which may be a set of sets."""
    if not name.startswith("@"):
        return {name}
    done = finished([analyze, "syscall-filter", "--no-pager", name], check=True)
    entries = [line.split("#")[0].strip() for line in done.stdout.splitlines()[1:]]
    return set().union(*(members(analyze, entry) for entry in entries if entry))


def allowed_calls(root_dir: Path, analyze: str) -> set[str]:
    allowed: set[str] = set()
    remove = False
    for entry in service(root_dir)["SystemCallFilter"]:
        # A value that begins with ~ removes its entries; each set is named once.
        remove = remove or entry.startswith("~")
        names = members(analyze, entry.removeprefix("~"))
        allowed = allowed - names if remove else allowed | names
    return allowed


def seccomp_prefix(root_dir: Path, analyze: str) -> list[str]:
    """Return a command prefix that limits harpd to the unit's system calls."""
    allowed = allowed_calls(root_dir, analyze)
    done = finished(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-xc", "/dev/null"], check=True
    )
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", done.stdout))
    numbers_allowed = ",".join(sorted(numbers[name] for name in allowed if name in numbers))
    return [sys.executable, str(Path(__file__).with_name("seccomp_run.py")), numbers_allowed]


# What the unit's mount options do: a mount namespace that receives the host's mounts, but not the
# reverse. Only run_dir is writable, and /proc hides other users' processes.
SANDBOX = """
mount --rbind "$0" "$0"
mount -t proc -o hidepid=invisible proc /proc
mount -o remount,bind,ro /
exec "$@"
"""


def sandbox_prefix(daemon: HostDaemon) -> list[str]:
    """Return a command prefix that gives harpd the unit's mount namespace."""
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-e", "-c", SANDBOX]
    return [*command, str(daemon.run_dir)]


def exec_start_pre(daemon: HostDaemon) -> None:
    arguments = ["--mount", "--config", daemon.file]
    subprocess.run(daemon.command(sys.executable, "-m", "harp.daemon", *arguments), check=True)


def test_the_unit_has_enough_privileges(root_dir: Path, lab: Lab) -> None:
    """harpd leases, reads other users' statistics, restarts, starts again and stops."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze, which expands sets of system calls")
    with HostDaemon(lab.hosts[0], metrics_port=9747) as daemon:
        exec_start_pre(daemon)
        daemon.wrapper = [
            *sandbox_prefix(daemon),
            *capability_prefix(root_dir),
            *seccomp_prefix(root_dir, analyze),
        ]
        daemon.start()
        check_leases(daemon)
        assert "harpd_pages_read 1.0" in scrape_metrics(daemon)
        with daemon.client() as client:
            lease, fds = client.lease(daemon.host.ifname)
            assert daemon.harpctl("restart").returncode == 0
            assert len(daemon.query("instances")["instances"]) == 1
            # The mount namespace ends with harpd.
            daemon.end(signal.SIGTERM)
            exec_start_pre(daemon)
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


def test_the_unit_cannot_access_memory_of_other_processes(root_dir: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze, which expands sets of system calls")
    allowed = allowed_calls(root_dir, analyze)
    assert {"read", "bpf", "recvmsg"} <= allowed
    forbidden = {"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise"}
    assert not forbidden & allowed


def test_the_exposure_of_the_unit(root_dir: Path) -> None:
    """systemd-analyze rates it from 0 to 10; 0 is best."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    unit = root_dir / "conf" / "harpd.service"
    command = [analyze, "security", "--offline=true", "--no-pager", str(unit)]
    done = finished(command)
    print(done.stdout)
    rating = re.search(r"Overall exposure level for harpd.service: (\d+\.\d)", done.stdout)
    assert rating is not None, done.stderr
    assert float(rating[1]) <= EXPOSURE_MAX


def test_systemd_accepts_the_unit(root_dir: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    text = (root_dir / "conf" / "harpd.service").read_text()
    unit = tmp_path / "harpd.service"
    unit.write_text(re.sub(r"^(Exec\w+=\+?)harpd", r"\1/bin/true", text, flags=re.M))
    done = finished([analyze, "verify", "--man=no", str(unit)])
    lines = [line for line in done.stderr.splitlines() if "harpd.service" in line]
    assert not lines, lines


def test_started_without_stdin_stdout_and_stderr(daemon: HostDaemon) -> None:
    """No other file gets descriptors 0 to 2, to which libraries and Python write."""

    def standard_files() -> list[str]:
        folder = Path("/proc", str(daemon.process.pid), "fd")
        return [str((folder / str(fd)).readlink()) for fd in range(3)]

    daemon.wrapper = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]
    daemon.start()
    assert standard_files() == ["/dev/null"] * 3
    assert daemon.harpctl("restart").returncode == 0
    assert standard_files() == ["/dev/null"] * 3
    check_leases(daemon)


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
        with pytest.raises(RefusedByDaemonError, match="RLIMIT_MEMLOCK") as failure:
            client.lease(daemon.host.ifname)
        assert failure.value.error == errno.EPERM
        assert "\n" not in failure.value.why
        assert client.query("instances") == {"instances": []}

        def is_free() -> bool:
            return bool(client.query("status")["nics"][0]["queues_free"] == 2)

        wait_until(is_free, "the release of the queue")


def test_no_capability_to_load_the_program(daemon: HostDaemon) -> None:
    daemon.wrapper = ["setpriv", "--bounding-set=-bpf,-sys_admin,-net_admin"]
    daemon.start()
    log = daemon.log_text()
    assert log.count("no BPF file system at") == 1
    assert log.count("can't be leased") == 1
    assert "Traceback" not in log
    assert f"no BPF file system in {daemon.run_dir}: " in daemon.harpctl("status").stdout
    with daemon.client() as client:
        assert client.devices[0].queues == 0
        with pytest.raises(RefusedByDaemonError, match="CAP_"):
            client.lease(daemon.host.ifname)


def scrape_metrics(daemon: HostDaemon) -> str:
    """Return /metrics, read in the host's network namespace."""

    def scrape(send: Send, _wait_fd: int) -> None:
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            send(answer.read().decode())

    with Job(scrape, uid=None, netns=daemon.host.netns) as job:
        return job.receive(60)


def test_a_job_in_a_container_leases(daemon: HostDaemon) -> None:
    """It has its own PID, IPC, mount and network namespaces. harpd knows its outer PID."""
    daemon.start()

    def work(send: Send, wait_fd: int) -> None:
        with daemon.client() as client:
            client.lease(daemon.host.ifname, label="contained")
            send(os.getpid())
            wait_for_go(wait_fd)

    with Job(work, container=True) as job:
        assert job.receive() == 1
        instance = daemon.query("instances")["instances"][0]
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        assert [instance["pid"]] == [int(child) for child in children]
        assert instance["uid"] == NOBODY
        job.go()
        assert job.join() == 0
    wait_until(lambda: not daemon.query("instances")["instances"], "the end of the lease")
