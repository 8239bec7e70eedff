# SPDX-License-Identifier: Apache-2.0
"""The tools that put HARP on a host of the laboratory, and how to run them."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harp import _host, _paths
from harp._host import Steering
from harp.lab import Host
from harp.lab.netns import in_namespace

READY_S = 60
AUTO, GENERIC, NATIVE = range(3)  # enum harp_xdp_mode
QUEUE_ANY = 0xFFFFFFFF


@dataclass
class Tools:
    """harp-tcp of the build tree, run in hosts."""

    build: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def close(self) -> None:
        """Servers that a failed test left running end with it."""
        for server in self.started:
            if server.poll() is None:
                server.kill()
                server.communicate()

    @property
    def tcp(self) -> Path:
        return self.build / "tools" / "tcp" / "harp-tcp"

    @property
    def lib_dir(self) -> list[str]:
        return ["--lib-dir", str(self.build / "dataplane" / "xdp")]

    def side(self, host: Host, kind: str) -> list[str]:
        """The options that make one end HARP's or the kernel's."""
        return ["--kernel"] if kind == "kernel" else ["--ifname", host.ifname, *self.lib_dir]

    def serve(self, host: Host, args: Sequence[str | Path]) -> subprocess.Popen[str]:
        """Starts a server and waits for its word that it may be called."""
        server = host.popen(args)
        self.started.append(server)
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], READY_S)[0]:
            pytest.fail(f"{args}: not ready after {READY_S} s")
        if server.stdout.readline() != "ready\n":
            pytest.fail(f"{args}: {finish(server)[1]}")
        return server

    def serve_tcp(self, host: Host, kind: str, port: int, *more: str) -> subprocess.Popen[str]:
        args = [self.tcp, "serve", host.address, str(port), *self.side(host, kind), *more]
        return self.serve(host, [*args, "-o", "json"])

    def call_tcp(
        self, host: Host, kind: str, test: str, address: str, port: int, *more: str
    ) -> Any:
        """Runs a client to its end; what it reported."""
        args = [self.tcp, test, address, str(port), *self.side(host, kind), *more]
        return json.loads(run(host, [*args, "-o", "json"]))


def call_until_answered(tools: Tools, here: Host, address: str) -> Any:
    """Until the stack knows of a change the kernel answers, with RST."""
    for _ in range(50):
        try:
            return tools.call_tcp(here, "kernel", "send", address, 61000, "--bytes", "100000")
        except AssertionError:
            continue
    raise AssertionError(f"{address}: no answer")


def run(host: Host, args: Sequence[str | Path], timeout_s: float = 60) -> str:
    """Runs a command to its end, which must be a good one; what it printed."""
    out, err, status = outcome(host, args, timeout_s)
    assert status == 0, f"{args}: {err}"
    return out


def outcome(host: Host, args: Sequence[str | Path], timeout_s: float = 60) -> tuple[str, str, int]:
    """Runs a command to its end, whatever it is."""
    process = host.popen(args)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"{args}: still running after {timeout_s} s")
    return out, err, process.returncode


def all_came(report: Mapping[str, Mapping[str, int]]) -> bool:
    """Was each redirected packet received, or counted as dropped by a full ring?

    The peer's last packets may arrive after the instance last polled.
    """
    nic = report["nic"]
    counted = report["stats"]["rx_packets"] + nic["rx_dropped"] + nic["rx_ring_full"]
    return 0 <= report["steering"]["redirect_tcp"] - counted <= 2


def finish(server: subprocess.Popen[str], timeout_s: float = 60) -> tuple[str, str]:
    """The rest of a server's output, once it has ended by itself."""
    try:
        return server.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.communicate()
        pytest.fail(f"{server.args}: did not end")


def inside(host: Host, work: Callable[[], Any]) -> Any:
    """Runs work in the host's network namespace, in this process; what it returned or raised."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def body(_ipr: object) -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    in_namespace(host.netns, body)
    if failure:
        raise failure[0]
    return result[0]


_host.load_library(str(_paths.find(_paths.XDP_LIBRARY)))


def attach(host: Host, mode: int = GENERIC) -> Steering:
    steering: Steering = inside(host, lambda: Steering.attach(host.ifname, mode))
    return steering


def adopt(host: Host, pins: Path) -> Steering:
    steering: Steering = inside(host, lambda: Steering.adopt(str(pins), host.ifname))
    return steering


def make_queue(host: Host, queue: int = 0) -> tuple[int, int]:
    """An AF_XDP socket that is never read, and its memory."""
    made = inside(host, lambda: _host.queue_make(host.ifname, queue, frame_count=256, ring_size=64))
    return made.xsk_fd, made.frames_fd


# The second host's addresses: ::ffff:10.77.0.2 and fd77::2.
OWN = (bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2]), bytes.fromhex("fd77") + bytes(13) + b"\2")


def own(steering: Steering, port: int = 61000) -> Steering:
    """Both families' addresses and one port are HARP's."""
    for address in OWN:
        steering.address_set(address, True)
    steering.ports_set(port, port, QUEUE_ANY, True)
    return steering


# Attaches to the interface, pins, and runs until it is killed.
PIN = """
import sys
from netns_tools import GENERIC, Steering
steering = Steering.attach(sys.argv[1], GENERIC)
steering.pin(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def serve_pin(tools: Tools, host: Host, pins: Path) -> subprocess.Popen[str]:
    """A process that has attached a program and pinned it."""
    path = f"PYTHONPATH={Path(__file__).parent}"
    return tools.serve(host, ["env", path, sys.executable, "-c", PIN, host.ifname, str(pins)])


def xdp_attached(host: Host) -> bool:
    """Has the host's interface an XDP program?"""
    links = {link["ifname"]: link for link in json.loads(host.run("ip", "-j", "link", "show"))}
    link = links[host.ifname]
    return bool(link.get("xdp"))


def wait_until(condition: Any, what: str, seconds: float = 60) -> None:
    """The kernel frees what the dead held in its own time, and announces none of it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not after {seconds} s")
        time.sleep(0.01)
