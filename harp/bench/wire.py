# SPDX-License-Identifier: Apache-2.0
"""harpctl bench wire: raw frames, on AF_XDP by harp-wire or on DPDK ports by harp.dpdk."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harp import _paths
from harp import output as console
from harp.bench import dpdk_wire
from harp.cli.lab_options import lab_options, lab_shape
from harp.cli.options import output_option
from harp.lab import Lab
from harp.lab.team import Team


@dataclass(frozen=True)
class WireOptions:
    """Options of harp-wire."""

    seconds: int = 3
    xdp: str = "auto"
    frame_bytes: int | None = None


def run_wire(lab: Lab, test: str, options: WireOptions) -> dict[str, Any]:
    """Run one harp-wire test (send, pingpong) from host 0 to host 1."""
    tool = _paths.find("harp-wire")
    library = _paths.find(_paths.XDP_LIBRARY).parent
    shared: list[str | Path] = ["--seconds", str(options.seconds), "--xdp", options.xdp]
    shared += ["--lib-dir", library]
    if options.frame_bytes is not None:
        shared += ["--size", str(options.frame_bytes)]
    client, server = lab.hosts[:2]
    with Team("harp-wire") as team:
        team.start(server, [tool, "serve", server.ifname, server.address, *shared], cpu=1)
        team.ready()
        team.start(client, [tool, test, client.ifname, server.address, *shared], cpu=0)
        report: dict[str, Any] = json.loads(team.finish()[1])
    return report


@click.command()
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
    options = WireOptions(seconds, xdp, size)
    with Lab(shape) as made:
        stream = run_wire(made, "send", options)
        ping = run_wire(made, "pingpong", WireOptions(seconds, xdp))
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
