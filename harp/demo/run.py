# SPDX-License-Identifier: Apache-2.0
"""The demo's parent process: creates hosts, starts ranks, prints results, compares weights."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from harp import _paths, output
from harp.demo.model import Floats
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions, memif
from harp.lab.harpd import LabHarpd
from harp.lab.jail import Jail, library_dirs
from harp.lab.team import Team, job_environment

ROOT_PORT = 7700
# The RSS key of hosts with several ranks: that of Microsoft's specification.
RSS = "toeplitz:6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
# Relative to the largest weight. Sums of float32 in another order differ in the last bits, and
# training amplifies the difference.
TOLERANCE = 1e-4
BASELINE_ROUNDS = 5
OnEpoch = Callable[[dict[str, Any]], None]
WEIGHTS = "weights"  # folder of the ranks' weights, in the team's


@dataclass(frozen=True)
class DemoOptions:
    """Options of the command line."""

    lab: LabOptions
    epochs: int = 20
    path: str = "auto"
    plugin: str | Path | None = None
    timeout_s: float = 60
    ranks_per_host: int = 1
    # A harpd on each host; the ranks run as user nobody, in separate namespaces.
    daemon: bool = False
    nic: str = "veth"
    baseline: bool = False  # also train over NCCL's kernel sockets

    @property
    def ranks(self) -> int:
        """Rank r is on host r modulo hosts, so that ring neighbors are on different hosts."""
        return self.lab.hosts * self.ranks_per_host


def check(options: DemoOptions) -> None:
    """Raise HarpError for options that contradict each other."""
    if options.baseline and options.lab.ipv6:
        raise HarpError("--baseline supports IPv4 only: omit --ipv6", Exit.USAGE)
    if options.nic != memif.NIC:
        return
    memif.check(options.ranks, options.path)
    if options.daemon:
        raise HarpError(f"--nic {memif.NIC} has its own ports: omit --daemon", Exit.USAGE)


def _environment(options: DemoOptions, host: Host) -> dict[str, str]:
    variables = {
        "NCCL_SOCKET_IFNAME": f"={host.ifname}",
        "HARP_PATH": options.path,
        # One thread: the same sums in the same order in every process, and no contention for cores.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return job_environment(variables, foreign=("NCCL_", "HARP_") if options.daemon else ("NCCL_",))


def _command(options: DemoOptions, lab: Lab, rank: int, folder: Path) -> list[str | Path]:
    host = lab.hosts[rank % options.lab.hosts]
    plugin = _paths.plugin(options.plugin)
    command: list[str | Path] = [sys.executable, "-m", "harp.demo.rank"]
    command += ["--plugin", plugin]
    if options.nic != memif.NIC:
        command += ["--ifname", host.ifname]
    command += ["--rank", str(rank), "--ranks", str(options.ranks)]
    command += ["--root", lab.hosts[0].endpoint(ROOT_PORT)]
    if options.ranks_per_host > 1:  # HARP's TCP connects hosts, not ranks of one host
        command += ["--memory", f"{folder.name}-{host.index}"]
    command += ["--epochs", str(options.epochs), "--timeout", str(options.timeout_s)]
    return [*command, "--weights", folder / WEIGHTS / f"rank{rank}.npy"]


def _start(options: DemoOptions, lab: Lab, daemons: list[LabHarpd], rank: int, team: Team) -> None:
    host = lab.hosts[rank % options.lab.hosts]
    command = _command(options, lab, rank, team.folder)
    env = _environment(options, host)
    if options.nic == memif.NIC:
        env |= memif.environment(options.lab, rank, team.folder)
    if not daemons:
        team.start(host, command, cpu=rank, env=env)
        return
    jail = Jail(
        socket=str(daemons[host.index].socket),
        readable=(*library_dirs(), str(_paths.plugin(options.plugin).parent)),
        writable=(str(team.folder / WEIGHTS), "/dev/shm"),
        hostname=f"rank{rank}",
    )
    process = team.start(None, jail.command(host, command), env=env)
    host.processes.append(process)  # the test hosts end it at the latest


def _take(rank: int, events: Queue[tuple[int, Any]], line: str | None) -> None:
    """Queue a rank's event; None signals its end."""
    try:
        events.put((rank, line and json.loads(line)))
    except ValueError:
        output.print_line(f"rank {rank}: {str(line).rstrip()}", output.err)


def _follow(
    options: DemoOptions, lab: Lab, daemons: list[LabHarpd], team: Team, on_epoch: OnEpoch
) -> tuple[list[dict[str, Any]], float]:
    """Run all ranks to their end; HarpError reports the first failure."""
    start = time.perf_counter()
    events: Queue[tuple[int, Any]] = Queue()
    reports: list[dict[str, Any]] = [{"epochs": []} for _ in range(options.ranks)]
    for rank in range(options.ranks):
        _start(options, lab, daemons, rank, team)
        team.follow(partial(_take, rank, events))
    running = set(range(options.ranks))
    while running:
        rank, event = events.get()
        if event is None:
            running.discard(rank)
            if team.processes[rank].wait() != 0:
                raise team.failure(rank)
        elif event["event"] == "epoch":
            reports[rank]["epochs"].append(event)
            if rank == 0:
                on_epoch(event)
        elif event["event"] == "done":
            reports[rank] |= event
    return reports, time.perf_counter() - start


def _team() -> Team:
    return Team("harp-demo", "rank {} failed: ")


def _alone(options: DemoOptions, folder: Path) -> Floats:
    """Return the weights of a single process that adds the gradients of the ranks' shards."""
    path = folder / "alone.npy"
    command = [sys.executable, "-m", "harp.demo.model", str(options.epochs), str(options.ranks)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise HarpError(f"the single-process run failed: {done.stderr.strip()[-300:]}")
    weights: Floats = np.load(path)
    return weights


def compare(options: DemoOptions, folder: Path) -> dict[str, Any]:
    """Compare all ranks bit for bit, and with a single-process run.

    Sums of two ranks can be reproduced exactly, because a + b is b + a. Those of more ranks depend
    on the order of the ring.
    """
    ranks = [np.load(folder / WEIGHTS / f"rank{rank}.npy") for rank in range(options.ranks)]
    alone = _alone(options, folder)
    difference = float(np.abs(ranks[0] - alone).max() / np.abs(alone).max())
    equal = all(weights.tobytes() == ranks[0].tobytes() for weights in ranks)
    alone_equal = ranks[0].tobytes() == alone.tobytes()
    # NaN counts as a difference.
    is_near = alone_equal if options.ranks == 2 else difference <= TOLERANCE
    return {
        "weights": len(alone),
        "ranks_equal_bit_for_bit": equal,
        "difference_relative": difference,
        "tolerance_relative": TOLERANCE,
        "alone_equal_bit_for_bit": alone_equal,
        "agree": equal and is_near,
    }


def _daemons(options: DemoOptions, lab: Lab, stack: ExitStack) -> list[LabHarpd]:
    if not options.daemon:
        return []
    nic = {"rss": RSS} if options.ranks_per_host > 1 else {}
    return [stack.enter_context(LabHarpd(host, nic=nic)) for host in lab.hosts]


def _train(
    options: DemoOptions, team: Team, on_epoch: OnEpoch = lambda _: None
) -> tuple[list[dict[str, Any]], float]:
    """Train on new hosts. Return the ranks' reports and the duration in seconds."""
    shape = options.lab
    if options.daemon and options.ranks_per_host > 1:
        # Each rank has a queue, which an RSS hash selects that HARP can compute.
        shape = replace(shape, queues=options.ranks_per_host, rss=RSS)
    with Lab(shape) as lab, ExitStack() as stack:
        daemons = _daemons(options, lab, stack)
        weights = team.folder / WEIGHTS
        weights.mkdir()
        if daemons:
            # User nobody may write to this folder only: the team's folder is root's.
            weights.chmod(0o1777)
        return _follow(options, lab, daemons, team, on_epoch)


def _comm_seconds(options: DemoOptions) -> float:
    """Train once more; return the median time in communication of rank 0's epochs."""
    with _team() as team:
        reports, _ = _train(options, team)
    return statistics.median(float(epoch["comm_seconds"]) for epoch in reports[0]["epochs"])


def _baseline(options: DemoOptions) -> dict[str, Any]:
    """Train over HARP and over kernel sockets used as NCCL's socket transport does, alternated.

    The sockets' hosts have no XDP program. A machine's speed changes within seconds, so the two are
    compared within a round only.
    """
    sockets = replace(
        options,
        plugin=str(_paths.find(_paths.SOCKET_PLUGIN)),
        path="kernel",
        daemon=False,
        nic="veth",
        lab=replace(options.lab, queues=1, rss=None),
    )
    rounds = []
    for number in range(BASELINE_ROUNDS):
        order = (options, sockets) if number % 2 == 0 else (sockets, options)
        times = {case is sockets: _comm_seconds(case) for case in order}
        rounds.append((times[False], times[True]))
    return {
        "rounds": [{"harp_seconds": harp, "sockets_seconds": other} for harp, other in rounds],
        "speed": sorted(_speed(harp, other) for harp, other in rounds),
    }


def _speed(harp_seconds: float, sockets_seconds: float) -> float:
    return sockets_seconds / harp_seconds if harp_seconds else 0.0


def run(options: DemoOptions, on_epoch: OnEpoch = lambda _: None) -> dict[str, Any]:
    check(options)
    with _team() as team:
        reports, seconds = _train(options, team, on_epoch)
        verdict = compare(options, team.folder)
    sockets = _baseline(options) if options.baseline else None
    return {
        "options": {
            name: getattr(options, name)
            for name in ("path", "epochs", "ranks_per_host", "daemon", "nic")
        }
        | asdict(options.lab),
        "seconds": seconds,
        "epochs": reports[0]["epochs"],
        "sockets": sockets,
        "ranks": [
            {"rank": rank, "host": rank % options.lab.hosts, **report}
            for rank, report in enumerate(reports)
        ],
        "verdict": verdict,
    }


def print_epoch(event: dict[str, Any]) -> None:
    share = event["comm_seconds"] / event["seconds"] if event["seconds"] else 0
    output.out.print(
        f"epoch {event['epoch']:3d}   loss {event['loss']:8.5f}   "
        f"accuracy {event['accuracy']:7.2%}   time {event['seconds']:6.3f} s   "
        f"in communication {event['comm_seconds']:6.3f} s ({share:.0%})"
    )


def print_report(report: dict[str, Any]) -> None:
    rows = []
    for rank in report["ranks"]:
        counters = rank.get("counters", {})
        rows.append(
            (
                rank["rank"],
                rank["host"],
                f"{rank.get('sent_bytes', 0) / 1e6:.1f}",
                f"{rank.get('received_bytes', 0) / 1e6:.1f}",
                counters.get("tx_packets", "?"),
                counters.get("rx_packets", "?"),
                counters.get("tcp_retransmits", "?"),
                rank.get("path", "?"),
            )
        )
    columns = ("rank", "host", "sent MB", "received MB", "tx packets", "rx packets", "retransmits")
    output.out.print()
    output.print_whole(output.table("ranks", (*columns, "path"), rows, folded=(len(columns),)))
    for rank in report["ranks"]:
        for text in rank.get("warnings", []):
            output.print_line(f"rank {rank['rank']} warns: {text}")
    output.out.print()
    for line in transport_lines(report):
        output.print_line(line)
    for line in verdict_lines(report["verdict"], len(report["ranks"])):
        output.print_line(line)


def transport_lines(report: dict[str, Any]) -> list[str]:
    """Return which transport carried the bytes, why packets were retransmitted, the baseline."""
    lines = []
    counters = [rank.get("counters", {}) for rank in report["ranks"]]
    stack_bytes = sum(rank.get("tx_bytes", 0) for rank in counters)
    sent_bytes = sum(rank.get("sent_bytes", 0) for rank in report["ranks"])
    if stack_bytes and report["options"]["path"] == "auto":
        share = min(1.0, stack_bytes / max(sent_bytes, 1))
        lines.append(
            f"HARP's own TCP stack carried {share:.1%} of the bytes, the kernel's TCP the rest: "
            "path auto chooses by message size, from what it measures"
        )
    if stack_bytes and any(rank.get("tcp_retransmits") for rank in counters):
        lines.append(
            "retransmits: probes for a lost tail (RFC 8985). This link loses nothing; an ACK is "
            "late when its process waits for a processor"
        )
    if (sockets := report["sockets"]) is not None:
        # The times of the round with the median speed: medians of the times could contradict the
        # median of the speeds.
        speed = sockets["speed"]
        times = [(pair["harp_seconds"], pair["sockets_seconds"]) for pair in sockets["rounds"]]
        times.sort(key=lambda pair: _speed(*pair))
        harp, other = times[len(times) // 2]
        lines.append(
            f"in communication, per epoch: HARP {harp * 1000:.2f} ms, kernel sockets as NCCL uses "
            f"them {other * 1000:.2f} ms. HARP's speed: {_speed(harp, other):.2f} times the "
            f"sockets' ({speed[0]:.2f} to {speed[-1]:.2f}; the median of {len(times)} alternated "
            "rounds)"
        )
    return lines


def verdict_lines(verdict: dict[str, Any], ranks: int) -> list[str]:
    if verdict["ranks_equal_bit_for_bit"]:
        first = f"weights of all {ranks} ranks: equal bit for bit ({verdict['weights']})"
    else:
        first = f"weights of the {ranks} ranks DIFFER: the all-reduce gave them different sums"
    if verdict["alone_equal_bit_for_bit"]:
        alone = "equal bit for bit"
    elif ranks == 2:
        alone = (
            f"DIFFERS by {verdict['difference_relative']:.1e} of the largest weight, though the"
            " order of its sums is the same"
        )
    else:
        alone = (
            f"largest difference {verdict['difference_relative']:.1e} of the largest weight"
            f" (tolerance {verdict['tolerance_relative']:.0e} for more than two ranks, whose sums"
            " have another order)"
        )
    return [
        first,
        f"single-process run over the same batches and shards: {alone}",
        "the weights agree" if verdict["agree"] else "the weights DO NOT agree",
    ]
