# SPDX-License-Identifier: Apache-2.0
"""The demo's parent process: makes hosts, starts ranks, prints, compares the weights."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from harp import _paths, output
from harp.demo.digits import Floats
from harp.errors import Exit, HarpError
from harp.lab import Host, Lab, LabOptions, memif
from harp.lab.harpd import LabHarpd
from harp.lab.jail import Jail, library_dirs

ROOT_PORT = 7700
# The RSS key of hosts with several ranks: that of Microsoft's specification.
RSS = "toeplitz:6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"
# Relative to the largest weight. Sums of float32 in another order differ in the last bits, and
# training amplifies the difference.
TOLERANCE = 1e-4
BASELINE_ROUNDS = 5


@dataclass(frozen=True)
class DemoOptions:
    """Options of the command line."""

    lab: LabOptions
    epochs: int = 20
    path: str = "auto"
    plugin: str | Path | None = None
    timeout_s: float = 60
    ranks_per_host: int = 1
    # A harpd on each host; the ranks run as user nobody, in namespaces of their own.
    daemon: bool = False
    nic: str = "veth"
    baseline: bool = False  # also train over NCCL's kernel sockets

    @property
    def ranks(self) -> int:
        """Number of ranks. Rank r is on host r modulo hosts, so that neighbors in the ring never
        share a host.
        """
        return self.lab.hosts * self.ranks_per_host


@dataclass
class RankReport:
    """Results of one rank; None if it did not get that far."""

    rank: int
    connected: dict[str, Any] | None = None
    done: dict[str, Any] | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)


def check(options: DemoOptions) -> None:
    """Raise HarpError for options that contradict each other."""
    if options.baseline and options.lab.ipv6:
        raise HarpError("--baseline has IPv4 only: leave --ipv6 out", Exit.USAGE)
    if options.nic != memif.NIC:
        return
    memif.check(options.ranks, options.path)
    if options.daemon:
        raise HarpError(f"--nic {memif.NIC} has ports of its own: leave --daemon out", Exit.USAGE)


def _environment(options: DemoOptions, host: Host) -> dict[str, str]:
    foreign = ("NCCL_", "HARP_") if options.daemon else ("NCCL_",)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return keep | {
        "NCCL_SOCKET_IFNAME": f"={host.ifname}",
        "HARP_PATH": options.path,
        # One thread: the same sums in the same order in every process, and no contention for cores.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


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
    return [*command, "--weights", folder / f"rank{rank}.npy"]


def _start(
    options: DemoOptions, lab: Lab, daemons: list[LabHarpd], rank: int, folder: Path
) -> subprocess.Popen[str]:
    host = lab.hosts[rank % options.lab.hosts]
    command = _command(options, lab, rank, folder)
    cpus = sorted(os.sched_getaffinity(0))
    env = _environment(options, host)
    if options.nic == memif.NIC:
        env |= memif.environment(options.lab, rank, folder)
    with (folder / f"rank{rank}.err").open("w") as stderr:
        if not daemons:
            return host.popen(command, cpu=cpus[rank % len(cpus)], env=env, stderr=stderr)
        plugin = _paths.plugin(options.plugin)
        jail = Jail(
            socket=str(daemons[host.index].socket),
            readable=(*library_dirs(), str(plugin.parent)),
            writable=(str(folder), "/dev/shm"),
            hostname=f"rank{rank}",
        )
        process = subprocess.Popen(
            jail.command(host, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            text=True,
            errors="replace",
        )
    host.processes.append(process)  # it ends with the test hosts at the latest
    return process


def _listen(process: subprocess.Popen[str], rank: int, events: Queue[tuple[int, Any]]) -> None:
    """Read one rank's lines; None signals its end."""
    assert process.stdout is not None
    for line in process.stdout:
        try:
            events.put((rank, json.loads(line)))
        except ValueError:
            output.err.print(f"rank {rank}: {line.rstrip()}", markup=False)
    events.put((rank, None))


def _fail(folder: Path, rank: int, status: int) -> HarpError:
    words = (folder / f"rank{rank}.err").read_text().strip().splitlines()
    reason = words[-1] if words else f"exit status {status}"
    return HarpError(f"rank {rank} failed: {reason}")


def _follow(
    options: DemoOptions, lab: Lab, daemons: list[LabHarpd], folder: Path, on_epoch: Any
) -> tuple[list[RankReport], float]:
    """Run all ranks to their end; HarpError reports the first failure."""
    start = time.perf_counter()
    events: Queue[tuple[int, Any]] = Queue()
    ranks = range(options.ranks)
    processes = [_start(options, lab, daemons, rank, folder) for rank in ranks]
    for rank, process in enumerate(processes):
        threading.Thread(target=_listen, args=(process, rank, events), daemon=True).start()
    reports = [RankReport(rank) for rank in ranks]
    running = set(ranks)
    while running:
        rank, event = events.get()
        if event is None:
            running.discard(rank)
            status = processes[rank].wait()
            if status != 0:
                raise _fail(folder, rank, status)
        elif event["event"] == "epoch":
            reports[rank].epochs.append(event)
            if rank == 0:
                on_epoch(event)
        elif event["event"] == "connected":
            reports[rank].connected = event
        else:
            reports[rank].done = event
    return reports, time.perf_counter() - start


def _alone(options: DemoOptions, shards: int, folder: Path) -> Floats:
    path = folder / f"alone{shards}.npy"
    command = [sys.executable, "-m", "harp.demo.alone", str(options.epochs), str(shards), str(path)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarpError(f"the single-process run failed: {done.stderr.strip()[-300:]}")
    weights: Floats = np.load(path)
    return weights


def compare(options: DemoOptions, folder: Path) -> dict[str, Any]:
    """Compare all ranks bit for bit, and with single-process runs."""
    ranks = [np.load(folder / f"rank{rank}.npy") for rank in range(options.ranks)]
    alone = _alone(options, 1, folder)
    difference = float(np.abs(ranks[0] - alone).max() / np.abs(alone).max())
    equal = all(weights.tobytes() == ranks[0].tobytes() for weights in ranks)
    result: dict[str, Any] = {
        "weights": len(alone),
        "ranks_equal_bit_for_bit": equal,
        "difference_relative": difference,
        "tolerance_relative": TOLERANCE,
        "alone_equal_bit_for_bit": ranks[0].tobytes() == alone.tobytes(),
        # NaN counts as a difference.
        "agree": equal and difference <= TOLERANCE,
    }
    # a + b is b + a, so the order of a ring of two can be reproduced exactly
    if options.ranks == 2:
        sharded = _alone(options, 2, folder)
        result["alone_by_shards_equal_bit_for_bit"] = ranks[0].tobytes() == sharded.tobytes()
        result["agree"] = result["agree"] and result["alone_by_shards_equal_bit_for_bit"]
    return result


def _laboratory(options: DemoOptions) -> LabOptions:
    """Return the options of the hosts. With a harpd each rank has a queue, and the NICs use a rule
    that HARP can compute.
    """
    if not options.daemon or options.ranks_per_host == 1:
        return options.lab
    return replace(options.lab, queues=options.ranks_per_host, rss=RSS)


def _daemons(options: DemoOptions, lab: Lab, stack: ExitStack) -> list[LabHarpd]:
    if not options.daemon:
        return []
    nic = {"rss": RSS} if options.ranks_per_host > 1 else {}
    return [stack.enter_context(LabHarpd(host, nic=nic)) for host in lab.hosts]


def _total(epochs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of all epochs, and those in communication."""
    return {
        "seconds": sum(epoch["seconds"] for epoch in epochs),
        "comm_seconds": sum(epoch["comm_seconds"] for epoch in epochs),
    }


def _train(
    options: DemoOptions, folder: Path, on_epoch: Any = lambda event: None
) -> tuple[list[RankReport], float]:
    """Train on new hosts. Returns the ranks' reports and the seconds that it took."""
    with Lab(_laboratory(options)) as lab, ExitStack() as stack:
        daemons = _daemons(options, lab, stack)
        if daemons:
            folder.chmod(0o777)  # user nobody writes weights there, and we read them
        return _follow(options, lab, daemons, folder, on_epoch)


def _comm_seconds(options: DemoOptions) -> float:
    """Train once more; return the median time in communication of rank 0's epochs."""
    with tempfile.TemporaryDirectory(prefix="harp-demo-") as name:
        reports, _ = _train(options, Path(name))
    return _median_comm_seconds(reports[0].epochs)


def _median_comm_seconds(epochs: list[dict[str, Any]]) -> float:
    return statistics.median(float(epoch["comm_seconds"]) for epoch in epochs)


def _baseline(options: DemoOptions, first: float) -> dict[str, Any]:
    """Train over HARP and over kernel sockets used as NCCL's socket transport does, alternated.

    The sockets' hosts have no XDP program. A machine's speed changes within seconds, so the two are
    compared within a round only. first: HARP's seconds in the first round.
    """
    sockets = replace(
        options,
        plugin=str(_paths.find(_paths.SOCKET_PLUGIN)),
        path="kernel",
        daemon=False,
        nic="veth",
        lab=replace(options.lab, queues=1, rss=None),
    )
    rounds = [(first, _comm_seconds(sockets))]
    for number in range(1, BASELINE_ROUNDS):
        order = (options, sockets) if number % 2 == 0 else (sockets, options)
        times = {which is sockets: _comm_seconds(which) for which in order}
        rounds.append((times[False], times[True]))
    return {
        "rounds": [{"harp_seconds": harp, "sockets_seconds": other} for harp, other in rounds],
        "speed": sorted(other / harp if harp else 0.0 for harp, other in rounds),
    }


def run(options: DemoOptions, on_epoch: Any = lambda event: None) -> dict[str, Any]:
    """Run the whole demo; return its report as plain data."""
    check(options)
    with tempfile.TemporaryDirectory(prefix="harp-demo-") as name:
        reports, seconds = _train(options, Path(name), on_epoch)
        verdict = compare(options, Path(name))
    sockets = None
    if options.baseline:
        sockets = _baseline(options, _median_comm_seconds(reports[0].epochs))
    return {
        "options": {
            "plugin": str(options.plugin) if options.plugin else None,
            "path": options.path,
            "epochs": options.epochs,
            "ranks_per_host": options.ranks_per_host,
            "daemon": options.daemon,
            "nic": options.nic,
        }
        | asdict(options.lab),
        "seconds": seconds,
        "epochs": reports[0].epochs,
        "total": _total(reports[0].epochs),
        "sockets": sockets,
        "ranks": [
            {
                "rank": report.rank,
                "host": report.rank % options.lab.hosts,
                "connected": report.connected,
                **(report.done or {}),
            }
            for report in reports
        ],
        "verdict": verdict,
    }


# --------------------------------------------------------------------------------------------------
# Output for people.
#
def print_epoch(event: dict[str, Any]) -> None:
    """Print one line per epoch."""
    share = event["comm_seconds"] / event["seconds"] if event["seconds"] else 0
    output.out.print(
        f"epoch {event['epoch']:3d}   loss {event['loss']:8.5f}   "
        f"accuracy {event['accuracy']:7.2%}   time {event['seconds']:6.3f} s   "
        f"in communication {event['comm_seconds']:6.3f} s ({share:.0%})"
    )


def print_report(report: dict[str, Any]) -> None:
    """Print the table of ranks and the verdict."""
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
    columns = (
        "rank",
        "host",
        "sent MB",
        "received MB",
        "tx packets",
        "rx packets",
        "retransmits",
        "path",
    )
    output.out.print()
    table = output.table("ranks", columns, rows)
    output.fold(table, len(columns) - 1)
    output.print_whole(table)
    for rank in report["ranks"]:
        for text in rank.get("warnings", []):
            output.out.print(f"rank {rank['rank']} warns: {text}", markup=False)
    output.out.print()
    for line in transport_lines(report):
        output.out.print(line, markup=False, soft_wrap=True)
    for line in verdict_lines(report["verdict"], len(report["ranks"])):
        output.out.print(line, markup=False)


def transport_lines(report: dict[str, Any]) -> list[str]:
    """Print which transport carried the bytes, why packets were retransmitted, and the baseline."""
    lines = []
    counters = [rank.get("counters", {}) for rank in report["ranks"]]
    stack_bytes = sum(each.get("tx_bytes", 0) for each in counters)
    sent_bytes = sum(rank.get("sent_bytes", 0) for rank in report["ranks"])
    if stack_bytes and report["options"]["path"] == "auto":
        share = min(1.0, stack_bytes / max(sent_bytes, 1))
        lines.append(
            f"HARP's own TCP stack carried {share:.1%} of the bytes, the kernel's TCP the rest: "
            "path auto chooses by message size, from what it measures"
        )
    if stack_bytes and any(each.get("tcp_retransmits") for each in counters):
        lines.append(
            "retransmits: probes for a lost tail (RFC 8985). This link loses nothing; an ACK is "
            "late when its process waits for a processor"
        )
    if (sockets := report["sockets"]) is not None:
        rounds, speed = sockets["rounds"], sockets["speed"]
        harp, other = (
            statistics.median(each[key] for each in rounds) * 1000
            for key in ("harp_seconds", "sockets_seconds")
        )
        lines.append(
            f"in communication, per epoch: HARP {harp:.2f} ms, kernel sockets as NCCL uses them "
            f"{other:.2f} ms. HARP's speed: {statistics.median(speed):.2f} times the sockets' "
            f"({speed[0]:.2f} to {speed[-1]:.2f} in {len(rounds)} alternated rounds)"
        )
    return lines


def verdict_lines(verdict: dict[str, Any], ranks: int) -> list[str]:
    """Print whether the weights agree, how closely, and why not bit for bit."""
    lines = []
    if verdict["ranks_equal_bit_for_bit"]:
        lines.append(f"weights of all {ranks} ranks: equal bit for bit ({verdict['weights']})")
    else:
        lines.append(f"weights of the {ranks} ranks DIFFER: the all-reduce gave them other sums")
    difference, tolerance = verdict["difference_relative"], verdict["tolerance_relative"]
    if verdict["alone_equal_bit_for_bit"]:
        lines.append("single-process run over the same batches: equal bit for bit")
    elif difference <= tolerance:
        lines.append(
            f"single-process run over the same batches: agrees; largest difference {difference:.1e}"
            f" of the largest weight (tolerance {tolerance:.0e})."
        )
        lines.append(
            "  Not bit for bit: it sums each batch in one piece, the ranks sum their shards and add"
            " these, and float32 sums depend on their order."
        )
    else:
        lines.append(
            f"single-process run over the same batches: DISAGREES; largest difference"
            f" {difference:.1e} of the largest weight (tolerance {tolerance:.0e})"
        )
    if "alone_by_shards_equal_bit_for_bit" in verdict:
        same = verdict["alone_by_shards_equal_bit_for_bit"]
        words = "equal bit for bit" if same else "DIFFERS, though the order of its sums is the same"
        lines.append(f"single-process run that adds the two shards' gradients: {words}")
    lines.append("the weights agree" if verdict["agree"] else "the weights DO NOT agree")
    return lines
