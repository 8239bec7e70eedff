# SPDX-License-Identifier: Apache-2.0
"""harpctl bench dpdk."""

from typing import Any

import click

from harp import output as console
from harp.bench import dpdk as runner
from harp.cli.lab_options import rounds_option, type_mtu
from harp.cli.options import FiniteRange, output_option
from harp.cli.result import VERDICT, show


@click.command()
@click.option(
    "--mtu",
    "mtus",
    type=type_mtu,
    multiple=True,
    default=(1500, 9000),
    show_default=True,
    help="Bytes; may be repeated.",
)
@click.option(
    "--flows",
    type=click.IntRange(1, 256),
    multiple=True,
    default=(1, 16),
    show_default=True,
    help="Connections at once; may be repeated.",
)
@click.option(
    "--send",
    "sends",
    type=click.Choice(list(runner.SENDS)),
    multiple=True,
    default=tuple(runner.SENDS),
    show_default=True,
    help="How HARP's sender passes its bytes to the stack; may be repeated.",
)
@rounds_option(5)
@click.option(
    "--seconds", type=FiniteRange(0.5, 60), default=2, show_default=True, help="Of each run."
)
@output_option
def dpdk(output: str, **given: Any) -> None:
    """Compare raw frames and HARP's TCP over memif with kernel TCP over veth; medians.

    Two processes, one core each. The receiver reads every byte. Goals, for the first way to send
    and the first number of connections: 40 Gbit/s of payload at MTU 1500 and half of the raw frame
    rate, 60 Gbit/s at 9000; frames and registered memory are not copied. Exit code 1 when one is
    missed.

    \b
    harpctl bench dpdk
    harpctl bench dpdk --mtu 1500 --flows 1 --rounds 3 -o json
    """
    report = runner.run(runner.DpdkOptions(**given), console.err.print)
    show(report, output, _print, is_good=report["ok"])


def _print(report: dict[str, Any]) -> None:
    options = report["options"]
    console.out.print(
        f"medians of {options['rounds']} rounds, messages of {report['message_bytes']} bytes,"
        f" {report['depth']} on their way; copied: bytes for each of payload"
    )
    columns = ("MTU", "", "Gbit/s", "Mframes/s", "copied: sender", "receiver", "NIC", "driver")
    rows = []
    for result in report["results"]:
        for name, median in result["median"].items():
            frames = median.get("frames_per_s")
            copies = [f"{median[each]:.2f}" if each in median else "" for each in runner.COPIES]
            million = "" if frames is None else f"{frames / 1e6:.2f}"
            rate = f"{median['gbit_per_s']:.1f}"
            rows.append((str(result["mtu_bytes"]), name, rate, million, *copies))
    console.print_table(columns, rows)
    for result in report["results"]:
        for name, good in result["met"].items():
            console.out.print(f"MTU {result['mtu_bytes']}, {name}: {VERDICT[good]}", markup=False)
