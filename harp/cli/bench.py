# SPDX-License-Identifier: Apache-2.0
"""harpctl bench: wire, lat, bw, idle and allreduce; the others are in modules of their own."""

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harp import output as console
from harp.bench import dpdk_wire, runner
from harp.cli.dpdk import dpdk
from harp.cli.failover import failover, rails
from harp.cli.lab_options import lab_options, lab_shape, nic_option, path_option, plugin_option
from harp.cli.nccl import nccl
from harp.cli.options import FiniteRange, output_option
from harp.cli.versus import fairness, loss
from harp.errors import Exit
from harp.lab import Lab, LabOptions, memif


@click.group()
def bench() -> None:
    """Measures between hosts made on this machine (network namespaces). Needs root.

    \b
    harpctl bench nccl                     HARP's paths and NCCL's sockets, NCCL's traffic
    harpctl bench lat --baseline           HARP and kernel TCP in one run
    harpctl bench bw --mtu 9000 -o json
    harpctl bench bw --ipv6
    harpctl bench bw --nic dpdk-memif      on DPDK: lat, bw, allreduce and idle
    harpctl bench allreduce --hosts 4
    harpctl bench idle                     what waiting costs
    harpctl bench wire                     raw AF_XDP frames: the limit
    harpctl bench wire --nic dpdk:SPEC     raw frames on DPDK
    harpctl bench loss                     HARP and kernel TCP over a path that loses packets
    harpctl bench fairness                 both at once through one bottleneck
    harpctl bench rails                    one NIC, another, all at once
    harpctl bench failover                 a NIC that is cut off under a stream, and comes back
    harpctl bench dpdk                     raw frames and HARP over memif, kernel TCP beside
    """


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of lat, bw, allreduce and idle."""
    for option in (
        click.option("-b", "--min-bytes", metavar="SIZE", help="First size (K, M, G)."),
        click.option("-e", "--max-bytes", metavar="SIZE", help="Last size."),
        click.option("-n", "--iterations", type=click.IntRange(1), help="Messages of each size."),
        click.option("--channels", type=click.IntRange(1, 32), default=1, show_default=True),
        click.option("--abi", type=click.IntRange(6, 12), help="ncclNetPlugin_vN to use."),
        click.option("--encrypt", is_flag=True, help="Sealed lanes, with a key of this run's."),
        click.option("--timeout", type=FiniteRange(0.1), default=60.0, show_default=True),
    ):
        command = option(command)
    return lab_options(path_option(nic_option(plugin_option(output_option(command)))))


@contextmanager
def _progress_bar(enabled: bool, title: str) -> Iterator[runner.Progress | None]:
    """A bar on a terminal, drawn on stderr; nothing elsewhere."""
    if not enabled or not console.err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console.err, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(event: dict[str, Any]) -> None:
            share = event["done"] / event["total"] if event["total"] else 0
            step = min(event["step"] + min(share, 1), event["steps"])
            bar.update(task, completed=step, total=event["steps"])

        yield advance


@contextmanager
def _sealing(encrypt: bool) -> Iterator[dict[str, str]]:
    """The variables of ranks that seal their lanes; none for those that don't."""
    if not encrypt:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="harp-key-") as folder:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32) + "\n")
        yield {"HARP_ENCRYPT": "aes-256-gcm", "HARP_KEY_FILE": str(key)}


def _run(mode: str, hosts: int, output: str, given: dict[str, Any]) -> None:
    shape = lab_shape(given, hosts)
    if given["nic"] == memif.NIC:  # before hosts are made
        memif.check(hosts, given["path"])
    encrypt = given.pop("encrypt")
    with (
        _sealing(encrypt) as environment,
        Lab(shape) as lab,
        _progress_bar(output == "table", f"bench {mode}") as progress,
    ):
        timeout_s = given.pop("timeout")
        options = runner.BenchOptions(mode, timeout_s=timeout_s, environment=environment, **given)
        report = runner.run_bench(lab, options, progress)
    report["lab"] = asdict(shape)
    report["encrypt"] = encrypt
    report["nic"] = given["nic"]
    if output == "json":
        console.print_json(report)
    else:
        _print(mode, report)
    if not report["ok"]:
        raise click.exceptions.Exit(Exit.FAILURE)


def _print(mode: str, report: dict[str, Any]) -> None:
    console.out.print(
        f"NET/{report['net']} v{report['abi']}, {report['ranks']} ranks, {report['channels']}"
        f" channel(s), {LabOptions(**report['lab']).words}"
        + ("" if report["nic"] == "veth" else f", {report['nic']}")
        + (", sealed lanes" if report["encrypt"] else ""),
        markup=False,
    )
    path = runner.path(report)
    if path:
        console.out.print(f"path: {path}", markup=False)
    rows = [_ROWS[mode](result) for result in report["results"]]
    columns = list(rows[0]) if rows else ["size B"]
    cells = [list(row.values()) for row in rows]
    console.print_table(columns, cells)
    if report["ok"]:
        console.out.print("wrong results: 0")
    else:
        console.out.print(f"FAILED: {report['error']}", markup=False)


def _latency_row(result: dict[str, Any]) -> dict[str, str]:
    half = result["half_round_trip"]
    row = {"size B": str(result["size_bytes"]), "count": str(half["count"])}
    for name in ("min", "p50", "p90", "p99", "p99_9"):
        row[f"{name.replace('_', '.')} us"] = f"{half[f'{name}_us']:.2f}"
    row["wrong"] = str(result["wrong"])
    if base := result.get("baseline_half_round_trip"):
        row["tcp p50"] = f"{base['p50_us']:.2f}"
        row["tcp p99"] = f"{base['p99_us']:.2f}"
        row["p50/tcp"] = f"{result['p50_ratio']:.2f}"
    return row


def _bandwidth_row(result: dict[str, Any]) -> dict[str, str]:
    row = {
        "size B": str(result["size_bytes"]),
        "count": str(result["messages"]),
        "GB/s": f"{result['rate_gb_per_s']:.3f}",
        "Gbit/s": f"{result['rate_gb_per_s'] * 8:.2f}",
        "msg/s": f"{result['messages_per_s']:.0f}",
        "tx s/GB": f"{result['sender_cpu_s_per_gb']:.3f}",
        "rx s/GB": f"{result['receiver_cpu_s_per_gb']:.3f}",
        "wrong": str(result["wrong"]),
    }
    if base := result.get("baseline"):
        row["tcp GB/s"] = f"{base['rate_gb_per_s']:.3f}"
        row["ratio"] = f"{result['rate_ratio']:.2f}"
    return row


def _allreduce_row(result: dict[str, Any]) -> dict[str, str]:
    return {
        "size B": str(result["size_bytes"]),
        "count": str(result["count"]),
        "type": result["type"],
        "redop": result["redop"],
        "time us": f"{result['time_us']:.2f}",
        "algbw GB/s": f"{result['algbw_gb_per_s']:.3f}",
        "busbw GB/s": f"{result['busbw_gb_per_s']:.3f}",
        "cpu s/GB": f"{result['cpu_s_per_gb']:.3f}",
        "wrong": str(result["wrong"]),
    }


def _idle_row(result: dict[str, Any]) -> dict[str, str]:
    return {
        "rank": str(result["rank"]),
        "asleep % of a core": f"{result['asleep_cpu_percent']:.3f}",
        "wakes/s": f"{result['asleep_wakes_per_s']:.1f}",
        "waiting %": f"{result['waiting_cpu_percent']:.3f}",
        "waiting wakes/s": f"{result['waiting_wakes_per_s']:.1f}",
        "(NCCL's own poll %)": f"{result['polling_cpu_percent']:.1f}",
    }


_ROWS = {
    "lat": _latency_row,
    "bw": _bandwidth_row,
    "allreduce": _allreduce_row,
    "idle": _idle_row,
}
_baseline = click.option("--baseline", is_flag=True, help="Also a bare kernel TCP socket.")


@bench.command()
@_baseline
@_common
def lat(output: str, **given: Any) -> None:
    """Ping-pong through the plugin: half round trip, percentiles.

    \b
    harpctl bench lat --baseline
    harpctl bench lat -b 8 -e 64K --path kernel -o json
    """
    _run("lat", 2, output, given)


@bench.command()
@_baseline
@click.option("--bidirectional", is_flag=True, help="Both directions at once, rates added.")
@_common
def bw(output: str, **given: Any) -> None:
    """A stream from one host to the other, with CPU seconds a gigabyte.

    \b
    harpctl bench bw --mtu 9000 --baseline
    harpctl bench bw --plugin /opt/other/libnccl-net-other.so
    """
    _run("bw", 2, output, given)


@bench.command()
@click.option("--hosts", type=click.IntRange(2, 4), default=2, show_default=True)
@click.option("--low-latency", is_flag=True, help="NCCL's LL protocol instead of Simple.")
@_common
def allreduce(hosts: int, output: str, **given: Any) -> None:
    """Ring all-reduce of float32 over all hosts, with nccl-tests' columns; results are checked.

    \b
    harpctl bench allreduce --hosts 3 -b 8 -e 16M
    """
    _run("allreduce", hosts, output, given)


@bench.command()
@click.option("--hosts", type=click.IntRange(2, 4), default=2, show_default=True)
@click.option("--seconds", type=FiniteRange(0.1), default=60.0, show_default=True)
@_common
def idle(hosts: int, output: str, **given: Any) -> None:
    """Processor time of ranks that wait with connections open, first asleep, then polling.

    Asleep, NCCL calls nothing: all of it is HARP's. Waiting, NCCL's progress thread polls for a
    rank that is late, and counted is what the rest of the process takes. Both are meant to stay
    below 1 %.

    \b
    harpctl bench idle --seconds 10
    HARP_DRIVE=dedicated harpctl bench idle
    """
    _run("idle", hosts, output, given)


@bench.command()
@lab_options
@click.option("--seconds", type=click.IntRange(1, 60), default=3, show_default=True)
@click.option(
    "--xdp",
    type=click.Choice(["auto", "generic", "native"]),
    default="auto",
    show_default=True,
    help="XDP mode.",
)
@click.option("--size", type=click.IntRange(62, 65535), help="Frame, bytes (default: the MTU's).")
@click.option("--nic", metavar="dpdk:SPEC", help="A DPDK port to send from, instead of AF_XDP.")
@click.option("--peer", metavar="dpdk:SPEC", default="", help="The port that receives.")
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
    """Raw AF_XDP frames one way and raw ping-pong, without any stack: the limit.

    With --nic the same on DPDK: a generator and a sink on harp.dpdk, a process each. A net_memif
    port without a role gets its peer by itself; other ports need --peer, or only send.

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
        raise click.UsageError("--peer is of a DPDK port: say --nic dpdk:SPEC, too")
    options = runner.WireOptions(seconds, xdp, size)
    with Lab(shape) as made:
        stream = runner.run_wire(made, "send", options)
        ping = runner.run_wire(made, "pingpong", runner.WireOptions(seconds, xdp))
    _print_wire({"stream": stream, "pingpong": ping}, shape.words, output)


def _print_wire(report: dict[str, Any], words: str, output: str) -> None:
    """pingpong may be None: there is no peer to answer."""
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


bench.add_command(loss)
bench.add_command(fairness)
bench.add_command(nccl)
bench.add_command(rails)
bench.add_command(failover)
bench.add_command(dpdk)
