# SPDX-License-Identifier: Apache-2.0
"""Shared by benches: running harp-bench and harp-tcp, which measure in C, and plots."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp import _paths, files
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, memif
from harp.lab.team import Team, job_environment
from harp.plugin_log import path_in_use

KIB, MIB = 1 << 10, 1 << 20
ROOT_PORT = 7000
SOCKETS = "sockets"  # the transport of NCCL's own sockets
Say = Callable[[str], None]  # reports progress
_WRONG, _PEER_LOST = 1, 5
_EXIT_TEXTS = {_WRONG: "data arrived wrong", 3: "hang", 4: "plugin error", _PEER_LOST: "peer lost"}


def alternate(names: Sequence[str], rounds: int, say: Say) -> Iterator[str]:
    """Yield all names in each round, beginning with another name each time: the machine's speed
    changes.
    """
    for index in range(rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            say(f"round {index + 1}: {name}")
            yield name


@dataclass(frozen=True)
class Shape:
    """One run of harp-bench: a traffic pattern with several sizes."""

    name: str
    mode: str  # harp-bench's
    sizes: tuple[int, ...]
    ranks: int = 2
    channels: int = 1

    def argument(self, bytes_a_run: int, runs: tuple[int, int]) -> str:
        """Return harp-bench's --sizes: bytes, repetitions and warm-up repetitions of each.

        About bytes_a_run are moved for each size; runs: minimum and maximum of the repetitions.
        """
        arguments = []
        for size in self.sizes:
            count = min(max(runs[0], bytes_a_run // (size * self.channels)), runs[1])
            arguments.append(f"{size}:{count}:{max(1, count // 5)}")
        return ",".join(arguments)


def known_median(values: Iterable[float | None]) -> float:
    """Return the median of the values that are not None; 0 without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0


def transport_words(name: str) -> str:
    """Return a transport's name for people; name: HARP_PATH, or SOCKETS."""
    return "NCCL's sockets" if name == SOCKETS else f"HARP {name}"


def size_text(size: int) -> str:
    """Format a size: 8 B, 256 KiB, 64 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_us(mode: str, row: Mapping[str, Any]) -> float:
    """Return the time of one operation, from a row of harp-bench's report.

    An operation is half a round trip, a message of a stream, or a collective operation. The time is
    a median if harp-bench times each operation.
    """
    if mode == "bw":
        return float(row["window_us"]) / float(row["messages"])
    key = {"lat": "half_round_trip_us", "allreduce": "iteration_us"}.get(mode, "time_us")
    return float(row[key])


@dataclass(frozen=True)
class BenchOptions:
    """Options of harp-bench; None selects its default."""

    mode: str = "lat"
    plugin: str | Path | None = None
    path: str = "auto"
    sizes: str | None = None  # harp-bench's --sizes; idle has none
    channels: int = 1
    datacheck: bool = True
    seconds: float | None = None  # idle: seconds of each phase
    timeout_s: float = 60
    environment: Mapping[str, str] = field(default_factory=dict)  # set for every rank
    nic: str = "veth"  # or memif.NIC

    def arguments(self) -> list[str]:
        """Return harp-bench's command line, without rank and root."""
        arguments = [self.mode, "--plugin", str(_paths.plugin(self.plugin))]
        arguments += ["--channels", str(self.channels), "--timeout", str(self.timeout_s)]
        arguments += ["--datacheck", str(int(self.datacheck))]
        for name, value in (("--sizes", self.sizes), ("--seconds", self.seconds)):
            if value is not None:
                arguments += [name, str(value)]
        return arguments


def _start_rank(team: Team, lab: Lab, host: Host, options: BenchOptions) -> None:
    command: list[str | Path] = [_paths.find("harp-bench"), *options.arguments()]
    command += ["--rank", str(host.index), "--ranks", str(len(lab.hosts))]
    command += ["--root", lab.hosts[0].endpoint(ROOT_PORT), "--ifname", f"={host.ifname}"]
    env = {"HARP_PATH": options.path, **options.environment}
    if options.nic == memif.NIC:
        env |= memif.environment(lab.options, host.index, team.folder)
    team.start(host, command, cpu=host.index, env=job_environment(env))


def run_bench(lab: Lab, options: BenchOptions) -> dict[str, Any]:
    """Run one harp-bench per host; return rank 0's report. HarpError quotes the failed rank."""
    with Team("harp-bench") as team:
        for host in lab.hosts:
            _start_rank(team, lab, host, options)
        # Wrong data is a result, and its table is useful; every other failure is an error.
        printed, *_ = team.finish(good=(0, _WRONG), late=(_PEER_LOST,), texts=_EXIT_TEXTS)
        is_good = not any(process.returncode for process in team.processes)
    try:
        report: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise HarpError(f"harp-bench printed no JSON: {printed[:200]!r}") from None
    report["ok"] = report["ok"] and is_good
    return report


def path(report: dict[str, Any]) -> str:
    """Return the plugin's log line about its path; empty for plugins other than HARP's."""
    return path_in_use([str(entry["text"]) for entry in report["log"]])


# ---- Messages over TCP between two harp-tcp, on different processors ----
MESSAGE_BYTES = 65536
_FINISH_S = 60


@dataclass(frozen=True)
class End:
    """One end: its host (None: this one), and harp-tcp's options for its stack."""

    host: Host | None
    options: Sequence[str | Path]


@dataclass(frozen=True)
class Load:
    """Connections, messages in flight on each, and seconds; the first skip_s are not measured."""

    flows: int = 1
    depth: int = 16
    skip_s: float = 0.5
    seconds: float = 2
    verify: bool = False
    realtime: int = 0  # SCHED_FIFO's priority; 0: normal scheduling


def run_tcp(
    receiver: End, sender: End, address: str, port: int, load: Load
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the sender's report, and the receiver's report of each connection."""
    tool = _paths.find("harp-tcp")
    both: list[str | Path] = [address, str(port)]
    sink = [tool, "sink", *both, *receiver.options, "--count", str(load.flows), "-o", "json"]
    message = [tool, "message", *both, *sender.options, "--flows", str(load.flows)]
    message += ["--skip", str(load.skip_s), "--seconds", str(load.seconds), "-o", "json"]
    message += ["--size", str(MESSAGE_BYTES), "--depth", str(load.depth)]
    realtime = {"realtime": load.realtime} if load.realtime else {}
    with Team("harp-tcp") as team:
        team.start(
            receiver.host, [*sink, *(["--verify"] if load.verify else [])], cpu=-1, **realtime
        )
        team.ready()
        team.start(sender.host, message, cpu=0, **realtime)
        received, sent = team.finish(load.seconds + _FINISH_S)
    report: dict[str, Any] = json.loads(sent)
    return report, [json.loads(line) for line in received.splitlines()]


def figure(**options: Any) -> Any:
    """Return a new figure; HarpError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HarpError("--plot needs matplotlib: pip install matplotlib", Exit.MISSING) from None
    return Figure(layout="constrained", **options)


def check_plot(file: Path | None) -> None:
    """Raise HarpError before minutes of measuring if a plot cannot be written there."""
    if file is None:
        return
    formats = figure().canvas.get_supported_filetypes()
    if file.suffix.lstrip(".") not in formats:
        raise HarpError(f"{file}: end the name in .png or .svg", Exit.USAGE)
    files.check_writable(file)


def plot_times(
    panels: Sequence[tuple[str, Sequence[int], Mapping[str, Sequence[float]]]], file: Path
) -> None:
    """Plot the times of an all-reduce; a panel has a title, sizes, and times in us by label."""
    plot = figure(figsize=(5 * len(panels), 4))
    for index, (title, sizes, times) in enumerate(panels, 1):
        axes = plot.add_subplot(1, len(panels), index)
        for label, values in times.items():
            axes.loglog(sizes, values, marker="o", label=label)
        axes.set(title=title, xlabel="bytes", ylabel="time of an all-reduce, us")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    save_plot(plot, file)


def save_plot(plot: Any, file: Path) -> None:
    with files.writing(file):
        plot.savefig(file, dpi=90)
