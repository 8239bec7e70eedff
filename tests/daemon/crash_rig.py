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

EVENT_S = 120  # a process that ends waits for the kernel's RCU, which polling on all cores holds up
MEETING = "10.99.0."
INTERRUPTED = 6
# User nobody, no capability, and 64 KiB of locked memory.
NOBODY = (
    *("prlimit", "--memlock=65536:65536", "--", "setpriv", "--reuid=65534", "--regid=65534"),
    *("--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
)


class Rank:
    """One rank: `source` or `sink` of an endless stream, every byte of which is verified."""

    def __init__(
        self,
        harpd: HostDaemon,
        role: str,
        number: int,
        root: str,
        ifname: str,
        more: dict[str, str],
    ) -> None:
        self.role, self.messages, self._unread = role, 0, b""
        self._log = (harpd.folder / f"{role}-{root.rpartition(':')[2]}").open("w+")
        words = bench(role, number, 2, root, "--ifname", f"={ifname}", "--sizes", "20000")
        env = {
            "PATH": os.environ["PATH"],
            "HARP_PATH": "xdp",
            "HARP_DAEMON": "require",
            "HARP_SOCKET": str(harpd.socket),
            "HARP_LABEL": role,
            "NCCL_DEBUG": "INFO",
            **more,
        }
        self.process = subprocess.Popen(
            harpd.command(*NOBODY, *words, "--tick", "100"),
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
        """What the plugin logged."""
        self._log.seek(0)
        return self._log.read()

    @property
    def _fd(self) -> int:
        return self.process.stdout.fileno()

    def _next(self) -> dict[str, Any]:
        """The next line: ready, tick (ten a second), done, error."""
        while b"\n" not in self._unread:
            if not select.select([self._fd], [], [], EVENT_S)[0]:
                pytest.fail(f"{self.role} sends nothing for {EVENT_S} s: {self.log_text()}")
            more = os.read(self._fd, 65536)
            if not more:
                pytest.fail(f"{self.role} ended with {self.process.wait()}: {self.log_text()}")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def event(self) -> dict[str, Any]:
        """The next event: ready, done, error."""
        while (found := self._next())["event"] == "tick":
            pass
        return found

    def progress(self) -> int:
        """The next of its reports, ten a second: how many messages it has moved."""
        found = self._next()
        if found["event"] != "tick":
            pytest.fail(f"{self.role}: {found}: {self.log_text()}")
        self.messages = int(found["sent_messages"] + found["received_messages"])
        return self.messages

    def fresh(self) -> int:
        """Return the present number of messages, after all unread reports."""
        while b"\n" in self._unread or select.select([self._fd], [], [], 0)[0]:
            self.progress()
        return self.progress()

    def progresses(self, messages: int = 50) -> None:
        """Wait for a number of further messages."""
        target = self.fresh() + messages
        deadline = time.monotonic() + EVENT_S
        while self.progress() < target:
            if time.monotonic() > deadline:
                pytest.fail(f"{self.role}: no {messages} messages: {self.log_text()}")

    def page(self) -> stats.Snapshot:
        """Its statistics page, as root sees it."""
        with stats.find() as found:
            for page in found.pages:
                if page.pid == self.pid:
                    return stats.read(page.fd)
        pytest.fail(f"{self.role} {self.pid} publishes nothing")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._log.close()


class Pair:
    """A source on one host, a sink on the other; the stream runs when it is made."""

    def __init__(self, source: Rank, sink: Rank) -> None:
        self.source, self.sink = source, sink
        assert source.event()["event"] == sink.event()["event"] == "ready"
        sink.progresses(1)

    def finish(self) -> None:
        """Ends the job in order; every byte was right, and nothing went over the kernel."""
        self.sink.progresses()
        self.sink.process.terminate()
        ended = self.sink.event()
        assert (ended["event"], ended["nccl"]) == ("error", 0), ended
        assert ended["wrong"] == 0
        assert ended["received_messages"] > 0
        assert self.sink.process.wait(EVENT_S) == INTERRUPTED
        assert self.source.event()["nccl"] == REMOTE_ERROR
        assert self.source.process.wait(EVENT_S) == PLUGIN_FAILED
        for rank in (self.source, self.sink):
            assert "by HARP TCP" in rank.log_text()
            assert "by kernel TCP" not in rank.log_text()


def add_nic(lab: Lab, ifname: str, network: str) -> None:
    """One more interface on each of two hosts, joined by a cable; network: "10.88.0."."""
    here, there = lab.hosts
    cable = ["type", "veth", "peer", "name", ifname, "netns", there.netns]
    here.run("ip", "link", "add", ifname, *cable)
    for host in lab.hosts:
        address = f"{network}{host.index + 1}/24"
        host.run("ip", "address", "add", address, "dev", ifname)
        host.run("ip", "link", "set", ifname, "up")


class Site(Closing):
    """A laboratory with a harpd on each host."""

    def __init__(self, lab: Lab, daemon: str = "", nic: str = "") -> None:
        self.lab = lab
        self.daemons = [HostDaemon(host, daemon, nic) for host in lab.hosts]
        self._ranks: list[Rank] = []
        self._port = 7000
        add_nic(lab, "meet0", MEETING)

    def __enter__(self) -> Self:
        try:
            for daemon in self.daemons:
                daemon.start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for end in (*self._ranks, *self.daemons):
            end.close()

    def pair(self, ifname: str = IFNAME, **env: str) -> Pair:
        """A new job: from the first host to the second. They meet over an interface of their
        own."""
        self._port += 1
        root = f"{MEETING}1:{self._port}"
        ranks = [
            Rank(daemon, role, number, root, ifname, env)
            for number, (daemon, role) in enumerate(
                zip(self.daemons, ("source", "sink"), strict=True)
            )
        ]
        self._ranks += ranks
        return Pair(*ranks)


# --------------------------------------------------------------------------------------------------
# What the kernel holds for a process.
#
def memfds(pid: int) -> set[int]:
    """The inodes of the memory files that a process has open or mapped."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for entry in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("/memfd:"):
                    found.add(entry.stat().st_ino)
        for line in (Path("/proc") / str(pid) / "maps").read_text().splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5].startswith("/memfd:"):
                found.add(int(words[4]))
    return found


def held(inodes: set[int]) -> set[int]:
    """Which of them any process still has."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {inode for pid in pids for inode in memfds(pid) & inodes}


def bpffs_mounts(below: Path) -> list[str]:
    """BPF file systems mounted in a directory."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        where = mount.split()[4]
        if kind.split()[0] == "bpf" and Path(where).is_relative_to(below):
            found.append(where)
    return found


class Kernel:
    """A connection between the hosts' kernels, like an ssh session, to a server that echoes."""

    def __init__(self, lab: Lab, port: int = 2222) -> None:
        here, there = lab.hosts
        echo_server(there, port)
        to = (there.address, port)
        self._sock: socket.socket = inside(here, lambda: socket.create_connection(to, 10))

    def progresses(self) -> None:
        """A line there and back."""
        self._sock.sendall(b"a line\n")
        assert self._sock.recv(7, socket.MSG_WAITALL) == b"a line\n"


def refused(lab: Lab, port: int) -> bool:
    """Does the first host get an RST from a port of the second?"""
    to = (lab.hosts[1].address, port)
    try:
        inside(lab.hosts[0], lambda: socket.create_connection(to, 20)).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        pass
    return False
