# SPDX-License-Identifier: Apache-2.0
"""A real harpd on a lab host, and jobs of user nobody that lease from it."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from ctypes import CDLL, create_string_buffer, get_errno
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

import pytest
from daemon_rig import NOBODY, close_inherited
from harpctl import COMMAND
from lease_client import LeaseClient
from programs import Done, finished

from harp.closing import Closing
from harp.daemon import rundir
from harp.lab import Host

READY_S = 30
CLONE_NEWNET = 0x40000000
PR_CAPBSET_DROP, CAP_NET_ADMIN = 24, 12
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
_libc = CDLL(None, use_errno=True)

Send = Callable[[Any], None]
Work = Callable[[Send, int], None]  # a Job's function: gets send() and the descriptor of go()

TOML = """
[daemon]
run_dir = "{folder}"
users = ["nobody"]
allow_net_admin_containers = {net_admin}
{daemon}
[metrics]
port = {metrics_port}
[[nic]]
ifname = "{ifname}"
xdp_mode = "generic"
{nic}
"""


def enter(netns: str) -> None:
    """Move this process into a network namespace; its other namespaces stay."""
    with Path("/run/netns", netns).open("rb") as entry:
        if _libc.setns(entry.fileno(), CLONE_NEWNET) != 0:
            raise OSError(get_errno(), f"setns to {netns}")


def drop_net_admin() -> None:
    """Remove CAP_NET_ADMIN from all capability sets of this thread, irreversibly."""
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    sets = create_string_buffer(24)
    if _libc.prctl(PR_CAPBSET_DROP, CAP_NET_ADMIN, 0, 0, 0) or _libc.capget(header, sets):
        raise OSError(get_errno(), "dropping CAP_NET_ADMIN")
    low = [number & ~(1 << CAP_NET_ADMIN) for number in struct.unpack("=6I", sets.raw)[:3]]
    if _libc.capset(header, struct.pack("=6I", *low, *struct.unpack("=6I", sets.raw)[3:])):
        raise OSError(get_errno(), "dropping CAP_NET_ADMIN")


class HostDaemon(Closing):
    """harpd in a host's network namespace, with its own directory.

    net_admin: allow_net_admin_containers. The test's own process can lease only with it, because it
    is root's and in another network namespace.
    """

    def __init__(
        self,
        host: Host,
        daemon: str = "",
        nic: str = "",
        metrics_port: int = 0,
        net_admin: bool = True,
    ) -> None:
        self.host = host
        self.metrics_port = metrics_port
        self.net_admin = net_admin
        # A command prefix that limits harpd's capabilities or memory.
        self.wrapper: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix=f"harp-test-{os.getpid()}-"))
        self.folder.chmod(0o755)
        self.run_dir = self.folder / "run"
        self.file = self.folder / "harp.toml"
        self.log = self.folder / "log"
        self.configure(daemon, nic)
        self.process: Any = None  # until start()
        self.socket = self.run_dir / "harpd.sock"

    def configure(self, daemon: str = "", nic: str = "") -> None:
        self.file.write_text(
            TOML.format(
                folder=self.run_dir,
                net_admin=str(self.net_admin).lower(),
                daemon=daemon,
                metrics_port=self.metrics_port,
                ifname=self.host.ifname,
                nic=nic,
            )
        )

    def command(self, *command: str | Path) -> list[str]:
        """Return a command in the host's network namespace. It keeps our mounts, so pins stay."""
        return ["nsenter", f"--net=/run/netns/{self.host.netns}", *map(str, command)]

    def harpctl_command(self, *arguments: str) -> list[str]:
        return self.command(*COMMAND, *arguments, "--file", self.file)

    def harpctl(self, *arguments: str, **env: str) -> Done:
        """Run harpctl; it never prints a traceback."""
        done = finished(self.harpctl_command(*arguments), timeout=90, env=os.environ | env)
        assert "Traceback" not in done.stderr
        return done

    def start(self, wait: bool = True) -> Self:
        """Start harpd and (wait) wait until it is ready."""
        notify_path = self.folder / "notify"
        notify_path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(notify_path))
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command(
                        *self.wrapper, sys.executable, "-m", "harp.daemon", "--config", self.file
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | {"NOTIFY_SOCKET": str(notify_path)},
                )
            if wait:
                self._wait_ready(ready)
        return self

    def _wait_ready(self, ready: socket.socket) -> None:
        pidfd = os.pidfd_open(self.process.pid)
        try:
            readable = select.select([ready, pidfd], [], [], READY_S)[0]
            if ready not in readable or b"READY=1" not in ready.recv(4096):
                pytest.fail(f"harpd is not ready: {self.log_text()}")
        finally:
            os.close(pidfd)

    def log_text(self) -> str:
        return self.log.read_text()

    def client(self) -> LeaseClient:
        return LeaseClient(self.socket, "test")

    def query(self, command: str, **fields: Any) -> Any:
        with self.client() as client:
            return client.query(command, **fields)

    def end(self, number: signal.Signals) -> int:
        """Send a signal; return harpd's exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        """End harpd in any state, and remove its mounts and files."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(Exception):
                self.query("stop", force=True)
                self.process.wait(10)
            if self.process.poll() is None:
                self.end(signal.SIGKILL)
        for name, kind in (("bpf.netns", "nsfs"), ("bpf", "bpf")):
            if rundir.is_mounted(self.run_dir / name, kind):
                subprocess.run(["umount", str(self.run_dir / name)], check=True)
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)


@contextlib.contextmanager
def stopped(*daemons: HostDaemon) -> Iterator[None]:
    """Stop these harpds with SIGSTOP during the block."""
    for daemon in daemons:
        daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGCONT)


class Job(Closing):
    """A forked process, by default of user nobody in its own empty network namespace.

    It drops CAP_NET_ADMIN, with which harpd would refuse it, unless net_admin is set. Its work gets
    a function send(), whose values receive() returns, and a descriptor that go() makes readable.
    """

    def __init__(
        self,
        work: Work,
        uid: int | None = NOBODY,
        netns: str | None = None,
        container: bool = False,
        net_admin: bool = False,
    ) -> None:
        self._answers, sending = Pipe(duplex=False)
        wait_fd, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(work, sending, wait_fd, uid, netns, container, net_admin)
        sending.close()
        os.close(wait_fd)
        self.pidfd = os.pidfd_open(self.pid)
        self.reaped = False

    @staticmethod
    def _run(
        work: Work,
        sending: Any,
        wait_fd: int,
        uid: int | None,
        netns: str | None,
        container: bool,
        net_admin: bool,
    ) -> None:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            close_inherited(sending.fileno(), wait_fd)
            if netns is not None:
                enter(netns)
            elif _libc.unshare(CLONE_NEWNET) != 0:
                raise OSError(get_errno(), "unshare")
            if netns is None and not net_admin:
                drop_net_admin()
            if container and _libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID) == 0:
                inner = os.fork()  # the first process of the new PID namespace
                if inner:
                    os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work(sending.send, wait_fd)
            status = 0
        except BaseException:
            sending.send(RuntimeError(traceback.format_exc()))
        finally:
            os._exit(status)

    def receive(self, seconds: float = 30) -> Any:
        """Return the job's next message; an exception in the job fails the test."""
        if not self._answers.poll(seconds):
            pytest.fail(f"no message from the job for {seconds} s")
        try:
            value = self._answers.recv()
        except EOFError:
            pytest.fail("the job ended without a message")
        if isinstance(value, RuntimeError):
            pytest.fail(str(value))
        return value

    def go(self) -> None:
        os.write(self._go, b"x")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def join(self, seconds: float = 30) -> int:
        """Wait for the end of the job; return its exit status."""
        if not select.select([self.pidfd], [], [], seconds)[0]:
            pytest.fail(f"the job does not end within {seconds} s")
        _, status = os.waitpid(self.pid, 0)
        self.reaped = True
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kill the job if it still runs."""
        if not self.reaped:
            with contextlib.suppress(ProcessLookupError):
                self.kill()
            self.join()
        self._answers.close()
        for fd in (self.pidfd, self._go):
            os.close(fd)


def wait_for_go(wait_fd: int) -> None:
    """Wait in a job until the test calls go()."""
    os.read(wait_fd, 1)


def echo_server(host: Host, port: int) -> subprocess.Popen[str]:
    """Start a kernel TCP server that echoes."""
    code = f"""
import socket, threading
server = socket.create_server(("", {port}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
def serve(sock):
    with sock:
        while data := sock.recv(65536):
            sock.sendall(data)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
    process = host.popen([sys.executable, "-c", code])
    assert process.stdout.readline() == "ready\n"
    return process


def links(host: Host) -> dict[str, dict[str, Any]]:
    """Return the host's interfaces by name, as `ip` shows them."""
    interfaces = json.loads(host.run("ip", "-j", "-d", "link", "show"))
    return {link["ifname"]: link for link in interfaces}


def xdp_id(host: Host) -> int:
    """Return the ID of the XDP program on the host's interface; 0: none."""
    return int(links(host)[host.ifname].get("xdp", {}).get("prog", {}).get("id", 0))
