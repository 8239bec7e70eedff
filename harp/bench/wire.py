# SPDX-License-Identifier: Apache-2.0
"""harpctl bench wire: raw frames, on AF_XDP by harp-wire or on DPDK ports by harp.dpdk."""

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np

from harp import _paths
from harp import output as console
from harp.cli.lab_options import lab_options, lab_shape
from harp.cli.options import output_option, show
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab
from harp.lab.team import Team

PREFIX = "dpdk:"
PING_BYTES = 64  # on DPDK; harp-wire chooses its own
_ETHERNET_BYTES = 14
_BUFFER_BYTES = 2048
_BUFFERS = {False: 8191, True: 4095}  # bytes: small and large
_MEMIF_LARGE_BYTES = 16384
_ROUNDS = 2000
_BROADCAST = "ff:ff:ff:ff:ff:ff"
Command = list[str | Path]


# Functions that return the command of an end from its role and the peer's MAC address. The second
# is None if nothing receives.
Ends = tuple[Callable[[str, str], Command], Callable[[str, str], Command] | None]


def _run_ends(
    team: Team, roles: tuple[str, str], ends: Ends, hosts: Sequence[Host | None]
) -> list[dict[str, Any]]:
    """Run the second end until the first has measured; return both reports."""
    to, server = _BROADCAST, None
    if ends[1] is not None:
        server = team.start(hosts[1], ends[1](roles[1], _BROADCAST), cpu=1)
        to = team.ready() or to
    team.start(hosts[0], ends[0](roles[0], to), cpu=0).wait()
    if server is not None:
        server.terminate()
    return [json.loads(text) for text in reversed(team.finish())]


# ---- AF_XDP, by harp-wire between two hosts ----
def run_xdp(lab: Lab, seconds: int, frame_bytes: int, xdp: str) -> dict[str, Any]:
    """Measure frames from host 0 to host 1, and round trips."""

    def end(own: Host, peer: Host, size: int) -> Callable[[str, str], Command]:
        command: Command = [own.ifname, own.address, peer.address, "--xdp", xdp]
        command += ["--seconds", str(seconds)]
        command += ["--lib-dir", _paths.find(_paths.XDP_LIBRARY).parent]
        command += ["--size", str(size)] if size else []
        return lambda role, _to: [_paths.find("harp-wire"), role, *command]

    def both(roles: tuple[str, str], size: int = 0) -> list[dict[str, Any]]:
        client, server = lab.hosts[:2]
        ends = end(client, server, size), end(server, client, size)
        with Team("harp-wire") as team:
            return _run_ends(team, roles, ends, (client, server))

    sent, received = both(("send", "receive"), frame_bytes)
    took_s = received["seconds"] or 1e-9
    rates = {
        "frames_per_s": received["frames"] / took_s,
        "gbit_per_s": received["bytes"] * 8e-9 / took_s,
        "received": received["frames"],
    }
    ping, _ = both(("ping", "pong"))
    return {
        "stream": sent | rates | {"sent": sent["frames"]},
        "pingpong": ping | {"round_trips": ping["frames"], "rtt_ns": ping["rtt_ns"] or {}},
    }


# ---- DPDK, by the generator of harp.dpdk, one process for each port ----
def _port_specs(nic: str, peer: str, folder: Path) -> tuple[str, str]:
    """Return the specifications of the two ports, the generator's first. Empty second: no peer.

    A net_memif port without --peer gets a peer over a socket of this run. Any other port without
    --peer only sends, and the packets that its driver accepted count.
    """
    for spec in filter(None, (nic, peer)):
        if not spec.startswith(PREFIX):
            raise HarpError(f"{spec}: not dpdk:DEVICE, such as dpdk:net_memif0", Exit.USAGE)
    device, semicolon, rest = nic.removeprefix(PREFIX).partition(";")
    if peer or not device.startswith("net_memif") or "role=" in device:
        return nic, peer
    shared = f"{device},socket={folder}/memif.sock"
    return f"{shared},role=client{semicolon}{rest}", f"{shared},role=server{semicolon}{rest}"


def run_dpdk(
    nic: str, peer: str, seconds: int, mtu_bytes: int, frame_bytes: int = 0
) -> dict[str, Any]:
    """Measure a stream and, with a peer, round trips: {"stream": ..., "pingpong": ... or None}."""
    import_module("harp.dpdk")  # its error names what is missing
    size = frame_bytes or mtu_bytes + _ETHERNET_BYTES
    is_large = size > _BUFFER_BYTES
    room = _MEMIF_LARGE_BYTES if is_large else _BUFFER_BYTES
    shared = {
        "pool": {"count": _BUFFERS[is_large], "buffer_bytes": room},
        "port": {"mtu": max(mtu_bytes, size - _ETHERNET_BYTES)},
    }

    def end(spec: str, run: dict[str, Any]) -> Callable[[str, str], Command]:
        def command(role: str, to: str) -> Command:
            options = json.dumps(shared | ({"run": run | {"to": to}} if run else {}))
            port = spec.removeprefix(PREFIX)
            return [sys.executable, "-m", "harp.dpdk.worker", role, port, options]

        return command

    def both(roles: tuple[str, str], **run: Any) -> list[dict[str, Any]]:
        with Team("harp-wire") as team:
            first, second = _port_specs(nic, peer, team.folder)
            ends = end(first, run), end(second, {}) if second else None
            return _run_ends(team, roles, ends, (None, None))

    sent, *others = both(("send", "receive"), size=size, seconds=seconds)
    info, received = sent["info"], others[0] if others else sent
    copies = ", the driver copies" if info["driver_copies"] else ""
    stream = {
        "mode": f"dpdk {info['driver']}{copies}",
        "frame_bytes": size,
        "frames_per_s": received["packets_per_s"],
        "gbit_per_s": received["gbit_per_s"],
        "sent": sent,
        "received": others[0] if others else None,
    }
    if not others:
        return {"stream": stream, "pingpong": None}
    answered, _ = both(("ping", "pong"), size=PING_BYTES, rounds=_ROUNDS)
    times = answered["rtt_ns"]
    names = {"min": 0, "max": 100, "p50": 50, "p90": 90, "p99": 99}
    percentiles = np.percentile(times or [0], list(names.values()), method="higher").tolist()
    ping = {
        "round_trips": len(times),
        "lost": answered["sent"] - len(times),
        "rtt_ns": dict(zip(names, percentiles, strict=True)),
    }
    return {"stream": stream, "pingpong": ping}


@click.command()
@lab_options
@click.option("--seconds", type=click.IntRange(1, 60), default=3, help="Of each test.")
@click.option(
    "--xdp", type=click.Choice(["auto", "generic", "native"]), default="auto", help="XDP mode."
)
@click.option("--size", type=click.IntRange(62, 65535), help="Frame, bytes (default: the MTU's).")
@click.option("--nic", metavar="dpdk:SPEC", help="A DPDK port to send from, instead of AF_XDP.")
@click.option(
    "--peer",
    metavar="dpdk:SPEC",
    default="",
    show_default=False,
    help="The DPDK port that receives.",
)
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

    With --nic, measure DPDK: a generator and a sink of harp.dpdk, one process each. The command
    creates the peer of a net_memif port without a role. Other ports need --peer, or only send.

    \b
    harpctl bench wire --mtu 9000 --xdp native
    harpctl bench wire --nic dpdk:net_memif0
    harpctl bench wire --nic dpdk:0000:01:00.0 --peer dpdk:0000:01:00.1
    """
    shape = lab_shape(lab)
    title = shape.words
    if nic is not None:
        report = run_dpdk(nic, peer, seconds, shape.mtu_bytes, size or 0)
        title = f"MTU {shape.mtu_bytes}"
    elif peer:
        raise click.UsageError("--peer needs --nic dpdk:SPEC")
    else:
        with Lab(shape) as hosts:
            report = run_xdp(hosts, seconds, size or 0, xdp)
    show(report, output, lambda report: _print_wire(report, title))


def _print_wire(report: dict[str, Any], title: str) -> None:
    stream, ping = report["stream"], report["pingpong"]
    console.out.print(f"{stream['mode']}, {title}")
    row = {
        "frame B": str(stream["frame_bytes"]),
        "frames/s": f"{stream['frames_per_s']:.0f}",
        "Gbit/s": f"{stream['gbit_per_s']:.2f}",
    }
    if ping is not None:
        row |= {f"rtt {name} us": f"{value / 1e3:.2f}" for name, value in ping["rtt_ns"].items()}
        row["lost"] = str(ping["lost"])
    console.print_table(list(row), [list(row.values())])
