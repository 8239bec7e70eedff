# SPDX-License-Identifier: Apache-2.0
"""Network namespaces: processes and interfaces in them."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError, netns

from harp.closing import deferring
from harp.errors import HarpError
from harp.nicprep.transport import Ethtool

NETNS_DIR = Path("/run/netns")
CARRIER_S = 60
# Many commands wait for the kernel's RCU, which polling on all cores delays.
COMMAND_S = 120
_CLONE_NEWNET = 0x40000000
_RTMGRP_LINK = 1
_IFLA_KIND = ("IFLA_LINKINFO", "IFLA_INFO_KIND")
_IFLA_PORT_STATE = ("IFLA_LINKINFO", "IFLA_INFO_SLAVE_DATA", "IFLA_BRPORT_STATE")
_BR_STATE_FORWARDING = 3
_OFFLOADS = ("tx-tcp", "tx-checksum")
_libc = ctypes.CDLL(None, use_errno=True)


def run(command: Sequence[str], timeout_s: float = COMMAND_S) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, errors="replace", check=False
    )
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise HarpError(f"{' '.join(command)}: {reason}")
    return done.stdout


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a process in text mode, with options of Popen. By default its output goes to pipes."""
    defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, errors="replace", **(defaults | options))


@dataclass
class Namespace:
    netns: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list, kw_only=True)

    def command(
        self, args: Sequence[str | Path], cpu: int | None = None, realtime: int = 0
    ) -> list[str]:
        """Return the command line that runs args here. cpu: the only one; realtime: a priority."""
        pin = [] if cpu is None else ["taskset", "-c", str(cpu)]
        schedule = ["chrt", "--fifo", str(realtime)] if realtime else []
        return ["ip", "netns", "exec", self.netns, *pin, *schedule, *map(str, args)]

    def popen(
        self,
        args: Sequence[str | Path],
        *,
        cpu: int | None = None,
        realtime: int = 0,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a process here, with options of Popen. The end of the lab ends it."""
        with deferring():
            process = popen(self.command(args, cpu, realtime), **options)
            self.processes.append(process)
        return process

    def run(self, *args: str | Path, timeout_s: float = COMMAND_S) -> str:
        """Run a short command here and return its output; HarpError if it fails."""
        return run(self.command(args), timeout_s)

    def sysctl(self, name: str, value: object) -> None:
        """Set a variable under /proc/sys/net: "ipv4/tcp_sack"."""

        def write(_ipr: Any) -> None:
            Path("/proc/sys/net", name).write_text(f"{value}\n")

        in_namespace(self.netns, write)


def _in_thread(name: str, work: Callable[[], None]) -> None:
    """Run work() in a new thread, which may change its namespace.

    pyroute2 would fork, and the child would have this process's signal handlers and cleanup.
    """
    failure: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name=f"netns {name}")
    thread.start()
    thread.join()
    if failure:
        error = failure[0]
        reason = error.args[1] if isinstance(error, NetlinkError) else error
        raise HarpError(f"namespace {name}: {reason}") from error


def make_namespace(name: str) -> None:
    """Make a namespace, which stays until remove_namespace()."""

    def work() -> None:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        netns.attach(str(NETNS_DIR / name), threading.get_native_id())

    _in_thread(name, work)


def remove_namespace(name: str) -> None:
    """Kill the processes in a namespace and delete it; a busy one stays for clean_leftovers()."""
    for pid in netns.ns_pids(str(NETNS_DIR)).get(name, ()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        netns.remove(str(NETNS_DIR / name))


def in_namespace(name: str, work: Callable[[Any], None]) -> None:
    """Run work(IPRoute) inside a namespace, in a thread."""

    def enter() -> None:
        with (NETNS_DIR / name).open("rb") as entry:
            if _libc.setns(entry.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {name}")
        with IPRoute() as ipr:
            work(ipr)

    _in_thread(name, enter)


def namespaces() -> list[str]:
    try:
        return sorted(path.name for path in NETNS_DIR.iterdir())
    except FileNotFoundError:
        return []


def end_processes(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Send SIGTERM, and SIGKILL to processes that do not end within two seconds."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.terminate()
    for process in living:
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in processes:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for_carrier(ipr: Any) -> None:
    """Wait until every veth here is up, which the kernel reports after a delay. A port of a bridge
    is up when the bridge forwards packets over it.
    """
    deadline = time.monotonic() + CARRIER_S
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as changes:
        changes.bind((0, _RTMGRP_LINK))  # before the first reading, so that no change is missed
        while True:
            links = [link for link in ipr.get_links() if link.get_nested(*_IFLA_KIND) == "veth"]
            down = [link for link in links if not _is_up(link)]
            if not down:
                return
            changes.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                changes.recv(65536)
            except TimeoutError:
                name = down[0].get_attr("IFLA_IFNAME")
                raise HarpError(f"{name} did not go up within {CARRIER_S} s") from None


def _is_up(link: Any) -> bool:
    if link.get("state") != "up" or link.get_attr("IFLA_OPERSTATE") != "UP":
        return False
    return link.get_nested(*_IFLA_PORT_STATE) in (None, _BR_STATE_FORWARDING)


def offloads_off(namespace: str, ifname: str) -> None:
    """Do what `ethtool -K IFNAME tso off gso off gro off tx off` does."""

    def work(_ipr: Any) -> None:
        ethtool = Ethtool()
        features = [
            feature
            for feature in ethtool.get("changeable", ifname)
            if feature.startswith(_OFFLOADS) or feature in ("rx-gro", "tx-generic-segmentation")
        ]
        ethtool.set("features", ifname, dict.fromkeys(features, False))

    in_namespace(namespace, work)
