# SPDX-License-Identifier: Apache-2.0
"""Compares HARP and the kernel's TCP over a path that loses packets at random.

Both ends of a run use the same stack, and harp-tcp drives both stacks with the same loop. Offloads
are off for both, and a bridge in the middle drops packets (harp.lab.piped). Runs alternate, so that
noise affects all of them; results are medians. The processes run under SCHED_FIFO: preemption stops
a stack in a process, but only half of the kernel's stack, and other load is a property of neither.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from harp import _paths
from harp import output as console
from harp.bench.runner import MESSAGE_BYTES, End, Load, Say, known_median, run_tcp
from harp.cli.lab_options import VERDICT, ipv6_option, rounds_option, type_mtu
from harp.cli.options import FiniteRange, output_option, show
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions, require_programs
from harp.lab.piped import Dropper

HARP = "harp"
BASELINE = "cubic"  # Linux's default, to which the goals refer
PORTS = {"harp": 61000, "kernel": 7000}
STREAM_DEPTH = 16  # messages in flight in the stream test
RATIO_GOAL = 0.9  # goodput of HARP relative to cubic: at least; the inverse for times: at most
RESENT_GOAL = 1.5  # bytes retransmitted by HARP relative to bytes lost: at most


def _end(host: Host, kind: str) -> End:
    """Return an end of this kind: "harp", or a congestion control of the kernel."""
    if kind != HARP:
        return End(host, ["--kernel", "--cc", kind])
    library = _paths.find(_paths.XDP_LIBRARY).parent
    return End(host, ["--ifname", host.ifname, "--lib-dir", library])


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise HarpError for a congestion control that this kernel does not have."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    for kind in kinds:
        if kind != HARP and kind not in known:
            raise HarpError(
                f"this kernel has no congestion control {kind}; it has {', '.join(known)}",
                Exit.MISSING,
            )


@dataclass(frozen=True)
class LossOptions:
    losses: tuple[float, ...] = (0.001, 0.01, 0.03)  # shares of packets lost in each direction
    kinds: tuple[str, ...] = (HARP, BASELINE, "bbr", "reno")
    rounds: int = 7
    seconds: float = 2
    mtu_bytes: int = 1500
    ipv6: bool = False


def run_loss(options: LossOptions, say: Say) -> dict[str, Any]:
    """Measure a stream of messages and single messages for each loss and kind; return medians."""
    check_kinds(options.kinds)
    require_programs("chrt")
    results = []
    shape = LabOptions(2, options.mtu_bytes, offload=False, switch=True, ipv6=options.ipv6)
    with Lab(shape) as lab, Dropper(lab) as dropper:
        for host in lab.hosts:  # a run must not affect the next one
            host.sysctl("ipv4/tcp_no_metrics_save", 1)
        for loss in options.losses:
            rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in options.kinds}
            for index in range(options.rounds):
                say(f"loss {loss:.1%}, round {index + 1} of {options.rounds}")
                for kind in options.kinds:
                    seed = 1000 * index + round(loss * 1e6)
                    rounds[kind].append(_loss_round(lab, dropper, options, kind, loss, seed))
            results.append(_loss_result(loss, rounds))
    return {
        "options": asdict(options),
        "message_bytes": MESSAGE_BYTES,
        "results": results,
        "ok": all(all(result["met"].values()) for result in results),
    }


def _loss_round(
    lab: Lab, dropper: Dropper, options: LossOptions, kind: str, loss: float, seed: int
) -> dict[str, Any]:
    """Run each test once; times are in us."""
    result: dict[str, Any] = {}
    before = dropper.counts(0)
    resent = 0
    sender, receiver = (_end(host, kind) for host in lab.hosts)
    port = PORTS["harp" if kind == HARP else "kernel"]
    for test, depth in (("stream", STREAM_DEPTH), ("single", 1)):
        dropper.lose_both_ways(loss, seed)
        load = Load(depth=depth, seconds=options.seconds, realtime=1)
        report, _ = run_tcp(receiver, sender, lab.hosts[1].address, port, load)
        conn = report["flows"][0]["conn"]
        resent += conn["bytes_retransmitted"]
        result[f"{test}_gbit_per_s"] = report["bytes"] * 8e-9 / report["seconds"]
        for name in ("p50", "p99"):
            # Without a completed message, assume the duration of the run.
            times = report["message_ns"] or {name: options.seconds * 1e9}
            result[f"{test}_{name}_us"] = times[name] / 1e3
        result[f"{test}_conn"] = conn
    after = dropper.counts(0)
    if after["super_packets"]:
        raise HarpError("the path saw packets of more than one segment: an offload is on")
    lost = after["dropped_payload_bytes"] - before["dropped_payload_bytes"]
    result["lost_bytes"], result["resent_bytes"] = lost, resent
    result["resent_to_lost"] = resent / lost if lost else None
    return result


_MEDIANS = (
    *("stream_gbit_per_s", "stream_p50_us", "stream_p99_us"),
    *("single_gbit_per_s", "single_p50_us", "single_p99_us", "resent_to_lost"),
)


def _loss_result(loss: float, rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    medians = {
        kind: {name: known_median(run[name] for run in runs) for name in _MEDIANS}
        for kind, runs in rounds.items()
    }
    result: dict[str, Any] = {"loss": loss, "median": medians, "rounds": rounds}
    result["ratio"] = {
        kind: {
            name: medians[HARP][name] / median[name] if median[name] else 0.0
            for name in _MEDIANS[:-1]
        }
        for kind, median in medians.items()
        if HARP in medians and kind != HARP
    }
    result["met"] = _loss_met(result)
    return result


def _loss_met(result: dict[str, Any]) -> dict[str, bool]:
    met = {}
    if ratio := result["ratio"].get(BASELINE):
        met["goodput"] = ratio["stream_gbit_per_s"] >= RATIO_GOAL
        met["stream p99"] = ratio["stream_p99_us"] <= 1 / RATIO_GOAL
        met["single p99"] = ratio["single_p99_us"] <= 1 / RATIO_GOAL
    if resent := result["median"].get(HARP, {}).get("resent_to_lost"):
        met["resent"] = resent <= RESENT_GOAL
    return met


@click.command()
@click.option(
    "--loss",
    "losses",
    type=FiniteRange(0, 50),
    multiple=True,
    default=(0.1, 1, 3),
    help="Percentage of the TCP packets, in each direction; may be repeated.",
)
@click.option(
    "--against",
    "kinds",
    multiple=True,
    default=("cubic", "bbr", "reno"),
    help="The kernel's congestion control; may be repeated.",
)
@rounds_option(7)
@click.option("--seconds", type=FiniteRange(0.6, 60), default=2, help="Of each test.")
@click.option("--mtu", "mtu_bytes", type=type_mtu, default=1500, help="Bytes.")
@ipv6_option
@output_option
def loss(losses: tuple[float, ...], kinds: tuple[str, ...], output: str, **options: Any) -> None:
    """Compare HARP and kernel TCP over a path that loses packets at random; medians.

    Messages have 64 KiB: `stream` has 16 in flight, `single` one. A message's time ends when its
    receipt arrives. All offloads are off. Goals, relative to cubic: goodput and 99th percentiles
    are at most 10 % worse. HARP retransmits at most 1.5 times the bytes lost. Exit code 1 if one is
    missed.

    \b
    harpctl bench loss
    harpctl bench loss --loss 1 --rounds 3 --against cubic -o json
    """
    shares = tuple(percent / 100 for percent in losses)
    report = run_loss(LossOptions(shares, (HARP, *kinds), **options), console.say)
    show(report, output, _print_loss, is_good=report["ok"])


def _print_loss(report: dict[str, Any]) -> None:
    options = report["options"]
    console.out.print(
        f"medians of {options['rounds']} rounds, messages of {report['message_bytes']} bytes,"
        f" MTU {options['mtu_bytes']}, offloads off"
    )
    columns = (
        *("loss", "", "stream Gbit/s", "p50 us", "p99 us", "single p50 us", "p99 us"),
        *("HARP/: rate", "stream p99", "single p99", "resent/lost"),
    )
    rows: list[tuple[str, ...]] = []
    for result in report["results"]:
        for kind, median in result["median"].items():
            values = ("stream_p50_us", "stream_p99_us", "single_p50_us", "single_p99_us")
            cells = [f"{median['stream_gbit_per_s']:.2f}"]
            cells += [f"{median[name]:.0f}" for name in values]
            if ratio := result["ratio"].get(kind):
                ratios = (ratio["stream_gbit_per_s"], ratio["stream_p99_us"])
                cells += [f"{value:.2f}" for value in (*ratios, ratio["single_p99_us"])]
            else:
                cells += ["", "", ""]
            resent = median["resent_to_lost"]
            rows.append((f"{result['loss']:.1%}", kind, *cells, f"{resent:.2f}"))
    console.print_table(columns, rows)
    for result in report["results"]:
        verdicts = ", ".join(f"{name} {VERDICT[is_met]}" for name, is_met in result["met"].items())
        console.out.print(f"loss {result['loss']:.1%}: {verdicts}")
