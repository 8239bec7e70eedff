# SPDX-License-Identifier: Apache-2.0
"""HARP's ways and kernel sockets side by side, by message size.

The ways take turns, in another order each round, so that a noisy minute touches all of them.
The machine's speed changes from round to round, so ratios are of two costs of one round: their
median, with an interval from resampling the rounds (bootstrap).
"Kernel sockets" is NCCL's socket transport as tools/driver plays it, without any HARP in the
process and, which is checked, without an XDP program on either host.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from harp import _paths
from harp.bench import BenchOptions, run_bench
from harp.errors import HarpError
from harp.lab import Host, Lab, LabOptions
from harp.netns import in_namespace

Say = Callable[[str], None]
KIB, MIB = 1024, 1 << 20
SIZES = (8, 64, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
MODES = ("lat", "bw")
DIFFER = 1.3  # below that two ways are the same here: the noise
RIGHT_SHARE = 0.8  # of the rounds in which auto has to have chosen the best way, at least
NEAR = 1.1  # a round that cost at most so much more than the best way's is no wrong choice
STEADY = 1.5  # a round in which the same work takes so many times as long as at its best is none
_TRIES = 4  # of a round
_RESAMPLES = 2000


@dataclass(frozen=True)
class Way:
    """One of the competitors."""

    name: str
    title: str
    path: str = "auto"  # HARP_PATH
    sockets: bool = False  # NCCL's socket transport instead of HARP
    environment: Mapping[str, str] = field(default_factory=dict)


AUTO, XDP, KERNEL, SOCKETS = "auto", "xdp", "kernel", "sockets"
WAYS = (
    Way(AUTO, "HARP auto"),
    Way(XDP, "HARP xdp", "xdp"),
    Way(KERNEL, "HARP kernel", "kernel"),
    Way(
        SOCKETS,
        "1 socket",
        sockets=True,
        environment={"NCCL_SOCKET_NTHREADS": "0", "NCCL_NSOCKS_PERTHREAD": "1"},
    ),
    Way(
        "sockets2x8",
        "2x8 sockets",
        sockets=True,
        environment={"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8"},
    ),
)


@dataclass(frozen=True)
class Run:
    """What one run of one way found, by size in bytes."""

    cost: dict[int, float]  # lat: us, half a round trip; bw: ns a byte
    chose: dict[int, dict[str, int]]  # auto: messages by kind of lane


Measure = Callable[[Way, str], Run]
Pace = Callable[[], float]
Costs = Mapping[str, Sequence[float]]  # of each way, one for each round
Chose = Sequence[Mapping[str, int]]  # auto's messages by kind of lane, for each round
Verdict = Callable[[Costs, Chose], dict[str, Any]]


@dataclass
class Turns:
    """What rounds of ways by turns found."""

    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)  # by mode and way
    paces: list[tuple[float, float]] = field(default_factory=list)  # of each round: least, most
    again: int = 0  # rounds taken again, as the pace changed in them


@dataclass(frozen=True)
class PathsOptions:
    """What the side-by-side bench does."""

    lab: LabOptions = field(default_factory=LabOptions)
    sizes: tuple[int, ...] = SIZES
    rounds: int = 5


# --------------------------------------------------------------------------------------------------
# Measuring.
#
def _clamp(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


def sizes_argument(mode: str, sizes: Sequence[int]) -> str:
    """harp-bench's --sizes: fewer of the long ones; the warm-up is long enough to learn in."""
    words = []
    for size in sizes:
        if mode == "lat":
            count, warm = _clamp(16, 32 * MIB // size, 2000), _clamp(8, 64 * MIB // size, 500)
        else:
            count, warm = _clamp(16, 256 * MIB // size, 20000), _clamp(16, 256 * MIB // size, 1000)
        words.append(f"{size}:{count}:{warm}")
    return ",".join(words)


_REPORT = re.compile(r"messages sent, by size: (.*)")
_KIND = re.compile(r"(\d+) (HARP|kernel|both)")
_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB}


def class_bytes(size: int) -> int:
    """The size class that the plugin counts a message in: its longest."""
    return min(max(64, 1 << (size - 1).bit_length()), 64 * MIB)


def read_choices(lines: Sequence[str]) -> dict[int, dict[str, int]]:
    """What went how, by size class: the plugin's own words at the end of its comms."""
    counts: dict[int, dict[str, int]] = {}
    for line in lines:
        if not (found := _REPORT.search(line)):
            continue
        for entry in found[1].split("; "):
            title, kinds = entry.split(": ")
            number, unit = title.split()
            into = counts.setdefault(int(number) * _UNITS[unit], {})
            for count, kind in _KIND.findall(kinds):
                into[kind] = into.get(kind, 0) + int(count)
    return counts


def program_attached(host: Host) -> bool:
    """Is there an XDP program of anybody's on the host's interface, or on HARP's device beside it?
    The kernel's answer."""
    found: list[Any] = []

    def ask(ipr: Any) -> None:
        links = {link.get_attr("IFLA_IFNAME"): link for link in ipr.get_links()}
        link = links[host.ifname]
        beside = links.get(f"harp{link['index']}")
        found.extend(each for each in (link, beside) if each and _has_program(each))

    in_namespace(host.netns, ask)
    return bool(found)


def _has_program(link: Any) -> bool:
    return bool(link.get_nested("IFLA_XDP", "IFLA_XDP_ATTACHED"))


def check_bare(lab: Lab) -> None:
    """HarpError when an XDP program would disturb the baseline."""
    for host in lab.hosts:
        if program_attached(host):
            raise HarpError(f"{host.netns}: an XDP program is attached: that is no baseline")


def run_way(
    lab: Lab, sizes: Sequence[int], way: Way, mode: str, harp_plugin: str | None = None
) -> Run:
    """One run of one way; harp_plugin: another build of HARP than this one's."""
    if way.sockets:
        check_bare(lab)
    plugin = str(_paths.find(_paths.SOCKET_PLUGIN)) if way.sockets else harp_plugin
    options = BenchOptions(
        mode,
        plugin=plugin,
        path=way.path,
        sizes=sizes_argument(mode, sizes),
        datacheck=False,
        environment={**way.environment, "NCCL_DEBUG": "INFO"},
    )
    report = run_bench(lab, options)
    if way.sockets:
        check_bare(lab)
    if not report["ok"]:
        raise HarpError(f"{way.title}, {mode}: {report['error']}")
    costs = {row["size_bytes"]: cost_of(mode, row) for row in report["results"]}
    counts = read_choices(report["stderr"]) if way.name == AUTO else {}
    return Run(costs, {size: counts.get(class_bytes(size), {}) for size in sizes})


def cost_alone(lab: Lab, options: BenchOptions, words: str) -> float:
    """What a run of one size costs; HarpError that begins with those words if it went wrong."""
    report = run_bench(lab, options)
    if not report["ok"]:
        raise HarpError(f"{words}: {report['error']}")
    return cost_of(options.mode, report["results"][0])


def pace_of(lab: Lab) -> float:
    """How fast the machine is just now: us, half a round trip of 8 B over one kernel socket."""
    options = BenchOptions("lat", path=KERNEL, sizes="8:500:200", datacheck=False)
    return cost_alone(lab, options, "the machine's pace")


def cost_of(mode: str, row: dict[str, Any]) -> float:
    """Of one row of harp-bench's report: us half a round trip, or ns a byte."""
    if mode == "lat":
        return float(row["half_round_trip"]["p50_us"])
    # Not from the rate, which is rounded: nothing is left of it where it is low.
    return float(row["window_us"] * 1e3 / (row["messages"] * row["size_bytes"]))


# --------------------------------------------------------------------------------------------------
# Judging: no clock and no machine below this line.
#
def interval(costs: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Median of the rounds' ratios, with the limits that 95 % of resampled rounds keep."""
    ratios = np.array(costs, dtype=float) / np.array(others, dtype=float)
    draw = np.random.default_rng(1).integers(0, ratios.size, (_RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[draw], axis=1), [2.5, 97.5])
    return {"ratio": float(np.median(ratios)), "low": float(low), "high": float(high)}


def favourite(counts: Mapping[str, int]) -> str:
    """The kind of lane by which more than half of the messages went; else "mixed", "none"."""
    if not counts:
        return "none"
    kind = max(counts, key=lambda name: counts[name])
    return kind if 2 * counts[kind] > sum(counts.values()) else "mixed"


_KIND_OF = {XDP: "HARP", KERNEL: "kernel"}


def _kinds_differ(costs: Costs) -> tuple[str, float, bool]:
    """The better of xdp and kernel, the other's cost to its own, and whether that is more than the
    noise and nearly all rounds say so."""
    ratios = np.array(costs[KERNEL], dtype=float) / np.array(costs[XDP], dtype=float)
    if float(np.median(ratios)) < 1:
        best, ratios = KERNEL, 1 / ratios
    else:
        best = XDP
    differ = float(np.median(ratios))
    agree = int(np.sum(ratios > 1))
    return best, differ, differ > DIFFER and agree >= RIGHT_SHARE * ratios.size


def _surplus(costs: Costs, favourites: Sequence[str]) -> dict[str, float] | None:
    """auto's cost to that of the kind which it chose, forced; None: in no round it chose one."""
    forced = {kind: way for way, kind in _KIND_OF.items()}
    pairs = [
        (cost, costs[forced[name]][index])
        for index, (cost, name) in enumerate(zip(costs[AUTO], favourites, strict=True))
        if name in forced
    ]
    return interval(*zip(*pairs, strict=True)) if pairs else None


def judge(costs: Costs, chose: Chose) -> dict[str, Any]:
    """One size: what is best, whether it matters, and whether auto found it."""
    median = {way: float(np.median(values)) for way, values in costs.items()}
    best, differ, clear = _kinds_differ(costs)
    favourites = [favourite(counts) for counts in chose]
    right = sum(
        name == _KIND_OF[best] or cost <= NEAR * least
        for name, cost, least in zip(favourites, costs[AUTO], costs[best], strict=True)
    )
    ratios = {way: interval(costs[AUTO], values) for way, values in costs.items() if way != AUTO}
    plain = [way for way in costs if way not in (AUTO, *_KIND_OF)]
    # The fastest of the sockets' shapes; worse than it by more than noise, and surely so.
    rival = min(plain, key=lambda way: median[way]) if plain else None
    slower = rival is not None and ratios[rival]["low"] > DIFFER
    missed = []
    if clear and right < RIGHT_SHARE * len(chose):
        missed.append(f"{_KIND_OF[best]} is best, auto took it in {right} of {len(chose)} rounds")
    if slower and rival is not None:
        missed.append(f"{ratios[rival]['ratio']:.2f} times the time of kernel sockets")
    return {
        "median": median,
        "best": best,
        "differ": differ,
        "clear": clear,
        "right_rounds": right,
        "chose": [dict(counts) for counts in chose],
        "favourites": favourites,
        "ratio": ratios,
        "surplus": _surplus(costs, favourites),
        "missed": missed,
    }


def _round(
    measure: Measure, ways: Sequence[Way], words: str, say: Say, pace: Pace | None
) -> tuple[dict[tuple[str, str], Run], list[float]]:
    """Each way once, by mode and way; and the pace before and behind each."""
    runs: dict[tuple[str, str], Run] = {}
    paces = [pace()] if pace else []
    for way in ways:
        for mode in MODES:
            say(f"{words}: {way.title}, {mode}")
            runs[mode, way.name] = measure(way, mode)
        if pace:
            paces.append(pace())
    return runs, paces


def take_turns(
    measure: Measure, ways: Sequence[Way], rounds: int, say: Say, pace: Pace | None = None
) -> Turns:
    """Rounds that each begin with another way.

    pace: what the same work takes at the moment. A round in which that changes compares times of
    day, so it is taken again, some times at most.
    """
    turns = Turns()
    for index in range(rounds):
        words, turn = f"round {index + 1} of {rounds}", index % len(ways)
        order = (*ways[turn:], *ways[:turn])
        for left in reversed(range(_TRIES)):
            runs, paces = _round(measure, order, words, say, pace)
            if not left or not paces or max(paces) <= STEADY * min(paces):
                break
            turns.again += 1
            say(f"{words}: again, the machine's pace was {min(paces):.2f} to {max(paces):.2f} us")
        for key, run in runs.items():
            turns.runs.setdefault(key, []).append(run)
        if paces:
            turns.paces.append((min(paces), max(paces)))
    return turns


def collect(
    runs: Mapping[tuple[str, str], Sequence[Run]],
    ways: Sequence[Way],
    sizes: Sequence[int],
    verdict: Verdict = judge,
) -> dict[str, list[dict[str, Any]]]:
    """The judged row of each size, by mode."""
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for mode in MODES:
        for size in sizes:
            costs = {way.name: [run.cost[size] for run in runs[mode, way.name]] for way in ways}
            chose = [run.chose.get(size, {}) for run in runs.get((mode, AUTO), ())]
            row = {"size_bytes": size, "rounds": costs, **verdict(costs, chose)}
            results[mode].append(row)
    return results


def run_paths(options: PathsOptions, say: Say) -> dict[str, Any]:
    """The side-by-side table as a document."""
    # NCCL's transport as tools/driver plays it speaks IPv4.
    ways = [way for way in WAYS if not (way.sockets and options.lab.ipv6)]
    with Lab(options.lab) as lab:
        turns = take_turns(
            lambda way, mode: run_way(lab, options.sizes, way, mode),
            ways,
            options.rounds,
            say,
            lambda: pace_of(lab),
        )
    results = collect(turns.runs, ways, options.sizes)
    goals = {"differ_above": DIFFER, "right_share": RIGHT_SHARE, "near": NEAR}
    return document(options.lab, turns, ways, goals, results)


def document(
    lab: LabOptions,
    turns: Turns,
    ways: Sequence[Way],
    goals: dict[str, float],
    results: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """What a bench of ways by turns reports; ok: no row has missed anything."""
    return {
        "lab": asdict(lab),
        "rounds": len(next(iter(turns.runs.values()))),
        "pace": {
            "unit": "us, half a round trip of 8 B by HARP kernel, least and most of a round",
            "rounds": turns.paces,
            "again": turns.again,
            "steady_below": STEADY,
        },
        "ways": {way.name: way.title for way in ways},
        "units": {"lat": "us, half a round trip, p50", "bw": "ns a byte"},
        "goals": goals,
        "results": results,
        "ok": not any(row["missed"] for rows in results.values() for row in rows),
    }
