# SPDX-License-Identifier: Apache-2.0
"""`harpctl demo --torch`: torchrun on each host, an unmodified script, over Gloo and over HARP."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from harp import output
from harp.bench import torch_bench
from harp.lab import Lab, LabOptions
from harp.lab.team import Team

PORT = 7960
SCRIPT = Path(__file__).with_name("ddp.py")
TIMEOUT_S = 300


def run_backend(lab: Lab, backend: str, epochs: int, path: str, folder: Path) -> list[Any]:
    """Run torchrun with one rank on each host; return the lines of rank 0."""
    with Team("torchrun", f"{backend}: host {{}}: ", "Error") as team:
        for host in lab.hosts:
            command: list[str | Path] = [sys.executable, "-m", "torch.distributed.run"]
            command += ["--nnodes", str(len(lab.hosts)), "--node-rank", str(host.index)]
            command += ["--nproc-per-node", "1", "--master-addr", lab.hosts[0].address]
            command += ["--master-port", str(PORT), SCRIPT, "--backend", backend]
            command += ["--epochs", str(epochs), "--weights", folder]
            env = torch_bench.environment(path, host.ifname)
            team.start(host, command, cpu=host.index, env=env)
        printed = team.finish(TIMEOUT_S)
    return [json.loads(line) for line in printed[0].splitlines() if line.startswith("{")]


def run(shape: LabOptions, epochs: int, path: str) -> dict[str, Any]:
    """Train with both backends; return their epochs, and whether all weights are equal."""
    torch_bench.check()
    torch_bench.compile_backend()
    import torch

    backends: dict[str, Any] = {}
    weights: dict[str, list[Any]] = {}
    with Lab(shape) as lab:
        for backend in ("gloo", "harp"):
            with tempfile.TemporaryDirectory(prefix="harp-demo-") as name:
                rows = run_backend(lab, backend, epochs, path, Path(name))
                files = [Path(name) / f"rank{rank}.pt" for rank in range(shape.hosts)]
                weights[backend] = [torch.load(file, weights_only=True) for file in files]
            backends[backend] = {"epochs": rows, "seconds": sum(row["seconds"] for row in rows)}
    ranks_equal = all(
        torch.equal(value, values[0]) for values in weights.values() for value in values
    )
    return {
        "command": f"torchrun --nnodes {shape.hosts} {SCRIPT.name} --backend gloo|harp",
        "lab": shape.words,
        "hosts": shape.hosts,
        "path": path,
        "weights": weights["gloo"][0].numel(),
        "backends": backends,
        "ranks_equal_bit_for_bit": ranks_equal,
        "backends_equal_bit_for_bit": torch.equal(weights["gloo"][0], weights["harp"][0]),
        # With more than two ranks, HARP and Gloo may add in different orders.
        "agree": ranks_equal and torch.allclose(weights["gloo"][0], weights["harp"][0], atol=1e-4),
        "speed": backends["gloo"]["seconds"] / backends["harp"]["seconds"],
    }


def print_report(report: dict[str, Any]) -> None:
    output.print_line(
        f"{report['command']}: {report['hosts']} hosts on this machine, {report['lab']}"
    )
    rows = [
        [backend, str(row["epoch"]), f"{row['loss']:.5f}", f"{row['seconds']:.3f}"]
        for backend, result in report["backends"].items()
        for row in result["epochs"]
    ]
    output.print_table(["backend", "epoch", "loss", "seconds"], rows)
    times = {name: result["seconds"] for name, result in report["backends"].items()}
    output.print_line(
        f"training: Gloo {times['gloo']:.3f} s, harp {times['harp']:.3f} s"
        f" ({report['speed']:.2f} times as fast)"
    )
    ranks = "equal bit for bit" if report["ranks_equal_bit_for_bit"] else "DIFFERENT"
    if report["backends_equal_bit_for_bit"]:
        between = "equal bit for bit"
    else:
        between = "equal within 1e-4" if report["agree"] else "DIFFERENT"
    output.print_line(
        f"{report['weights']} weights: between ranks {ranks}, between backends {between}"
    )
