# SPDX-License-Identifier: Apache-2.0
"""harpctl bench dpdk: HARP's TCP compared with the speed of memif.

Memif is shared memory between two processes with one core each. Each round measures raw frames
(a generator and a sink, no stack), HARP's TCP on memif, and the kernel's TCP over a veth pair with
all offloads and no XDP program. Results are medians. Every receiver reads each byte of the payload.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from harp import _paths
from harp import output as console
from harp.bench.runner import MESSAGE_BYTES, End, Load, Say, run_tcp
from harp.bench.wire import run_dpdk
from harp.cli.lab_options import VERDICT, rounds_option, type_mtu
from harp.cli.options import FiniteRange, output_option, show
from harp.lab import Lab, LabOptions, memif

PORT = 61000
DEPTH = 16  # messages of a connection in flight
_HEADERS_BYTES = 52  # IPv4 and TCP with timestamps
# Goals: Gbit/s of verified payload over one connection, by MTU; data frames relative to raw frames
# at 1500.
RATE_GOALS = {1500: 40.0, 9000: 60.0}
FRAMES_GOAL = (1500, 0.5)
Report = dict[str, Any]

# Ways in which HARP's sender passes bytes to the stack, with harp-tcp's options.
SENDS = {
    "frames": ["--frames"],  # written into the stack's frames
    "external": ["--external"],  # registered memory, read in place
}


def _load(flows: int, seconds: float) -> Load:
    return Load(flows, DEPTH, seconds=Load.skip_s + seconds, verify=True)


def _harp(mtu_bytes: int, flows: int, send: str, seconds: float) -> Report:
    library = _paths.find("libharp-dpdk.so").parent
    with tempfile.TemporaryDirectory(prefix="harp-memif-") as name:
        texts = memif.port_texts(Path(name), mtu_bytes=mtu_bytes)
        ends: list[list[str | Path]] = [
            ["--ifname", f"dpdk:{text}", "--lib-dir", library, "--spin"] for text in texts
        ]
        receiver, sender = End(None, ends[0]), End(None, [*ends[1], *SENDS[send]])
        address = memif.address(memif.SERVER)
        report, sinks = run_tcp(receiver, sender, address, PORT, _load(flows, seconds))
    wire, received = report["host"]["stats"], sinks[0]["conn"]["stats"]
    moved = sum(sink["bytes"] for sink in sinks)
    rate = report["bytes"] / report["seconds"]
    return {
        "gbit_per_s": rate * 8e-9,
        # Full segments only. The acknowledgments in the other direction are not counted.
        "frames_per_s": rate / (mtu_bytes - _HEADERS_BYTES),
        "sender_copied": wire["tx_copied_bytes"] / moved,
        "receiver_copied": received["rx_copied_bytes"] / moved,
        "nic_copied": (wire["nic_copied_bytes"] + received["nic_copied_bytes"]) / moved,
        "driver_copied": wire["nic_driver_copied_bytes"] / wire["tx_bytes"],
        "retransmits": wire["tcp_retransmits"],
        "path": report["host"]["path"],
    }


def _kernel(lab: Lab, flows: int, seconds: float) -> Report:
    sender, receiver = (End(host, ["--kernel", "--spin"]) for host in lab.hosts)
    address = lab.hosts[1].address
    report, _ = run_tcp(receiver, sender, address, PORT, _load(flows, seconds))
    return {"gbit_per_s": report["bytes"] * 8e-9 / report["seconds"]}


def _raw(mtu_bytes: int, seconds: float) -> Report:
    whole_s = max(1, round(seconds))
    stream: Report = run_dpdk("dpdk:net_memif0", "", whole_s, mtu_bytes)["stream"]
    return {name: stream[name] for name in ("gbit_per_s", "frames_per_s", "mode")}


def run(mtus: Sequence[int], flows: Sequence[int], rounds: int, seconds: float, say: Say) -> Report:
    """Alternate all cases; return medians and whether the goals are met."""
    results = []
    for mtu_bytes in mtus:
        runs: dict[str, list[Report]] = {}
        with Lab(LabOptions(2, mtu_bytes)) as lab:
            for index in range(rounds):
                say(f"MTU {mtu_bytes}, round {index + 1} of {rounds}")
                runs.setdefault("raw", []).append(_raw(mtu_bytes, seconds))
                for count in flows:
                    for send in SENDS:
                        result = _harp(mtu_bytes, count, send, seconds)
                        runs.setdefault(f"harp {send} x{count}", []).append(result)
                    runs.setdefault(f"kernel x{count}", []).append(_kernel(lab, count, seconds))
        results.append(_result(mtu_bytes, runs, flows[0]))
    return {
        "rounds": rounds,
        "message_bytes": MESSAGE_BYTES,
        "depth": DEPTH,
        "results": results,
        "ok": all(all(result["met"].values()) for result in results),
    }


COPIES = ("sender_copied", "receiver_copied", "nic_copied", "driver_copied")


def _result(mtu_bytes: int, rounds: dict[str, list[Report]], flows: int) -> Report:
    medians: dict[str, Report] = {}
    for name, runs in rounds.items():
        numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
        medians[name] = {key: statistics.median(run[key] for run in runs) for key in numbers}
    return {
        "mtu_bytes": mtu_bytes,
        "median": medians,
        "rounds": rounds,
        "met": _met(mtu_bytes, medians, rounds, flows),
    }


def _met(
    mtu_bytes: int,
    medians: dict[str, Report],
    rounds: dict[str, list[Report]],
    flows: int,
) -> dict[str, bool]:
    met = {}
    name = f"harp frames x{flows}"
    if goal := RATE_GOALS.get(mtu_bytes):
        rate = medians[name]["gbit_per_s"]
        met[f"{name}: {rate:.1f} Gbit/s of {goal:.0f}"] = rate >= goal
    if mtu_bytes == FRAMES_GOAL[0]:
        ratio = statistics.median(
            run["frames_per_s"] / raw["frames_per_s"]
            for run, raw in zip(rounds[name], rounds["raw"], strict=True)
        )
        met[f"{name}: {ratio:.2f} of the raw frames, goal {FRAMES_GOAL[1]}"] = (
            ratio >= FRAMES_GOAL[1]
        )
    for send in SENDS:
        copied = medians[f"harp {send} x{flows}"]["sender_copied"]
        met[f"{send}: {copied:.3g} bytes copied by the sender per byte sent"] = copied < 1e-3
    return met


@click.command()
@click.option(
    "--mtu",
    "mtus",
    type=type_mtu,
    multiple=True,
    default=(1500, 9000),
    help="Bytes; may be repeated.",
)
@click.option(
    "--flows",
    type=click.IntRange(1, 256),
    multiple=True,
    default=(1, 16),
    help="Connections at once; may be repeated.",
)
@rounds_option(5)
@click.option("--seconds", type=FiniteRange(0.5, 60), default=2, help="Of each run.")
@output_option
def dpdk(output: str, **options: Any) -> None:
    """Compare raw frames and HARP's TCP over memif with kernel TCP over veth; medians.

    Two processes have one core each. The receiver reads every byte. HARP's sender writes into the
    stack's frames, or sends registered memory ("external"). Goals, for "frames" and the first
    number of connections: 40 Gbit/s of payload and half of the raw frame rate at MTU 1500, 60
    Gbit/s at 9000; the sender copies nothing. Exit code 1 if one is missed.

    \b
    harpctl bench dpdk
    harpctl bench dpdk --mtu 1500 --flows 1 --rounds 3 -o json
    """
    report = run(**options, say=console.say)
    show(report, output, _print, is_good=report["ok"])


def _print(report: dict[str, Any]) -> None:
    console.out.print(
        f"medians of {report['rounds']} rounds, messages of {report['message_bytes']} bytes,"
        f" {report['depth']} in flight; copied: bytes per byte of payload"
    )
    columns = ("MTU", "", "Gbit/s", "Mframes/s", "copied: sender", "receiver", "NIC", "driver")
    rows = []
    for result in report["results"]:
        for name, median in result["median"].items():
            frames = median.get("frames_per_s")
            copies = [f"{median[key]:.2f}" if key in median else "" for key in COPIES]
            frames_text = "" if frames is None else f"{frames / 1e6:.2f}"
            rate = f"{median['gbit_per_s']:.1f}"
            rows.append((str(result["mtu_bytes"]), name, rate, frames_text, *copies))
    console.print_table(columns, rows)
    for result in report["results"]:
        for name, is_met in result["met"].items():
            console.print_line(f"MTU {result['mtu_bytes']}, {name}: {VERDICT[is_met]}")
