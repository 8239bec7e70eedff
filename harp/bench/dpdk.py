# SPDX-License-Identifier: Apache-2.0
"""harpctl bench dpdk: HARP's TCP compared with the speed of memif.

Memif is shared memory between two processes with one core each. One run alternates raw frames (a
generator and a sink, no stack) and HARP's TCP on memif, and the kernel's TCP over a veth pair with
all offloads and no XDP program. Results are medians. Every receiver reads each byte of the payload.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harp import _paths
from harp.bench import dpdk_wire
from harp.errors import HarpError
from harp.lab import Host, Lab, LabOptions, cpus, memif

PORT = 61000
MESSAGE_BYTES = 65536
DEPTH = 16  # messages of a connection in flight
_HEADERS_BYTES = 52  # IPv4 and TCP with timestamps
_FINISH_S = 60
# Goals: Gbit/s of verified payload over one connection, by MTU; data frames relative to raw frames
# at 1500.
RATE_GOALS = {1500: 40.0, 9000: 60.0}
FRAMES_GOAL = (1500, 0.5)
Say = Callable[[str], None]
Report = dict[str, Any]

# How HARP's sender passes its bytes to the stack: harp-tcp's option for it.
SENDS = {
    "frames": ["--frames"],  # written into the stack's frames
    "external": ["--external"],  # registered memory, read in place
    "copy": [],
}


@dataclass(frozen=True)
class DpdkOptions:
    """Options of the bench."""

    mtus: tuple[int, ...] = (1500, 9000)
    flows: tuple[int, ...] = (1, 16)
    sends: tuple[str, ...] = tuple(SENDS)
    rounds: int = 5
    seconds: float = 2
    skip_s: float = 0.5


def _tcp(
    words: list[list[str | Path]], hosts: tuple[Host | None, Host | None], seconds: float
) -> tuple[Report, Report]:
    """Run harp-tcp's sink and sender on one core each; return their reports."""
    processes: list[subprocess.Popen[str]] = []
    usable = cpus()
    tool = str(_paths.find("harp-tcp"))

    def start(index: int) -> subprocess.Popen[str]:
        core = usable[-1] if index == 0 else usable[0]
        host, command = hosts[index], [tool, *map(str, words[index])]
        if host is not None:
            return host.popen(command, cpu=core)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=pipe, stderr=pipe, text=True
        )

    def finish(process: subprocess.Popen[str]) -> str:
        try:
            printed, complaint = process.communicate(timeout=seconds + _FINISH_S)
        except subprocess.TimeoutExpired:
            raise HarpError("harp-tcp did not end") from None
        if process.returncode != 0:
            lines = complaint.strip().splitlines()
            raise HarpError(lines[-1] if lines else f"harp-tcp: status {process.returncode}")
        return printed

    try:
        processes.append(start(0))
        assert processes[0].stdout is not None
        if processes[0].stdout.readline() != "ready\n":
            finish(processes[0])
            raise HarpError("harp-tcp sink ended without a report")
        processes.append(start(1))
        sender = json.loads(finish(processes[1]))
        sink = [json.loads(line) for line in finish(processes[0]).splitlines()]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return sender, {"flows": sink}


def _times(options: DpdkOptions) -> list[str | Path]:
    seconds = options.skip_s + options.seconds
    return ["--skip", str(options.skip_s), "--seconds", str(seconds), "--spin", "-o", "json"]


def _words(
    address: str, flows: int, options: DpdkOptions, ends: list[list[str | Path]]
) -> list[list[str | Path]]:
    both: list[str | Path] = [address, str(PORT)]
    sink = ["sink", *both, *ends[0], "--verify", "--count", str(flows), *_times(options)]
    message = ["message", *both, *ends[1], "--size", str(MESSAGE_BYTES), "--depth", str(DEPTH)]
    return [sink, [*message, "--flows", str(flows), *_times(options)]]


def _harp(mtu_bytes: int, flows: int, send: str, options: DpdkOptions) -> Report:
    library = _paths.find("libharp-dpdk.so").parent
    with tempfile.TemporaryDirectory(prefix="harp-memif-") as name:
        texts = memif.port_texts(Path(name), mtu_bytes=mtu_bytes)
        ends: list[list[str | Path]] = [
            ["--ifname", f"dpdk:{text}", "--lib-dir", library] for text in texts
        ]
        ends[1] += SENDS[send]
        words = _words(memif.address(memif.SERVER), flows, options, ends)
        sender, sink = _tcp(words, (None, None), options.seconds)
    wire, sent = sender["host"]["stats"], sender["host"]["stats"]["tx_bytes"]
    received = sink["flows"][0]["conn"]["stats"]
    moved = sum(each["bytes"] for each in sink["flows"])
    rate = sender["bytes"] / sender["seconds"]
    return {
        "gbit_per_s": rate * 8e-9,
        # Full segments only. The acknowledgments in the other direction are not counted.
        "frames_per_s": rate / (mtu_bytes - _HEADERS_BYTES),
        "sender_copied": wire["tx_copied_bytes"] / moved,
        "receiver_copied": received["rx_copied_bytes"] / moved,
        "nic_copied": (wire["nic_copied_bytes"] + received["nic_copied_bytes"]) / moved,
        "driver_copied": wire["nic_driver_copied_bytes"] / sent,
        "retransmits": wire["tcp_retransmits"],
        "cpu_share": [sender["cpu_share"], sink["flows"][0]["cpu_share"]],
        "path": sender["host"]["path"],
    }


def _kernel(lab: Lab, flows: int, options: DpdkOptions) -> Report:
    here, there = lab.hosts
    kernel: list[str | Path] = ["--kernel"]
    words = _words(there.address, flows, options, [kernel, kernel])
    sender, _ = _tcp(words, (there, here), options.seconds)
    return {"gbit_per_s": sender["bytes"] * 8e-9 / sender["seconds"]}


def _raw(mtu_bytes: int, options: DpdkOptions) -> Report:
    seconds = max(1, round(options.seconds))
    wire = dpdk_wire.WireOptions("dpdk:net_memif0", "", seconds, mtu_bytes)
    stream: Report = dpdk_wire.run(wire)["stream"]
    return {name: stream[name] for name in ("gbit_per_s", "frames_per_s", "mode")}


def run(options: DpdkOptions, say: Say) -> Report:
    """Run all cases alternately; return medians and whether the goals are met."""
    results = []
    for mtu_bytes in options.mtus:
        rounds: dict[str, list[Report]] = {}
        with Lab(LabOptions(2, mtu_bytes)) as lab:
            for index in range(options.rounds):
                say(f"MTU {mtu_bytes}, round {index + 1} of {options.rounds}")
                rounds.setdefault("raw", []).append(_raw(mtu_bytes, options))
                for flows in options.flows:
                    for send in options.sends:
                        found = _harp(mtu_bytes, flows, send, options)
                        rounds.setdefault(f"harp {send} x{flows}", []).append(found)
                    found = _kernel(lab, flows, options)
                    rounds.setdefault(f"kernel x{flows}", []).append(found)
        results.append(_result(mtu_bytes, rounds, options))
    return {
        "options": asdict(options),
        "message_bytes": MESSAGE_BYTES,
        "depth": DEPTH,
        "results": results,
        "ok": all(all(result["met"].values()) for result in results),
    }


COPIES = ("sender_copied", "receiver_copied", "nic_copied", "driver_copied")


def _result(mtu_bytes: int, rounds: dict[str, list[Report]], options: DpdkOptions) -> Report:
    medians: dict[str, Report] = {}
    for name, runs in rounds.items():
        numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
        medians[name] = {key: statistics.median(run[key] for run in runs) for key in numbers}
    return {
        "mtu_bytes": mtu_bytes,
        "median": medians,
        "rounds": rounds,
        "met": _met(mtu_bytes, medians, rounds, options),
    }


def _met(
    mtu_bytes: int,
    medians: dict[str, Report],
    rounds: dict[str, list[Report]],
    options: DpdkOptions,
) -> dict[str, bool]:
    """Return the goals that apply to the cases that were run."""
    met = {}
    name = f"harp {options.sends[0]} x{options.flows[0]}"
    if goal := RATE_GOALS.get(mtu_bytes):
        rate = medians[name]["gbit_per_s"]
        met[f"{name}: {rate:.1f} Gbit/s of {goal:.0f}"] = rate >= goal
    if mtu_bytes == FRAMES_GOAL[0]:
        ratio = statistics.median(
            run["frames_per_s"] / raw["frames_per_s"]
            for run, raw in zip(rounds[name], rounds["raw"], strict=True)
        )
        met[f"{name}: {ratio:.2f} of the raw frames, {FRAMES_GOAL[1]} wanted"] = (
            ratio >= FRAMES_GOAL[1]
        )
    for send in ("frames", "external"):
        if send in options.sends:
            copied = medians[f"harp {send} x{options.flows[0]}"]["sender_copied"]
            met[f"{send}: {copied:.3g} bytes copied by the sender for each sent"] = copied < 1e-3
    return met
