# SPDX-License-Identifier: Apache-2.0
"""harpctl bench connect: how long NCCL's connections take to set up."""

from typing import Any

import click

from harp import output as console
from harp.bench import connect as runner
from harp.bench.nccl import SOCKETS
from harp.cli.lab_options import lab_options, lab_shape, rounds_option
from harp.cli.options import output_option
from harp.cli.result import show


@click.command()
@click.option(
    "--channels",
    type=click.IntRange(1, 32),
    multiple=True,
    default=(1, 16),
    show_default=True,
    help="Connections per direction at once; may be repeated.",
)
@rounds_option(7)
@lab_options
@output_option
def connect(channels: tuple[int, ...], rounds: int, output: str, **lab: Any) -> None:
    """Measure listen, connect and accept as NCCL calls them, until all connections are open.

    HARP_PATH=auto, xdp and kernel and NCCL's socket transport, alternated, each time in new
    processes. Times are us from the first connect to the last comm of a rank: the median of the
    rounds and their range.

    \b
    harpctl bench connect
    harpctl bench connect --channels 32 --rounds 3 -o json
    """
    options = runner.ConnectOptions(lab_shape(lab), channels, rounds)
    show(runner.run_connect(options, console.err.print), output, _print, is_good=True)


def _print(report: dict[str, Any]) -> None:
    columns = ("channels", "transport", "us", "range", "connections/s")
    rows = []
    for cell in report["cells"]:
        for name, found in cell["transports"].items():
            rows.append(
                (
                    cell["channels"],
                    "NCCL's sockets" if name == SOCKETS else f"HARP {name}",
                    f"{found['median_us']:.0f}",
                    f"{found['min_us']:.0f} to {found['max_us']:.0f}",
                    f"{found['connections_per_s']:.0f}",
                )
            )
    console.print_table(columns, rows)
    for name, words in report["paths"].items():
        if words:
            console.out.print(f"{name}: {words}", markup=False)
