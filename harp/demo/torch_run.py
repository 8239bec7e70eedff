# SPDX-License-Identifier: Apache-2.0
"""`harpctl demo --torch`: torchrun on each host, an unmodified script, over Gloo and over HARP."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harp import output
from harp.bench import torch_bench
from harp.errors import HarpError
from harp.lab import Lab, LabOptions, cpus

PORT = 7960
SCRIPT = Path(__file__).with_name("ddp.py")
TIMEOUT_S = 300


def run_backend(lab: Lab, backend: str, epochs: int, path: str, folder: Path) -> list[Any]:
    """torchrun on each host, one rank each; the lines of rank 0."""
    usable, processes, logs = cpus(), [], []
    for host in lab.hosts:
        command: list[str | Path] = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", str(len(lab.hosts)), "--node-rank", str(host.index)]
        command += ["--nproc-per-node", "1", "--master-addr", lab.hosts[0].address]
        command += ["--master-port", str(PORT), SCRIPT, "--backend", backend]
        command += ["--epochs", str(epochs), "--weights", folder]
        logs.append(folder / f"host{host.index}.err")
        with logs[-1].open("w") as stderr:
            processes.append(
                host.popen(
                    command,
                    cpu=usable[host.index % len(usable)],
                    env=torch_bench.environment(path, host.ifname),
                    stderr=stderr,
                )
            )
    try:
        printed, _ = processes[0].communicate(timeout=TIMEOUT_S)
        statuses = [process.wait(30) for process in processes]
    except subprocess.TimeoutExpired:
        raise HarpError(f"{backend}: not done after {TIMEOUT_S} s") from None
    for index, status in enumerate(statuses):
        if status != 0:
            lines = [
                line
                for line in logs[index].read_text(errors="replace").splitlines()
                if "Error" in line
            ]
            raise HarpError(f"{backend}: host {index}: {lines[0] if lines else f'exit {status}'}")
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def run(shape: LabOptions, epochs: int, path: str) -> dict[str, Any]:
    """Both backends: epochs of each, and whether all weights are equal."""
    torch_bench.check()
    torch_bench.compile_backend()
    import torch

    backends: dict[str, Any] = {}
    weights: dict[str, list[Any]] = {}
    with Lab(shape) as lab:
        for backend in ("gloo", "harp"):
            with tempfile.TemporaryDirectory(prefix="harp-demo-") as name:
                found = run_backend(lab, backend, epochs, path, Path(name))
                files = [Path(name) / f"rank{rank}.pt" for rank in range(shape.hosts)]
                weights[backend] = [torch.load(file, weights_only=True) for file in files]
            backends[backend] = {
                "epochs": found,
                "seconds": sum(row["seconds"] for row in found),
            }
    every = [*weights["gloo"], *weights["harp"]]
    ranks_equal = all(
        torch.equal(value, values[0]) for values in weights.values() for value in values
    )
    return {
        "command": f"torchrun --nnodes {shape.hosts} {SCRIPT.name} --backend gloo|harp",
        "lab": shape.words,
        "hosts": shape.hosts,
        "path": path,
        "weights": every[0].numel(),
        "backends": backends,
        "ranks_equal_bit_for_bit": ranks_equal,
        "backends_equal_bit_for_bit": torch.equal(weights["gloo"][0], weights["harp"][0]),
        # More than two ranks may add in another order than Gloo.
        "agree": ranks_equal and torch.allclose(weights["gloo"][0], weights["harp"][0], atol=1e-4),
        "speed": backends["gloo"]["seconds"] / backends["harp"]["seconds"],
    }


def print_report(report: dict[str, Any]) -> None:
    """A row for each backend and epoch, and the verdict."""
    output.out.print(
        f"{report['command']}: {report['hosts']} hosts on this machine, {report['lab']}",
        markup=False,
        soft_wrap=True,
    )
    rows = [
        [backend, str(row["epoch"]), f"{row['loss']:.5f}", f"{row['seconds']:.3f}"]
        for backend, found in report["backends"].items()
        for row in found["epochs"]
    ]
    output.print_table(["backend", "epoch", "loss", "seconds"], rows)
    times = {name: found["seconds"] for name, found in report["backends"].items()}
    output.out.print(
        f"training: Gloo {times['gloo']:.3f} s, harp {times['harp']:.3f} s"
        f" ({report['speed']:.2f} times as fast)",
        markup=False,
    )
    ranks = "equal bit for bit" if report["ranks_equal_bit_for_bit"] else "DIFFERENT"
    if report["backends_equal_bit_for_bit"]:
        between = "equal bit for bit"
    else:
        between = "equal within 1e-4" if report["agree"] else "DIFFERENT"
    output.out.print(
        f"{report['weights']} weights: between ranks {ranks}, between backends {between}",
        markup=False,
    )
