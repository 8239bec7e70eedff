# SPDX-License-Identifier: Apache-2.0
"""harpctl bench: idle and wire; the other benches have their own modules."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import dpdk_wire, runner
from harp.cli.connect import connect
from harp.cli.dpdk import dpdk
from harp.cli.failover import failover
from harp.cli.group import Group
from harp.cli.lab_options import (
    channels_option,
    hosts_option,
    lab_options,
    lab_shape,
    nic_option,
    path_option,
)
from harp.cli.loss import loss
from harp.cli.nccl import nccl
from harp.cli.nccl_real import nccl_real
from harp.cli.options import FiniteRange, output_option, plugin_option
from harp.cli.result import show
from harp.cli.torch import torch
from harp.lab import Lab, LabOptions, memif


@click.group(cls=Group)
def bench() -> None:
    """Measure HARP between hosts made on this machine (network namespaces). Needs root.

    \b
    harpctl bench nccl
    harpctl bench nccl --setting 1500-on --shape allreduce --rounds 3
    harpctl bench wire --nic dpdk:net_memif0
    """


@contextmanager
def _encryption(encrypt: bool) -> Iterator[dict[str, str]]:
    """Environment variables of ranks that encrypt their lanes; none for the others."""
    if not encrypt:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="harp-key-") as folder:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32) + "\n")
        yield {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(key)}


def _print_idle(report: dict[str, Any]) -> None:
    console.out.print(
        f"NET/{report['net']}, {report['ranks']} ranks, {report['channels']} channel(s),"
        f" {LabOptions(**report['lab']).words}"
        + ("" if report["nic"] == "veth" else f", {report['nic']}")
        + (", encrypted lanes" if report["encrypt"] else ""),
        markup=False,
    )
    path = runner.path(report)
    if path:
        console.out.print(f"path: {path}", markup=False)
    rows = [
        {
            "rank": str(result["rank"]),
            "asleep % of a core": f"{result['asleep_cpu_percent']:.3f}",
            "wakes/s": f"{result['asleep_wakes_per_s']:.1f}",
            "waiting %": f"{result['waiting_cpu_percent']:.3f}",
            "waiting wakes/s": f"{result['waiting_wakes_per_s']:.1f}",
            "(NCCL's own poll %)": f"{result['polling_cpu_percent']:.1f}",
        }
        for result in report["results"]
    ]
    console.print_table(list(rows[0]) if rows else ["rank"], [list(row.values()) for row in rows])
    if not report["ok"]:
        console.out.print(f"FAILED: {report['error']}", markup=False)


@bench.command()
@hosts_option
@click.option(
    "--seconds", type=FiniteRange(0.1), default=60.0, show_default=True, help="Of each wait."
)
@channels_option
@click.option("--encrypt", is_flag=True, help="Encrypt the lanes with a key made for this run.")
@click.option(
    "--timeout",
    type=FiniteRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds without progress after which the ranks end.",
)
@lab_options
@path_option
@nic_option
@plugin_option
@output_option
def idle(hosts: int, output: str, **given: Any) -> None:
    """Measure processor time of ranks that wait with connections open: asleep, then polling.

    Asleep, NCCL calls nothing, and the plugin uses all of the time. Waiting, NCCL's progress thread
    polls for a rank that is late, and the time of all other threads counts. The goal of both is
    below 1 %.

    \b
    harpctl bench idle --seconds 10
    harpctl bench idle --seconds 10 --nic dpdk-memif
    """
    shape = lab_shape(given, hosts)
    if given["nic"] == memif.NIC:  # before the hosts are made
        memif.check(hosts, given["path"])
    encrypt = given.pop("encrypt")
    with _encryption(encrypt) as environment, Lab(shape) as lab:
        timeout_s = given.pop("timeout")
        options = runner.BenchOptions("idle", timeout_s=timeout_s, environment=environment, **given)
        report = runner.run_bench(lab, options)
    report |= {"lab": asdict(shape), "encrypt": encrypt, "nic": given["nic"]}
    show(report, output, _print_idle, is_good=report["ok"])


@bench.command()
@lab_options
@click.option(
    "--seconds", type=click.IntRange(1, 60), default=3, show_default=True, help="Of each test."
)
@click.option(
    "--xdp",
    type=click.Choice(["auto", "generic", "native"]),
    default="auto",
    show_default=True,
    help="XDP mode.",
)
@click.option("--size", type=click.IntRange(62, 65535), help="Frame, bytes (default: the MTU's).")
@click.option("--nic", metavar="dpdk:SPEC", help="A DPDK port to send from, instead of AF_XDP.")
@click.option("--peer", metavar="dpdk:SPEC", default="", help="The DPDK port that receives.")
@output_option
def wire(
    seconds: int,
    xdp: str,
    size: int | None,
    nic: str | None,
    peer: str,
    output: str,
    **lab: Any,
) -> None:
    """Measure raw AF_XDP frames one way and raw ping-pong, without any stack: the limit.

    With --nic, the same on DPDK: a generator and a sink of harp.dpdk, one process each. The command
    makes the peer of a net_memif port without a role. Other ports need --peer, or only send.

    \b
    harpctl bench wire --mtu 9000 --xdp native
    harpctl bench wire --nic dpdk:net_memif0
    harpctl bench wire --nic dpdk:0000:01:00.0 --peer dpdk:0000:01:00.1
    """
    shape = lab_shape(lab)
    if nic is not None:
        port = dpdk_wire.WireOptions(nic, peer, seconds, shape.mtu_bytes, size or 0)
        _print_wire(dpdk_wire.run(port), f"MTU {shape.mtu_bytes}", output)
        return
    if peer:
        raise click.UsageError("--peer needs --nic dpdk:SPEC")
    options = runner.WireOptions(seconds, xdp, size)
    with Lab(shape) as made:
        stream = runner.run_wire(made, "send", options)
        ping = runner.run_wire(made, "pingpong", runner.WireOptions(seconds, xdp))
    _print_wire({"stream": stream, "pingpong": ping}, shape.words, output)


def _print_wire(report: dict[str, Any], words: str, output: str) -> None:
    """Print the report; pingpong is None without a peer that replies."""
    if output == "json":
        console.print_json(report)
        return
    stream, ping = report["stream"], report["pingpong"]
    console.out.print(f"{stream['mode']}, {words}")
    row = {
        "frame B": str(stream["frame_bytes"]),
        "frames/s": f"{stream['frames_per_s']:.0f}",
        "Gbit/s": f"{stream['gbit_per_s']:.2f}",
    }
    if ping is not None:
        rtt = {key: value for key, value in ping["rtt_ns"].items() if key != "count"}
        row |= {f"rtt {name} us": f"{value / 1e3:.2f}" for name, value in rtt.items()}
        row["lost"] = str(ping["lost"])
    console.print_table(list(row), [list(row.values())])


bench.add_command(connect)
bench.add_command(loss)
bench.add_command(nccl)
bench.add_command(nccl_real)
bench.add_command(failover)
bench.add_command(dpdk)
bench.add_command(torch)
