# SPDX-License-Identifier: Apache-2.0
"""harp-bench over HARP's AF_XDP path, between two hosts joined by a cable."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_rig import HANGS_S, ROLES, Running, event, finish, outlives

PORT = 7000


class Cable:
    """Two namespaces and a veth pair; host 0 is where ranks meet."""

    def __init__(self, names: list[str], root: str, build: Path) -> None:
        self.names, self.root, self.build = names, root, build

    def start(self, rank: int, mode: str, *args: str, path: str = "xdp") -> Running:
        """One rank in the background."""
        words = [str(self.build / "tools/driver/harp-bench"), mode, *args]
        words += ["--rank", str(rank), "--ranks", "2", "--root", f"{self.root}:{PORT}"]
        words += ["--ifname", "=cable", "--timeout", str(HANGS_S)]
        words += ["--plugin", str(self.build / "plugin/libnccl-net-harp.so")]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[rank], *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HARP_PATH": path,
                "HARP_LIBDIR": str(self.build / "dataplane/xdp"),
            },
        )

    def document(self, mode: str, *args: str, paths: tuple[str, str]) -> dict[str, Any]:
        """Both ranks to their end; rank 0's JSON."""
        with contextlib.ExitStack() as stack:
            ranks = [self.start(r, mode, *args, path=paths[r]) for r in range(2)]
            for process in ranks:
                stack.callback(finish, process)
            ended = [process.communicate(timeout=2 * HANGS_S) for process in ranks]
            assert [process.returncode for process in ranks] == [0, 0], ended
        document: dict[str, Any] = json.loads(ended[0][0])
        return document


def ip(*words: str) -> None:
    """iproute2."""
    subprocess.run(["ip", *words], check=True)


def wait_for_carrier(name: str) -> None:
    """Link state follows `up` by a moment."""
    words = ["ip", "netns", "exec", name, "cat", "/sys/class/net/cable/operstate"]
    deadline = time.monotonic() + HANGS_S
    while subprocess.run(words, capture_output=True, text=True, check=True).stdout != "up\n":
        assert time.monotonic() < deadline, "no carrier"
        time.sleep(0.01)


@pytest.fixture(scope="module", params=["IPv4-1500", "IPv6-9000"])
def cable(request: pytest.FixtureRequest, build_dir: Path, need_root: None) -> Iterator[Cable]:
    """Two hosts."""
    names = [f"hx-cable{i}-{os.getpid()}" for i in range(2)]
    family, mtu = str(request.param).split("-")
    network, length = ("10.9.0.", ["/24"]) if family == "IPv4" else ("fd99::", ["/64", "nodad"])
    root = "10.9.0.1" if family == "IPv4" else "[fd99::1]"
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ends = ["cable", "netns", names[0], "mtu", mtu, "type", "veth", "peer", "name", "cable"]
        ip("link", "add", *ends, "netns", names[1], "mtu", mtu)
        for i, name in enumerate(names):
            address = [f"{network}{i + 1}{length[0]}", *length[1:]]
            ip("-n", name, "address", "add", *address, "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        for name in names:
            wait_for_carrier(name)
        yield Cable(names, root, build_dir)


PATHS = [("xdp", "xdp"), ("xdp", "kernel"), ("kernel", "xdp")]


@pytest.mark.parametrize("paths", PATHS, ids="-".join)
@pytest.mark.parametrize(
    "args",
    [
        ("lat", "-e", "40000", "-f", "17", "-n", "200"),
        ("bw", "-b", "1M", "-n", "100"),
        ("alltoall", "-b", "3000", "-e", "300000", "-f", "10", "-n", "100", "--channels", "2"),
        ("allreduce", "-b", "4", "-e", "4M", "-f", "11", "-n", "3", "--channels", "2"),
        ("allreduce", "-b", "4", "-e", "400000", "-f", "11", "-n", "3", "--ll"),
    ],
    ids=lambda args: "-".join(a.lstrip("-") for a in args),
)
def test_every_mode_measures_over_a_cable(
    cable: Cable, args: tuple[str, ...], paths: tuple[str, str]
) -> None:
    """Every byte of every mode is right, over HARP TCP, and between HARP and kernel lanes."""
    document = cable.document(*args, paths=paths)
    assert document["wrong"] == 0
    log = " ".join(line["text"] for line in document["log"])
    if paths == ("xdp", "xdp"):
        assert "AF_XDP" in log


@pytest.mark.parametrize("fork", [[], ["--fork-child"]], ids=["alone", "forked"])
@pytest.mark.parametrize("roles", ROLES, ids="-".join)
def test_the_survivor_of_a_killed_rank_ends_with_an_error(
    cable: Cable, roles: tuple[str, str], fork: list[str]
) -> None:
    """SIGKILL of the peer process gives ncclRemoteError, long before the time limit for silence
    (120 s, HARP_USER_TIMEOUT_MS) or harp-bench's own, which reports a hang."""
    with contextlib.ExitStack() as stack:
        survivor = cable.start(0, roles[0])
        stack.callback(finish, survivor)
        victim = cable.start(1, roles[1], *fork)
        stack.callback(finish, victim)
        outlives(survivor, victim, stack)


@pytest.mark.parametrize("size", ["9", "100000", "1M"])
def test_completed_sends_were_delivered(cable: Cable, size: str) -> None:
    """A sender that exits without closing right after its last message is done loses nothing."""
    args = ["-n", "100", "-b", size, "--datacheck", "1"]
    with contextlib.ExitStack() as stack:
        sink = cable.start(0, "sink", *args)
        stack.callback(finish, sink)
        source = cable.start(1, "source", "--abrupt", *args)
        stack.callback(finish, source)
        assert event(sink)["event"] == "ready"
        done = event(sink)
        assert done["event"] == "done", done
        assert done["received_messages"] == 100
        assert done["wrong"] == 0
