# SPDX-License-Identifier: Apache-2.0
"""harpctl bench lanes: kernel lanes by their number beside NCCL's sockets."""

from typing import Any

import click

from harp import lanes as runner
from harp import output as console
from harp.cli_paths import (
    TITLES,
    Sizes,
    cost_words,
    interval_words,
    print_missed,
    print_rounds,
    size_words,
)
from harp.errors import Exit, HarpError
from harp.lab import LabOptions
from harp.lab_options import lab_options, lab_shape, plugin_option
from harp.options import output_option


@click.command()
@lab_options
@click.option(
    "--sizes",
    type=Sizes(),
    default=runner.SIZES,
    help="Of the messages, bytes (K, M).  [default: 8,4K,64K,1M]",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@plugin_option
@click.option("--check", is_flag=True, help="Exit code 1 when lanes are slower than sockets.")
@output_option
def lanes(
    sizes: tuple[int, ...],
    rounds: int,
    plugin: str | None,
    check: bool,
    output: str,
    **lab: Any,
) -> None:
    """HARP_PATH=kernel with 1, 2, 16 and 2x8 lanes, beside NCCL's sockets in both shapes.

    1 and 2 lanes are compared with 1 socket, 16 and 2x8 with 2x8 sockets (2 threads with 8 each).
    The ways take turns; below 1 the lanes are faster. Slower by more than 30 % with the whole 95 %
    interval is a miss.

    \b
    harpctl bench lanes --check
    harpctl bench lanes --mtu 9000 --sizes 8,64K --rounds 3 -o json
    """
    shape = lab_shape(lab)
    if shape.ipv6:
        raise HarpError("lanes: the sockets that it measures speak IPv4 only", Exit.USAGE)
    report = runner.run_lanes(runner.LanesOptions(shape, sizes, rounds, plugin), console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print(report, shape)
    if check and not report["ok"]:
        raise click.exceptions.Exit(Exit.FAILURE)


def _print(report: dict[str, Any], shape: LabOptions) -> None:
    print_rounds(report, shape)
    titles, rivals = report["ways"], report["rivals"]
    ratios = [f"{titles[way]} to {titles[rival]}" for way, rival in rivals.items()]
    for mode, rows in report["results"].items():
        console.out.print(f"\n{TITLES[mode]}")
        cells = [
            [
                size_words(row["size_bytes"]),
                *(cost_words(mode, row["median"][way]) for way in titles),
                *(interval_words(row["ratio"][way]) for way in rivals),
            ]
            for row in rows
        ]
        console.print_table(("size", *titles.values(), *ratios), cells)
    print_missed(report)
