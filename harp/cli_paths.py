# SPDX-License-Identifier: Apache-2.0
"""harpctl bench paths and attach: HARP's ways and kernel sockets side by side."""

from typing import Any

import click

from harp import output as console
from harp import paths as runner
from harp.attaching import ATTACH_TESTS, AttachOptions, run_attach
from harp.errors import Exit
from harp.lab import LabOptions
from harp.lab_options import lab_options, lab_shape
from harp.options import output_option

TITLES = {
    "lat": "half a round trip, us (p50; median of the rounds)",
    "bw": "one way, 8 messages in flight, Gbit/s (median of the rounds)",
}
_SUFFIXES = {"K": runner.KIB, "M": runner.MIB}


class Sizes(click.ParamType[tuple[int, ...]]):
    """8,64K,1M: sizes of messages, each once."""

    name = "SIZE,.."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        sizes = []
        for word in str(value).split(","):
            digits, unit = word[:-1], _SUFFIXES.get(word[-1:].upper())
            if unit is None:
                digits, unit = word, 1
            if not digits.isdecimal() or not 1 <= int(digits) * unit <= 64 * runner.MIB:
                self.fail(f"{word!r} is no size from 1 to 64M (K, M)", param, ctx)
            sizes.append(int(digits) * unit)
        if len(set(sizes)) < len(sizes):
            self.fail("a size is there twice", param, ctx)
        return tuple(sizes)


def size_words(size: int) -> str:
    """8, 4K, 64M."""
    for letter, unit in reversed(_SUFFIXES.items()):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


@click.command()
@lab_options
@click.option(
    "--sizes",
    type=Sizes(),
    default=runner.SIZES,
    help="Of the messages, bytes (K, M).  [default: 8 to 64M]",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option("--check", is_flag=True, help="Exit code 1 when auto missed the best way.")
@output_option
def paths(sizes: tuple[int, ...], rounds: int, check: bool, output: str, **lab: Any) -> None:
    """HARP auto, xdp and kernel, and NCCL's socket transport (1 and 2x8 sockets), side by side.

    The ways take turns for some rounds. auto/best: auto's time to that of the better of xdp and
    kernel, auto/sockets: to the better shape of kernel sockets, auto/it: to the kind that auto
    chose, forced; with 95 % intervals, below 1 auto is faster. Costs are compared within a round.
    Where xdp and kernel differ by more than 30 %, and four rounds of five agree which is better,
    auto has to send by the better kind (or be within 10 % of it) in four rounds of five, and
    nowhere may it take 30 % longer than kernel sockets (there are none with --ipv6). What auto
    chose is what the plugin counted. The sockets run without HARP and without an XDP program on
    either host.

    \b
    harpctl bench paths --check
    harpctl bench paths --mtu 9000 --offload off --sizes 8,4K,1M --rounds 3 -o json
    """
    shape = lab_shape(lab)
    report = runner.run_paths(runner.PathsOptions(shape, sizes, rounds), console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print_paths(report, shape)
    if check and not report["ok"]:
        raise click.exceptions.Exit(Exit.FAILURE)


def _print_paths(report: dict[str, Any], shape: LabOptions) -> None:
    print_rounds(report, shape)
    titles = report["ways"]
    columns = ("size", *titles.values(), "auto/best", "auto/sockets", "auto chose", "auto/it", "")
    for mode, rows in report["results"].items():
        console.out.print(f"\n{TITLES[mode]}")
        cells = [_paths_row(mode, row, list(titles)) for row in rows]
        console.print_table(columns, cells)
    print_missed(report)
    if report["ok"]:
        console.out.print("auto has found the best way wherever they differ")


def _paths_row(mode: str, row: dict[str, Any], ways: list[str]) -> list[str]:
    median, ratio = row["median"], row["ratio"]
    cells = [size_words(row["size_bytes"])]
    cells += [cost_words(mode, median[way]) for way in ways]
    sockets = [way for way in ways if way.startswith(runner.SOCKETS)]
    cells.append(interval_words(ratio[row["best"]]))
    cells.append(interval_words(ratio[min(sockets, key=median.__getitem__)]) if sockets else "")
    favourites = row["favourites"]
    chosen = sorted(set(favourites), key=favourites.count, reverse=True)
    cells.append(", ".join(f"{name} {favourites.count(name)}" for name in chosen))
    cells.append(interval_words(row["surplus"]) if row["surplus"] else "")
    alike = "unsure" if row["differ"] > runner.DIFFER else "alike"
    cells.append("MISSED" if row["missed"] else "right" if row["clear"] else alike)
    return cells


def print_rounds(report: dict[str, Any], shape: LabOptions) -> None:
    """How many there were, of what; and whether the machine kept its pace in them."""
    console.out.print(f"{report['rounds']} rounds by turns, {shape.words}")
    pace = report["pace"]
    uneven = sum(most > pace["steady_below"] * least for least, most in pace["rounds"])
    if pace["again"]:
        console.out.print(
            f"{pace['again']} were taken again, as the machine's pace changed in them; "
            f"in {uneven} of those kept it did, too"
        )


def print_missed(report: dict[str, Any]) -> None:
    """A line for each sentence of each row."""
    for mode, rows in report["results"].items():
        for row in rows:
            for words in row["missed"]:
                console.out.print(f"MISSED: {mode}, {size_words(row['size_bytes'])}: {words}")


def cost_words(mode: str, cost: float) -> str:
    """As TITLES has it: us, or Gbit/s of ns a byte."""
    return f"{cost if mode == 'lat' else 8 / cost:.2f}"


def interval_words(found: dict[str, float]) -> str:
    """1.02 [0.94, 1.04]."""
    return f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


@click.command()
@lab_options
@click.option("--rounds", type=click.IntRange(1, 50), default=7, show_default=True)
@output_option
def attach(rounds: int, output: str, **lab: Any) -> None:
    """What attaching HARP's XDP program costs the kernel's own TCP between two hosts.

    NCCL's socket transport, without a program and with HARP's in each mode by turns; no port is in
    its maps. `named` is what auto does with an interface that was named, `unnamed` with another:
    there it may cost 10 %, or HARP does not attach. `leased` is harpd's, with a lease that nobody
    uses: it may cost as much. `direct` is a generic program on the interface itself, as where there
    can be no device beside it. Exit code 1 when unnamed or leased costs more.

    \b
    harpctl bench attach --mtu 1500
    """
    shape = lab_shape(lab)
    report = run_attach(AttachOptions(shape, rounds), console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print_attach(report, shape)
    if not report["ok"]:
        raise click.exceptions.Exit(Exit.FAILURE)


def _print_attach(report: dict[str, Any], shape: LabOptions) -> None:
    console.out.print(
        f"speed of kernel TCP to that without a program, {report['rounds']} rounds by turns,"
        f" {shape.words}"
    )
    tests = list(ATTACH_TESTS)
    rows = [
        (mode, *(interval_words(found[test]) for test in tests))
        for mode, found in report["speed_ratio"].items()
    ]
    console.print_table(("", *tests), rows)
    for mode, words in report["refused"].items():
        console.out.print(f"{mode}: refused: {words}", markup=False)
    for mode in ("unnamed", "named", "leased"):
        if mode in report["why"]:
            console.out.print(f"{mode}: {report['why'][mode]}", markup=False)
    goal = f"(goal: at least {report['goals']['speed_ratio']})"
    if report["ok"]:
        console.out.print(f"unnamed and leased {goal}: met")
    else:
        console.out.print(f"unnamed and leased {goal}: MISSED: {', '.join(report['missed'])}")
