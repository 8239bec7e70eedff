# SPDX-License-Identifier: Apache-2.0
"""harpctl bench loss: HARP and the kernel's TCP over a path that loses packets."""

from typing import Any

import click

from harp import output as console
from harp.bench import loss as runner
from harp.cli.complete import complete_congestion
from harp.cli.lab_options import ipv6_option, rounds_option, type_mtu
from harp.cli.options import FiniteRange, output_option
from harp.cli.result import VERDICT, show


@click.command()
@click.option(
    "--loss",
    "losses",
    type=FiniteRange(0, 50),
    multiple=True,
    default=(0.1, 1, 3),
    show_default=True,
    help="Per cent of the TCP packets, in each direction; may be repeated.",
)
@click.option(
    "--against",
    "kinds",
    multiple=True,
    default=("cubic", "bbr", "reno"),
    show_default=True,
    shell_complete=complete_congestion,
    help="The kernel's congestion control; may be repeated.",
)
@rounds_option(7)
@click.option(
    "--seconds", type=FiniteRange(0.6, 60), default=2, show_default=True, help="Of each test."
)
@click.option("--spin", is_flag=True, help="Neither HARP nor kernel sockets ever sleep.")
@click.option(
    "--cc", "harp_cc", metavar="NAME", help="HARP's congestion control, instead of its default."
)
@click.option(
    "--priority",
    type=click.Choice(["realtime", "normal"]),
    default="realtime",
    show_default=True,
    help="Of the measured processes, both kinds; a busy machine disturbs normal ones.",
)
@click.option("--mtu", "mtu_bytes", type=type_mtu, default=1500, show_default=True, help="Bytes.")
@ipv6_option
@output_option
def loss(
    losses: tuple[float, ...], kinds: tuple[str, ...], priority: str, output: str, **given: Any
) -> None:
    """Compare HARP and kernel TCP over a path that loses packets at random; medians.

    Messages of 64 KiB: `stream`, 16 of them unanswered, and `single`, one at a time. A message's
    time ends when its receipt is back. All offloads are off. Goals, against cubic: goodput and 99th
    percentiles within 10 % or better; HARP sends again at most 1.5 times the bytes lost. Exit code
    1 when one is missed.

    \b
    harpctl bench loss
    harpctl bench loss --loss 1 --rounds 3 --against cubic -o json
    """
    options = runner.LossOptions(
        losses=tuple(share / 100 for share in losses),
        kinds=(runner.HARP, *kinds),
        realtime=priority == "realtime",
        **given,
    )
    report = runner.run_loss(options, console.err.print)
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
        words = ", ".join(f"{name} {VERDICT[good]}" for name, good in result["met"].items())
        console.out.print(f"loss {result['loss']:.1%}: {words}")
