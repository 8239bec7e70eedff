# SPDX-License-Identifier: Apache-2.0
"""`harpctl bench torch`: torch.distributed over HARP and over Gloo, between hosts made here."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions, cpus

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 8, 64, KIB, 8 * KIB, 32 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB, 256 * MIB)
# Gloo's time over HARP's, by the largest size for which it holds.
GOALS = ((256 * KIB, 10.0), (8 * MIB, 1.8), (64 * MIB, 1.5), (1 << 62, 1.2))
PORT = 7950
Say = Callable[[str], None]


@dataclass(frozen=True)
class TorchOptions:
    """What the command line asked for."""

    ranks: int = 2
    paths: tuple[str, ...] = ("auto",)
    rounds: int = 5
    max_bytes: int = 64 * MIB
    timeout_s: float = 230

    @property
    def sizes(self) -> list[int]:
        """Those up to the largest."""
        return [size for size in SIZES if size <= self.max_bytes]


def goal_of(size: int) -> float:
    """The least speed relative to Gloo that is wanted."""
    return next(goal for limit, goal in GOALS if size <= limit)


def check() -> None:
    """HarpError where there is no PyTorch."""
    if find_spec("torch") is None:
        raise HarpError("PyTorch is not installed: pip install 'harp-nccl[torch]'", Exit.MISSING)


def environment(path: str, ifname: str) -> dict[str, str]:
    """Of a rank that has this interface."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return keep | {
        "HARP_PATH": path,
        "NCCL_SOCKET_IFNAME": f"={ifname}",
        "GLOO_SOCKET_IFNAME": ifname,
        "TP_SOCKET_IFNAME": ifname,
        "OMP_NUM_THREADS": "1",
    }


def compile_backend() -> None:
    """Before time is taken, and outside of namespaces."""
    command = [sys.executable, "-m", "harp.torch"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise HarpError("the backend could not be compiled, as said above", Exit.MISSING)


def run_once(lab: Lab, options: TorchOptions, path: str) -> list[dict[str, Any]]:
    """The rows of one path. Rank r is on host r modulo hosts, a processor for each host."""
    usable, hosts = cpus(), len(lab.hosts)
    processes = []
    with tempfile.TemporaryDirectory(prefix="harp-torch-") as folder:
        logs = [Path(folder) / f"rank{rank}" for rank in range(options.ranks)]
        for rank, log in enumerate(logs):
            host = lab.hosts[rank % hosts]
            command: list[str | Path] = [sys.executable, "-m", "harp.bench.torch_rank"]
            command += ["--rank", str(rank), "--ranks", str(options.ranks)]
            command += ["--root", lab.hosts[0].endpoint(PORT), "--rounds", str(options.rounds)]
            command += map(str, options.sizes)
            with log.open("w") as stderr:
                processes.append(
                    host.popen(
                        command,
                        cpu=usable[host.index % len(usable)],
                        env=environment(path, host.ifname),
                        stderr=stderr,
                    )
                )
        try:
            printed, _ = processes[0].communicate(timeout=options.timeout_s)
            statuses = [process.wait(10) for process in processes]
        except subprocess.TimeoutExpired:
            raise HarpError(
                f"path {path}: not done after {options.timeout_s:.0f} s; try --max-bytes"
            ) from None
        for rank, status in enumerate(statuses):
            if status != 0:
                lines = logs[rank].read_text(errors="replace").strip().splitlines()
                raise HarpError(f"path {path}: rank {rank} failed: {lines[-1] if lines else '?'}")
    return [json.loads(line) for line in printed.splitlines()]


def run_torch(shape: LabOptions, options: TorchOptions, say: Say) -> dict[str, Any]:
    """The document of the whole bench; ok: all sums are right and all goals are met."""
    check()
    compile_backend()
    runs: dict[str, list[dict[str, Any]]] = {}
    with Lab(shape) as lab:
        for path in options.paths:
            say(f"path {path}")
            runs[path] = run_once(lab, options, path)
    rows = []
    for index, size in enumerate(options.sizes):
        cells = {path: found[index] for path, found in runs.items()}
        rows.append(
            {
                "size_bytes": size,
                "gloo_us": statistics.median(cell["gloo_us"] for cell in cells.values()),
                "paths": cells,
                "goal": goal_of(size),
            }
        )
    first = options.paths[0]
    return {
        "operation": "all_reduce",
        "dtype": "float32",
        "ranks": options.ranks,
        "hosts": shape.hosts,
        "lab": shape.words,
        "rounds": options.rounds,
        "results": rows,
        "right": all(cell["right"] for row in rows for cell in row["paths"].values()),
        "met": all(row["paths"][first]["speed"] >= row["goal"] for row in rows),
    }


def size_text(size: int) -> str:
    """As "256 KiB"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def write_plot(reports: Sequence[dict[str, Any]], file: Path) -> None:
    """Times by size, PNG or SVG by the file's name. It takes matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise HarpError("--plot needs matplotlib: pip install matplotlib", Exit.MISSING) from None
    figure = Figure(figsize=(5 * len(reports), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, report in zip(
        figure.subplots(1, len(reports), squeeze=False)[0], reports, strict=True
    ):
        rows = report["results"]
        sizes = [row["size_bytes"] for row in rows]
        axes.loglog(sizes, [row["gloo_us"] for row in rows], "o-", color="gray", label="Gloo")
        for path in rows[0]["paths"]:
            times = [row["paths"][path]["harp_us"] for row in rows]
            axes.loglog(sizes, times, "o-", label=f"harp, path {path}")
        axes.set(xlabel="bytes", ylabel="us for one all_reduce")
        axes.set_title(
            f"{report['ranks']} ranks on {report['hosts']} hosts, {report['lab']}", fontsize=9
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    try:
        figure.savefig(file, dpi=90)
    except (OSError, ValueError) as error:  # ValueError: the name ends in no known format
        raise HarpError(f"{file}: {error}", Exit.USAGE) from None
