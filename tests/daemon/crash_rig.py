# SPDX-License-Identifier: Apache-2.0
"""Hosts that run harpd, and NCCL traffic between jobs of user nobody that lease from it.

The jobs are ranks of harp-bench: one streams messages, the other checks every byte.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest
from driver_rig import PLUGIN_FAILED, REMOTE_ERROR, bench
from harpd_rig import HostDaemon, echo_server
from netns_tools import inside

from harp import stats
from harp.closing import Closing
from harp.lab import IFNAME, Lab

EVENT_S = 120  # the end of a process waits for RCU, which polling on all cores delays
ROOT_NETWORK = "10.99.0."  # the ranks exchange their addresses there
INTERRUPTED = 6
# User nobody, no capability, and 64 KiB of locked memory.
NOBODY = (
    *("prlimit", "--memlock=65536:65536", "--", "setpriv", "--reuid=65534", "--regid=65534"),
    *("--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
)


class Rank:
    """The `source` or `sink` of an endless stream. The sink verifies every byte."""

    def __init__(
        self,
        harpd: HostDaemon,
        role: str,
        number: int,
        root: str,
        ifname: str,
        extra_env: dict[str, str],
    ) -> None:
        self.role, self.messages, self._unread = role, 0, b""
        self._log = (harpd.folder / f"{role}-{root.rpartition(':')[2]}").open("w+")
        command = bench(role, number, 2, root, "--ifname", f"={ifname}", "--sizes", "20000")
        env = {
            "PATH": os.environ["PATH"],
            "HARP_PATH": "xdp",
            "HARP_DAEMON": "require",
            "HARP_SOCKET": str(harpd.socket),
            "HARP_LABEL": role,
            "NCCL_DEBUG": "INFO",
            **extra_env,
        }
        self.process = subprocess.Popen(
            harpd.command(*NOBODY, *command, "--tick", "100"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_text(self) -> str:
        self._log.seek(0)
        return self._log.read()

    @property
    def _fd(self) -> int:
        return self.process.stdout.fileno()

    def _next(self) -> dict[str, Any]:
        """Return the next event: ready, tick (ten a second), done or error."""
        while b"\n" not in self._unread:
            if not select.select([self._fd], [], [], EVENT_S)[0]:
                pytest.fail(f"{self.role}: no event for {EVENT_S} s: {self.log_text()}")
            chunk = os.read(self._fd, 65536)
            if not chunk:
                pytest.fail(f"{self.role} ended with {self.process.wait()}: {self.log_text()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def event(self) -> dict[str, Any]:
        """Return the next event that is not a tick."""
        while (event := self._next())["event"] == "tick":
            pass
        return event

    def progress(self) -> int:
        """Read the next tick; return the number of transferred messages."""
        event = self._next()
        if event["event"] != "tick":
            pytest.fail(f"{self.role}: {event}: {self.log_text()}")
        self.messages = int(event["sent_messages"] + event["received_messages"])
        return self.messages

    def latest_progress(self) -> int:
        """Read all pending ticks and one more; return the number of messages."""
        while b"\n" in self._unread or select.select([self._fd], [], [], 0)[0]:
            self.progress()
        return self.progress()

    def wait_for_messages(self, messages: int = 50) -> None:
        target = self.latest_progress() + messages
        deadline = time.monotonic() + EVENT_S
        while self.progress() < target:
            if time.monotonic() > deadline:
                pytest.fail(f"{self.role}: no {messages} messages: {self.log_text()}")

    def page(self) -> stats.Snapshot:
        with stats.find() as regions:
            for page in regions.pages:
                if page.pid == self.pid:
                    return stats.read(page.fd)
        pytest.fail(f"{self.role} {self.pid} has no statistics page")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._log.close()


class Pair:
    """A source on one host and a sink on the other, with a running stream."""

    def __init__(self, source: Rank, sink: Rank) -> None:
        self.source, self.sink = source, sink
        assert source.event()["event"] == sink.event()["event"] == "ready"
        sink.wait_for_messages(1)

    def finish(self) -> None:
        """End the job; check that every byte was correct and that no lane used kernel TCP."""
        self.sink.wait_for_messages()
        self.sink.process.terminate()
        event = self.sink.event()
        assert (event["event"], event["nccl"]) == ("error", 0), event
        assert event["wrong"] == 0
        assert event["received_messages"] > 0
        assert self.sink.process.wait(EVENT_S) == INTERRUPTED
        assert self.source.event()["nccl"] == REMOTE_ERROR
        assert self.source.process.wait(EVENT_S) == PLUGIN_FAILED
        for rank in (self.source, self.sink):
            assert "by HARP TCP" in rank.log_text()
            assert "by kernel TCP" not in rank.log_text()


def add_nic(lab: Lab, ifname: str, network: str) -> None:
    """Add a veth pair between the two hosts; network: a prefix like "10.88.0."."""
    first, second = lab.hosts
    veth = ["type", "veth", "peer", "name", ifname, "netns", second.netns]
    first.run("ip", "link", "add", ifname, *veth)
    for host in lab.hosts:
        address = f"{network}{host.index + 1}/24"
        host.run("ip", "address", "add", address, "dev", ifname)
        host.run("ip", "link", "set", ifname, "up")


class Site(Closing):
    def __init__(self, lab: Lab, daemon: str = "", nic: str = "") -> None:
        self.lab = lab
        self.daemons = [HostDaemon(host, daemon, nic) for host in lab.hosts]
        self._ranks: list[Rank] = []
        self._port = 7000
        add_nic(lab, "meet0", ROOT_NETWORK)

    def __enter__(self) -> Self:
        try:
            for daemon in self.daemons:
                daemon.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for item in (*self._ranks, *self.daemons):
            item.close()

    def pair(self, ifname: str = IFNAME, **env: str) -> Pair:
        """Start a job from the first host to the second; its ranks find each other over meet0."""
        self._port += 1
        root = f"{ROOT_NETWORK}1:{self._port}"
        ranks = [
            Rank(daemon, role, number, root, ifname, env)
            for number, (daemon, role) in enumerate(
                zip(self.daemons, ("source", "sink"), strict=True)
            )
        ]
        self._ranks += ranks
        return Pair(*ranks)


# --------------------------------------------------------------------------------------------------
# Kernel resources.
#
def memfds(pid: int) -> set[int]:
    """Return the inodes of the memfds that a process has open or mapped."""
    inodes: set[int] = set()
    with contextlib.suppress(OSError):
        for entry in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("/memfd:"):
                    inodes.add(entry.stat().st_ino)
        for line in (Path("/proc") / str(pid) / "maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/memfd:"):
                inodes.add(int(fields[4]))
    return inodes


def open_inodes(inodes: set[int]) -> set[int]:
    """Return those that a process still has open or mapped."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {inode for pid in pids for inode in memfds(pid) & inodes}


def bpffs_mounts(below: Path) -> list[str]:
    """Return the mount points of BPF file systems below a directory."""
    mount_points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        mount_point = mount.split()[4]
        if kind.split()[0] == "bpf" and Path(mount_point).is_relative_to(below):
            mount_points.append(mount_point)
    return mount_points


class KernelConnection:
    """A kernel TCP connection to an echo server on the second host, like an ssh session."""

    def __init__(self, lab: Lab, port: int = 2222) -> None:
        host, peer = lab.hosts
        echo_server(peer, port)
        address = (peer.address, port)
        self._sock: socket.socket = inside(host, lambda: socket.create_connection(address, 10))

    def check_echo(self) -> None:
        self._sock.sendall(b"a line\n")
        assert self._sock.recv(7, socket.MSG_WAITALL) == b"a line\n"


def is_refused(lab: Lab, port: int) -> bool:
    """Tell whether a port of the second host answers the first host with RST."""
    address = (lab.hosts[1].address, port)
    try:
        inside(lab.hosts[0], lambda: socket.create_connection(address, 20)).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        pass
    return False
