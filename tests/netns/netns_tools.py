# SPDX-License-Identifier: Apache-2.0
"""Helpers that run HARP's tools and XDP programs on hosts of the lab."""

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
        """Kill the servers that a failed test left running."""
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

    def options(self, host: Host, kind: str) -> list[str]:
        """Return the options that select HARP's stack or the kernel's."""
        return ["--kernel"] if kind == "kernel" else ["--ifname", host.ifname, *self.lib_dir]

    def serve(self, host: Host, args: Sequence[str | Path]) -> subprocess.Popen[str]:
        """Start a server and wait until it prints "ready"."""
        server = host.popen(args)
        self.started.append(server)
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], READY_S)[0]:
            pytest.fail(f"{args}: not ready after {READY_S} s")
        if server.stdout.readline() != "ready\n":
            pytest.fail(f"{args}: {finish(server)[1]}")
        return server

    def serve_tcp(self, host: Host, kind: str, port: int, *more: str) -> subprocess.Popen[str]:
        args = [self.tcp, "serve", host.address, str(port), *self.options(host, kind), *more]
        return self.serve(host, [*args, "-o", "json"])

    def call_tcp(
        self, host: Host, kind: str, test: str, address: str, port: int, *more: str
    ) -> Any:
        args = [self.tcp, test, address, str(port), *self.options(host, kind), *more]
        return json.loads(run(host, [*args, "-o", "json"]))


def call_until_answered(tools: Tools, here: Host, address: str) -> Any:
    """Repeat a transfer until it succeeds: the kernel sends RST until the stack sees the change."""
    for _ in range(50):
        try:
            return tools.call_tcp(here, "kernel", "send", address, 61000, "--bytes", "100000")
        except AssertionError:
            continue
    raise AssertionError(f"{address}: no answer")


def run(host: Host, args: Sequence[str | Path], timeout_s: float = 60) -> str:
    """Run a command that must succeed. Return its output."""
    out, err, status = outcome(host, args, timeout_s)
    assert status == 0, f"{args}: {err}"
    return out


def outcome(host: Host, args: Sequence[str | Path], timeout_s: float = 60) -> tuple[str, str, int]:
    """Run a command to its end. Return stdout, stderr and the exit status."""
    process = host.popen(args)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"{args}: still running after {timeout_s} s")
    return out, err, process.returncode


def packets_add_up(report: Mapping[str, Mapping[str, int]]) -> bool:
    """Was each redirected packet received, or counted as dropped by a full ring?

    The peer's last packets may arrive after the instance last polled.
    """
    nic = report["nic"]
    count = report["stats"]["rx_packets"] + nic["rx_dropped"] + nic["rx_ring_full"]
    return 0 <= report["steering"]["redirect_tcp"] - count <= 2


def finish(server: subprocess.Popen[str], timeout_s: float = 60) -> tuple[str, str]:
    """Wait for a server to exit. Return the rest of its output."""
    try:
        return server.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.communicate()
        pytest.fail(f"{server.args}: did not exit")


def inside(host: Host, work: Callable[[], Any]) -> Any:
    """Run work() in the host's network namespace, in this process. Return its result."""
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
    nic = inside(host, lambda: _host.queue_make(host.ifname, queue, frame_count=256, ring_size=64))
    return nic.xsk_fd, nic.frames_fd


# The second host's addresses: ::ffff:10.77.0.2 and fd77::2.
OWN = (bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2]), bytes.fromhex("fd77") + bytes(13) + b"\2")


def own(steering: Steering, port: int = 61000) -> Steering:
    """Give both families' addresses and one port to HARP."""
    for address in OWN:
        steering.address_set(address, True)
    steering.ports_set(port, port, QUEUE_ANY, True)
    return steering


# Attaches a program to the interface, pins it, and waits until it is killed.
PIN = """
import sys
from netns_tools import GENERIC, Steering
steering = Steering.attach(sys.argv[1], GENERIC)
steering.pin(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def serve_pin(tools: Tools, host: Host, pins: Path) -> subprocess.Popen[str]:
    """Start a process that attaches a program and pins it."""
    path = f"PYTHONPATH={Path(__file__).parent}"
    return tools.serve(host, ["env", path, sys.executable, "-c", PIN, host.ifname, str(pins)])


def xdp_attached(host: Host) -> bool:
    links = {link["ifname"]: link for link in json.loads(host.run("ip", "-j", "link", "show"))}
    link = links[host.ifname]
    return bool(link.get("xdp"))


def wait_until(condition: Any, what: str, seconds: float = 60) -> None:
    """Poll: the kernel frees the objects of a dead process asynchronously, without an event."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.01)
