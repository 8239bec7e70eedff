# SPDX-License-Identifier: Apache-2.0
"""Measures a verified stream over several NICs, one of which fails in the middle and recovers.

The switch between the two hosts limits the rate of their rails, so that the rails and not the
processor are the bottleneck.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import runner
from harp.bench.runner import Say
from harp.bench.streams import SINK, Stream, StreamOptions, pause_ns, rate_bytes_per_s
from harp.cli.lab_options import (
    VERDICT,
    channels_option,
    lab_options,
    lab_shape,
    path_option,
    plot_option,
    rounds_option,
)
from harp.cli.options import FiniteRange, output_option, show
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails

MBIT = 8e-6  # bytes per second to Mbit/s
PAUSE_GOAL_MS = 1000.0  # goal: at most this long without a received byte after a cut
MESSAGE_BYTES = 65536
_SKIP_S = 1  # warm-up, which does not count
_QUEUE_MS = 5  # of the shaped rails
_KEYS = ("pause_ms", "back_ms", "before_mbit_per_s", "cut_mbit_per_s", "after_mbit_per_s")
_CUT_RAIL = 0  # the NIC of the lane that connected first


@dataclass(frozen=True)
class FailoverOptions:
    """Hosts, stream and times of the cut; rates are per rail. use is HARP_RAILS."""

    mbit_per_s: float = 1000
    rails: int = 2
    rounds: int = 5
    seconds: float = 2  # before the cut
    cut_s: float = 3
    after_s: float = 8  # HARP probes a restored rail after 5 s at the latest
    use: str = "all"
    path: str = "auto"
    channels: int = 1
    shape: LabOptions = field(default_factory=LabOptions)  # MTU, offloads and family

    @property
    def lab(self) -> LabOptions:
        return replace(self.shape, rails=self.rails)

    def stream(self) -> StreamOptions:
        variables = {"HARP_PATH": self.path, "HARP_RAILS": self.use}
        return StreamOptions(
            message_bytes=MESSAGE_BYTES, channels=self.channels, env=(variables, variables)
        )


def _until(stream: Stream, at_ns: int) -> None:
    """Wait until the receiver's clock reaches this time."""
    samples = stream.ranks[SINK].samples
    stream.wait(
        lambda: bool(samples) and samples[-1].at_ns >= at_ns,
        "the receiver's progress",
        (at_ns - time.monotonic_ns()) / 1e9 + 60,
    )


def run_failover(options: FailoverOptions, say: Say) -> dict[str, Any]:
    """Run the rounds, each on new hosts; return them and their medians."""
    rounds = []
    for index in range(options.rounds):
        say(f"round {index + 1} of {options.rounds}")
        with Lab(options.lab) as lab:
            rounds.append(_failover_round(lab, options))
    pauses = [result["pause_ms"] for result in rounds]
    return {
        "options": asdict(options),
        "rounds": rounds,
        "median": {key: runner.known_median(result[key] for result in rounds) for key in _KEYS},
        "longest_pause_ms": max(pauses),
        "ok": max(pauses) < PAUSE_GOAL_MS and all(result["back_ms"] for result in rounds),
    }


def _failover_round(lab: Lab, options: FailoverOptions) -> dict[str, Any]:
    rails = Rails(lab)
    for rail in range(options.rails):
        rails.shape(rail, options.mbit_per_s, queue_ms=_QUEUE_MS)
    with Stream(lab, options.stream()) as stream, _recorded(rails, stream) as counts:
        begin_ns = time.monotonic_ns() + round(_SKIP_S * 1e9)
        _until(stream, begin_ns + round(options.seconds * 1e9))
        cut_ns = time.monotonic_ns()
        rails.silence(_CUT_RAIL)
        _until(stream, cut_ns + round(options.cut_s * 1e9))
        back_ns = time.monotonic_ns()
        rails.restore(_CUT_RAIL)
        end_ns = back_ns + round(options.after_s * 1e9)
        _until(stream, end_ns)
        total = stream.finish()
        samples = list(stream.ranks[SINK].samples)
    used_ns = _used_again(counts, back_ns)
    middle_ns = cut_ns + pause_ns(samples, cut_ns, back_ns)
    return {
        "times_ms": {
            "cut": (cut_ns - begin_ns) / 1e6,
            "back": (back_ns - begin_ns) / 1e6,
            "end": (end_ns - begin_ns) / 1e6,
        },
        "bytes": total,
        "pause_ms": pause_ns(samples, cut_ns, back_ns) / 1e6,
        "back_ms": None if used_ns is None else (used_ns - back_ns) / 1e6,
        "before_mbit_per_s": rate_bytes_per_s(samples, begin_ns, cut_ns) * MBIT,
        "cut_mbit_per_s": rate_bytes_per_s(samples, middle_ns, back_ns) * MBIT,
        "after_mbit_per_s": rate_bytes_per_s(samples, used_ns or back_ns, end_ns) * MBIT,
        "timeline": {
            "received": _rates([(item.at_ns, item.count) for item in samples], begin_ns, end_ns),
            "rails": _rates(counts, begin_ns, end_ns),
        },
    }


@contextmanager
def _recorded(rails: Rails, stream: Stream) -> Any:
    """Record the bytes that the switch sent to the receiver, by rail, at each tick."""
    rows: list[list[int]] = []
    over = threading.Event()

    def add(counts: list[int]) -> bool:
        rows.append([time.monotonic_ns(), *counts])
        return not over.wait(stream.options.tick_ms / 1000)

    thread = threading.Thread(target=rails.watch, args=(SINK, add), name="rails")
    thread.start()
    try:
        yield rows
    finally:
        over.set()
        thread.join()


def _used_again(rows: Sequence[list[int]], back_ns: int) -> int | None:
    """Return the time at which the cut rail had carried 256 KiB again; None: never."""
    base = None
    for at_ns, *counts in rows:
        if at_ns < back_ns:
            continue
        base = counts[_CUT_RAIL] if base is None else base
        if counts[_CUT_RAIL] - base >= 1 << 18:
            return at_ns
    return None


def _rates(rows: Iterable[Sequence[int]], begin_ns: int, end_ns: int) -> list[list[float]]:
    """Return times in ms since begin_ns, and Mbit/s of each count since the previous row."""
    result = []
    for (before_ns, *old), (at_ns, *new) in itertools.pairwise(rows):
        if begin_ns <= before_ns < at_ns <= end_ns:
            scale = 1e9 * MBIT / (at_ns - before_ns)
            rates = [(now - then) * scale for now, then in zip(new, old, strict=True)]
            result.append([(at_ns - begin_ns) / 1e6, *rates])
    return result


def write_plot(report: dict[str, Any], file: Path) -> None:
    rounds = sorted(report["rounds"], key=lambda result: float(result["pause_ms"]))
    median, options = rounds[len(rounds) // 2], report["options"]
    figure = runner.figure(figsize=(9, 4))
    axes = figure.add_subplot()
    received = _columns(median["timeline"]["received"], 1)
    axes.plot(*received, color="black", lw=0.9, label="received and verified")
    for rail in range(options["rails"]):
        seconds, rate = _columns(median["timeline"]["rails"], rail + 1)
        axes.plot(seconds, rate, lw=0.7, alpha=0.8, label=f"frames on rail {rail}")
    times = median["times_ms"]
    axes.axvspan(times["cut"] / 1e3, times["back"] / 1e3, color="red", alpha=0.1)
    axes.annotate(f"rail {_CUT_RAIL} cut", (times["cut"] / 1e3, axes.get_ylim()[1]), va="top")
    axes.set(xlabel="s", ylabel="Mbit/s", xlim=(0, times["end"] / 1e3), ylim=(0, None))
    axes.set_title(
        f"{options['rails']} rails of {options['mbit_per_s']:.0f} Mbit/s,"
        f" HARP_RAILS={options['use']}, HARP_PATH={options['path']}:"
        f" {median['pause_ms']:.0f} ms without a byte",
        fontsize=10,
    )
    axes.legend(loc="lower right", fontsize=8)
    runner.save_plot(figure, file)


def _columns(rows: Sequence[Sequence[float]], column: int) -> tuple[list[float], list[float]]:
    """Return seconds and Mbit/s, averaged over several samples so that a plot shows them."""
    step = max(1, len(rows) // 250)
    groups = [rows[at : at + step] for at in range(0, len(rows), step)]
    return (
        [group[-1][0] / 1e3 for group in groups],
        [statistics.fmean(row[column] for row in group) for group in groups],
    )


@click.command()
@click.option(
    "--rate", "mbit_per_s", type=FiniteRange(1, 100_000), default=1000, help="Of each rail, Mbit/s."
)
@rounds_option(5)
@click.option("--seconds", type=FiniteRange(0.5, 60), default=2, help="Before the cut.")
@click.option("--use", type=click.Choice(["backup", "all"]), default="all", help="HARP_RAILS.")
@plot_option
@channels_option
@lab_options
@path_option
@output_option
def failover(plot: Path | None, output: str, **arguments: Any) -> None:
    """Measure a verified stream whose first NIC fails in the middle and recovers.

    Pause: the longest time after the cut without a byte at the receiver. Back: the time from the
    recovery of the rail until it carries data. Goals: every pause is below a second, and the rail
    carries data again in every round. Exit code 1 if a goal is missed, or a byte is lost, repeated
    or wrong. The JSON has the timelines.

    \b
    harpctl bench failover --plot failover.png
    harpctl bench failover --use backup --rounds 3 -o json
    """
    runner.check_plot(plot)
    options = FailoverOptions(shape=lab_shape(arguments), **arguments)
    report = run_failover(options, console.say)
    if plot is not None:
        write_plot(report, plot)
    show(report, output, lambda report: _print_failover(report, options), is_good=report["ok"])


def _print_failover(report: dict[str, Any], options: FailoverOptions) -> None:
    console.out.print(
        f"{options.rails} rails of {options.mbit_per_s:.0f} Mbit/s, {options.lab.words},"
        f" HARP_PATH={options.path}, HARP_RAILS={options.use}; rail 0 cut"
        f" for {options.cut_s:g} s"
    )
    columns = ("round", "pause ms", "back ms", "Mbit/s before", "cut", "after")
    rows = []
    results = [*report["rounds"], report["median"]]
    for number, result in enumerate(results, 1):
        name = "median" if number == len(results) else number
        cells = ["never" if result[key] is None else f"{result[key]:.0f}" for key in _KEYS]
        rows.append((name, *cells))
    console.print_table(columns, rows)
    console.out.print(
        f"longest pause: {report['longest_pause_ms']:.0f} ms (goal: below"
        f" {PAUSE_GOAL_MS:.0f}), used again: "
        f"{sum(result['back_ms'] is not None for result in report['rounds'])} of {options.rounds}:"
        f" {VERDICT[report['ok']]}"
    )
