# SPDX-License-Identifier: Apache-2.0
"""harpctl bench loss and fairness: HARP against the kernel's TCP over a bad path."""

from typing import Any

import click

from harp import output as console
from harp.bench import versus
from harp.cli.lab_options import ipv6_option, type_mtu
from harp.cli.options import FiniteRange, output_option
from harp.errors import Exit

_mtu = click.option("--mtu", type=type_mtu, default=1500, show_default=True, help="Bytes.")
_harp_cc = click.option("--cc", metavar="NAME", help="HARP's congestion control, not its default.")
_priority = click.option(
    "--priority",
    type=click.Choice(["realtime", "normal"]),
    default="realtime",
    show_default=True,
    help="Of the measured processes, both kinds; a busy machine disturbs normal ones.",
)
_WORDS = {True: "met", False: "MISSED"}


def _finish(report: dict[str, Any]) -> None:
    if not report["ok"]:
        raise click.exceptions.Exit(Exit.FAILURE)


@click.command()
@click.option(
    "--loss",
    "losses",
    type=FiniteRange(0, 50),
    multiple=True,
    default=(0.1, 1, 3),
    show_default=True,
    help="Per cent of the TCP packets, in each direction; may be given again.",
)
@click.option(
    "--against",
    "kinds",
    multiple=True,
    default=("cubic", "bbr", "reno"),
    show_default=True,
    help="The kernel's congestion control; may be given again.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=7, show_default=True)
@click.option("--seconds", type=FiniteRange(0.6, 60), default=2, show_default=True)
@click.option("--spin", is_flag=True, help="Neither HARP nor kernel sockets ever sleep.")
@_harp_cc
@_priority
@_mtu
@ipv6_option
@output_option
def loss(
    losses: tuple[float, ...],
    kinds: tuple[str, ...],
    rounds: int,
    seconds: float,
    spin: bool,
    cc: str | None,
    priority: str,
    mtu: int,
    ipv6: bool,
    output: str,
) -> None:
    """HARP and kernel TCP over a path that loses packets at random, alternately; medians.

    Messages of 64 KiB: `stream`, 16 of them unanswered, and `single`, one at a time. A message's
    time ends when its receipt is back. All offloads are off. Goals, against cubic: goodput and 99th
    percentiles within 10 % or better; HARP sends again at most 1.5 times the bytes lost. Exit code
    1 when one is missed.

    \b
    harpctl bench loss
    harpctl bench loss --loss 1 --rounds 3 --against cubic -o json
    """
    options = versus.LossOptions(
        losses=tuple(share / 100 for share in losses),
        kinds=(versus.HARP, *kinds),
        rounds=rounds,
        seconds=seconds,
        mtu_bytes=mtu,
        ipv6=ipv6,
        realtime=priority == "realtime",
        spin=spin,
        harp_cc=cc,
    )
    report = versus.run_loss(options, console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print_loss(report)
    _finish(report)


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
        words = ", ".join(f"{name} {_WORDS[good]}" for name, good in result["met"].items())
        console.out.print(f"loss {result['loss']:.1%}: {words}")


@click.command()
@click.option("--rate", type=FiniteRange(1, 5000), default=100, show_default=True)
@click.option("--queue", type=click.IntRange(10_000), default=250_000, show_default=True)
@click.option("--flows", type=click.IntRange(1, 32), default=4, show_default=True)
@click.option("--against", default="cubic", show_default=True, metavar="NAME")
@click.option("--rounds", type=click.IntRange(1, 50), default=7, show_default=True)
@click.option("--seconds", type=FiniteRange(3, 300), default=15, show_default=True)
@click.option("--skip", type=FiniteRange(0.5, 100), default=5, show_default=True)
@click.option("--alone", is_flag=True, help="Twice as many flows of each kind alone, too.")
@_harp_cc
@_mtu
@ipv6_option
@output_option
def fairness(
    rate: float,
    queue: int,
    flows: int,
    against: str,
    rounds: int,
    seconds: float,
    skip: float,
    alone: bool,
    cc: str | None,
    mtu: int,
    ipv6: bool,
    output: str,
) -> None:
    """HARP's flows and as many of the kernel's at once through one bottleneck (tbf).

    --rate in Mbit/s, --queue in bytes: it is the path's only delay. Both kinds begin at once, and
    are counted at the receivers in the same --seconds but --skip. CPU: what sender and receiver
    took of a core. Goal: neither side has more than twice the other's share. Exit code 1 when it
    is missed.

    \b
    harpctl bench fairness
    harpctl bench fairness --rate 200 --queue 250000 --alone
    """
    if skip >= seconds:
        raise click.UsageError("--skip leaves nothing of --seconds")
    options = versus.FairnessOptions(
        mbit_per_s=rate,
        queue_bytes=queue,
        flows=flows,
        against=against,
        rounds=rounds,
        seconds=seconds,
        skip_s=skip,
        alone=alone,
        mtu_bytes=mtu,
        ipv6=ipv6,
        harp_cc=cc,
    )
    report = versus.run_fairness(options, console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print_fairness(report)
    _finish(report)


def _print_fairness(report: dict[str, Any]) -> None:
    options, median = report["options"], report["median"]
    console.out.print(
        f"{options['flows']} HARP flows and {options['flows']} of the kernel's"
        f" ({options['against']}) through {options['mbit_per_s']:.0f} Mbit/s with a queue of"
        f" {options['queue_bytes']} bytes, {'IPv6' if options['ipv6'] else 'IPv4'}"
    )
    columns = ("round", "HARP Mbit/s", "kernel Mbit/s", "larger/smaller", "Jain", "drops")
    rows = []
    for index, found in enumerate(report["rounds"]):
        each = [_flows(found, side) for side in ("harp", "kernel")]
        cpu = " | ".join(_cpu(found, side) for side in ("harp", "kernel"))
        rows.append((str(index + 1), *_fairness_cells(found), " | ".join(each), cpu))
    rows.append(("median", *_fairness_cells(median), "", ""))
    console.print_table((*columns, "flows", "CPU %"), rows)
    for side, runs in report["alone"].items():
        for found in runs:
            console.out.print(
                f"{side} alone: {found[f'{side}_mbit_per_s']:.0f} Mbit/s, Jain {found['jain']:.2f},"
                f" {found['drops']} drops, {_flows(found, side)}, CPU {_cpu(found, side)} %"
            )
    console.out.print(
        f"shares: {median['share_ratio']:.2f}"
        f" (goal: at most {report['goals']['share_ratio']:.0f}): {_WORDS[report['ok']]}"
    )


def _flows(found: dict[str, Any], side: str) -> str:
    return "+".join(f"{rate:.0f}" for rate in found[f"{side}_flows_mbit_per_s"])


def _cpu(found: dict[str, Any], side: str) -> str:
    return ", ".join(f"{share:.0%}".rstrip("%") for share in found[f"{side}_cpu_shares"])


def _fairness_cells(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{found['harp_mbit_per_s']:.0f}",
        f"{found['kernel_mbit_per_s']:.0f}",
        f"{found['share_ratio']:.2f}",
        f"{found['jain']:.2f}",
        f"{found['drops']:.0f}",
    )
