# SPDX-License-Identifier: Apache-2.0
"""A verified stream over several NICs, one of which fails in the middle and recovers.

The switch between the two hosts shapes their rails, so that the line and not the processor is the
limit. The receiver's progress is measured.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from harp import output as console
from harp.bench import runner
from harp.bench.streams import (
    SINK,
    SOURCE,
    Sample,
    Stream,
    StreamOptions,
    pause_ns,
    rate_bytes_per_s,
)
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
from harp.lab import Lab, LabOptions, RailOptions
from harp.lab.rails import Rails

MBIT = 8e-6  # bytes per second to Mbit/s
PAUSE_GOAL_MS = 1000.0  # goal: at most this long without a received byte after a cut
CUTS = ("silent", "unplug", "down")
MESSAGE_BYTES = 65536
_SKIP_S = 1  # warm-up, which does not count
_QUEUE_MS = 5  # of the shaped rails
_KEYS = ("pause_ms", "back_ms", "before_mbit_per_s", "cut_mbit_per_s", "after_mbit_per_s")
_CUT_RAIL = 0  # the NIC of the lane that connected first
Say = Callable[[str], None]


@dataclass(frozen=True)
class FailoverOptions:
    """Hosts, stream and times of the cut; rates are per rail. use is HARP_RAILS."""

    mbit_per_s: float = 1000
    rails: int = 2
    rounds: int = 5
    seconds: float = 2  # before the cut
    cut: str = "silent"
    cut_s: float = 3
    after_s: float = 8  # a restored rail is tried again after 5 s at the latest
    use: str = "all"
    path: str = "auto"
    channels: int = 1
    shape: LabOptions = field(default_factory=LabOptions)  # MTU, offloads and family

    @property
    def lab(self) -> LabOptions:
        """Make two hosts with one NIC per rail."""
        further = (RailOptions(self.shape.mtu_bytes, self.shape.offload),) * (self.rails - 1)
        return replace(self.shape, rails=further)

    def stream(self) -> StreamOptions:
        """Return the stream of a job with HARP_RAILS=use."""
        variables = {"HARP_PATH": self.path, "HARP_RAILS": self.use}
        return StreamOptions(
            message_bytes=MESSAGE_BYTES, channels=self.channels, env=(variables, variables)
        )


def _shaped(lab: Lab, options: FailoverOptions) -> Rails:
    rails = Rails(lab)
    for rail in range(options.rails):
        rails.shape(rail, options.mbit_per_s, queue_ms=_QUEUE_MS)
    return rails


def _until(stream: Stream, at_ns: int) -> None:
    """Wait until the receiver's clock reaches this time."""
    samples = stream.ranks[SINK].samples
    stream.wait(
        lambda: bool(samples) and samples[-1].at_ns >= at_ns,
        "the time is over",
        (at_ns - time.monotonic_ns()) / 1e9 + 60,
    )


def _median(rounds: Sequence[dict[str, Any]], key: str) -> float:
    values = [found[key] for found in rounds if found[key] is not None]
    return statistics.median(values) if values else 0.0


def run_failover(options: FailoverOptions, say: Say) -> dict[str, Any]:
    """Run the rounds, each on new hosts; return them and their medians."""
    rounds = []
    for index in range(options.rounds):
        say(f"round {index + 1} of {options.rounds}")
        with Lab(options.lab) as lab:
            rounds.append(_failover_round(lab, options))
    pauses = [found["pause_ms"] for found in rounds]
    return {
        "options": asdict(options),
        "rounds": rounds,
        "median": {key: _median(rounds, key) for key in _KEYS},
        "longest_pause_ms": max(pauses),
        "goals": {"pause_ms": PAUSE_GOAL_MS},
        "ok": max(pauses) < PAUSE_GOAL_MS and all(found["back_ms"] for found in rounds),
    }


@contextmanager
def _cut(rails: Rails, options: FailoverOptions) -> Any:
    """Keep the rail cut inside the block."""
    if options.cut == "silent":
        rails.silence(_CUT_RAIL)
        yield
        rails.restore(_CUT_RAIL)
    elif options.cut == "unplug":
        rails.unplug(SINK, _CUT_RAIL)
        yield
        rails.plug(SINK, _CUT_RAIL)
    else:
        rails.down(SOURCE, _CUT_RAIL)
        yield
        rails.up(SOURCE, _CUT_RAIL)


def _failover_round(lab: Lab, options: FailoverOptions) -> dict[str, Any]:
    rails = _shaped(lab, options)
    with Stream(lab, options.stream()) as stream, _watched(rails, stream) as watched:
        begin_ns = time.monotonic_ns() + round(_SKIP_S * 1e9)
        _until(stream, begin_ns + round(options.seconds * 1e9))
        cut_ns = time.monotonic_ns()
        with _cut(rails, options):
            _until(stream, cut_ns + round(options.cut_s * 1e9))
            back_ns = time.monotonic_ns()
        end_ns = back_ns + round(options.after_s * 1e9)
        _until(stream, end_ns)
        total = stream.finish()
        samples = list(stream.ranks[SINK].samples)
        logs = [rank.log().splitlines() for rank in stream.ranks]
    used_ns = _used_again(watched, back_ns)
    middle_ns = cut_ns + pause_ns(samples, cut_ns, back_ns)
    return {
        "times_ms": {
            "begin": 0,
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
        "warnings": [line.partition("WARN ")[2] for log in logs for line in log if "WARN" in line],
        "timeline": _timeline(samples, watched, begin_ns, end_ns),
    }


@contextmanager
def _watched(rails: Rails, stream: Stream) -> Any:
    """Record the time and the bytes of frames that left the switch towards the receiver, by rail,
    whenever the receiver reports progress.
    """
    found: list[list[int]] = []
    over = threading.Event()

    def add(counts: list[int]) -> bool:
        found.append([time.monotonic_ns(), *counts])
        return not over.wait(stream.options.tick_ms / 1000)

    thread = threading.Thread(target=rails.watch, args=(SINK, add), name="rails")
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _used_again(watched: Sequence[list[int]], back_ns: int) -> int | None:
    """Return when the cut rail had carried a message's worth of bytes again; None: never."""
    base = None
    for at_ns, *counts in watched:
        if at_ns < back_ns:
            continue
        base = counts[_CUT_RAIL] if base is None else base
        if counts[_CUT_RAIL] - base >= 1 << 18:
            return at_ns
    return None


def _timeline(
    samples: Sequence[Sample], watched: Sequence[list[int]], begin_ns: int, end_ns: int
) -> dict[str, Any]:
    """Return times in ms since begin and Mbit/s by sample: received, and per rail."""
    received = [[_ms(sample.at_ns, begin_ns), sample.count] for sample in samples]
    frames = [[_ms(at_ns, begin_ns), *counts] for at_ns, *counts in watched]
    last_ms = _ms(end_ns, begin_ns)
    return {
        "received": _rates([row for row in received if 0 <= row[0] <= last_ms]),
        "rails": _rates([row for row in frames if 0 <= row[0] <= last_ms]),
    }


def _ms(at_ns: int, begin_ns: int) -> float:
    return (at_ns - begin_ns) / 1e6


def _rates(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Differences of rows of a time in ms and counts: the time, and each count's increase."""
    found = []
    for before, row in itertools.pairwise(rows):
        if row[0] > before[0]:
            grown = [new - old for new, old in zip(row[1:], before[1:], strict=True)]
            found.append([row[0], *(more * 1000 * MBIT / (row[0] - before[0]) for more in grown)])
    return found


def typical_round(report: dict[str, Any]) -> dict[str, Any]:
    """Return the round with the median pause (of two in the middle, the longer one)."""
    rounds: list[dict[str, Any]] = sorted(report["rounds"], key=lambda found: found["pause_ms"])
    return rounds[len(rounds) // 2]


def write_plot(report: dict[str, Any], file: Path) -> None:
    """Draw the median round."""
    found, options = typical_round(report), report["options"]
    figure = runner.figure(figsize=(9, 4))
    axes = figure.add_subplot()
    line = found["timeline"]["received"]
    axes.plot(*_columns(line, 1), color="black", lw=0.9, label="received and verified")
    for rail in range(options["rails"]):
        at, rate = _columns(found["timeline"]["rails"], rail + 1)
        axes.plot(at, rate, lw=0.7, alpha=0.8, label=f"frames on rail {rail}")
    times = found["times_ms"]
    axes.axvspan(times["cut"] / 1e3, times["back"] / 1e3, color="red", alpha=0.1)
    words = f"rail {_CUT_RAIL} cut ({options['cut']})"
    axes.annotate(words, (times["cut"] / 1e3, axes.get_ylim()[1]), va="top")
    axes.set(xlabel="s", ylabel="Mbit/s", xlim=(0, times["end"] / 1e3), ylim=(0, None))
    axes.set_title(
        f"{options['rails']} rails of {options['mbit_per_s']:.0f} Mbit/s,"
        f" HARP_RAILS={options['use']}, HARP_PATH={options['path']}:"
        f" {found['pause_ms']:.0f} ms without a byte",
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


# --------------------------------------------------------------------------------------------------
# The command.
#
@click.command()
@click.option(
    "--rate",
    "mbit_per_s",
    type=FiniteRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Of each rail, Mbit/s.",
)
@rounds_option(5)
@click.option(
    "--seconds", type=FiniteRange(0.5, 60), default=2, show_default=True, help="Before the cut."
)
@click.option(
    "--cut",
    type=click.Choice(CUTS),
    default="silent",
    show_default=True,
    help="The switch drops all packets; the receiver's cable is pulled; the sender's NIC is down.",
)
@click.option(
    "--use",
    type=click.Choice(["backup", "all"]),
    default="all",
    show_default=True,
    help="HARP_RAILS.",
)
@plot_option
@channels_option
@lab_options
@path_option
@output_option
def failover(plot: Path | None, output: str, **given: Any) -> None:
    """Measure a verified stream whose first NIC fails in the middle, and recovers.

    Pause: the longest time after the cut without a byte at the receiver. Back: from the rail's
    return to data on it. Goals: every pause below a second, the rail used again in every round.
    Exit code 1 when a goal is missed, or a byte is lost, repeated or wrong. The JSON has the
    timelines.

    \b
    harpctl bench failover --plot failover.png
    harpctl bench failover --cut unplug --use backup --rounds 3 -o json
    """
    runner.check_plot(plot)
    options = FailoverOptions(shape=lab_shape(given), **given)
    report = run_failover(options, console.err.print)
    if plot is not None:
        write_plot(report, plot)
    show(report, output, lambda report: _print_failover(report, options), is_good=report["ok"])


def _print_failover(report: dict[str, Any], options: FailoverOptions) -> None:
    console.out.print(
        f"{options.rails} rails of {options.mbit_per_s:.0f} Mbit/s, {options.lab.words},"
        f" HARP_PATH={options.path}, HARP_RAILS={options.use}; rail 0 cut ({options.cut})"
        f" for {options.cut_s:g} s"
    )
    columns = ("round", "pause ms", "back ms", "Mbit/s before", "cut", "after")
    rows = []
    for name, found in [
        *((str(index + 1), found) for index, found in enumerate(report["rounds"])),
        ("median", report["median"]),
    ]:
        cells = ["never" if found[key] is None else f"{found[key]:.0f}" for key in _KEYS]
        rows.append((name, *cells))
    console.print_table(columns, rows)
    console.out.print(
        f"longest pause: {report['longest_pause_ms']:.0f} ms (goal: below"
        f" {PAUSE_GOAL_MS:.0f}), used again: "
        f"{sum(found['back_ms'] is not None for found in report['rounds'])} of {options.rounds}:"
        f" {VERDICT[report['ok']]}"
    )
