# SPDX-License-Identifier: Apache-2.0
"""harp.horovod: its functions, and a script for Horovod, under torchrun and mpirun."""

import sys
from pathlib import Path
from typing import Any

import pytest
from test_torch import run_in_namespace

# A submodule of PyTorch, because "torch" is also the name of this folder.
pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("need_root")]
OPS = Path(__file__).with_name("horovod_ops.py")
TRAIN = Path(__file__).with_name("horovod_train.py")
TIMEOUT_S = 180


def run_isolated(arguments: list[str], **env: str) -> Any:
    """Runs a program in a new network namespace."""
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", *arguments]
    return run_in_namespace(up, env, TIMEOUT_S)


def torchrun(world: int, *arguments: str, **env: str) -> Any:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    return run_isolated([*command, *arguments], **env)


@pytest.mark.parametrize("world", [2, 4])
def test_functions(world: int) -> None:
    """Functions work like Horovod's; missing names and misuse raise one-sentence errors."""
    result = torchrun(world, str(OPS), HOROVOD_FUSION_THRESHOLD="100")
    assert result.returncode == 0, result.stderr[-4000:]
    expected = [
        "ValueError: harp.horovod is not initialized: call hvd.init() first",
        "ValueError: harp.horovod is not initialized: call hvd.init() first",
        "RuntimeError: optimizer.zero_grad() between backward() and step(): call step() or "
        "synchronize() first",
        "RuntimeError: more than 1 backward passes before optimizer.step(): pass their number to "
        "DistributedOptimizer as backward_passes_per_step",
        "ValueError: named_parameters lacks 1 parameters of the optimizer",
        "ValueError: named_parameters has duplicate names: table.weight",
        "ValueError: named_parameters must be pairs, as from model.named_parameters()",
        "ValueError: harp.horovod has no process sets: use torch.distributed.new_group",
        "ValueError: backward_passes_per_step=0 is not 1 or more",
        "AttributeError: harp.horovod has no Adasum: use Average, and scale the learning rate with "
        "hvd.size()",
        "AttributeError: module 'harp.horovod' has no attribute 'no_such_name'",
        "ValueError: hvd.allreduce: pass op or average, not both",
        "ValueError: harp.horovod has no process sets: use torch.distributed.new_group",
        f"ValueError: hvd.broadcast: root_rank {world} is not 0 to {world - 1}",
        "ValueError: harp.horovod supports CPU tensors only, not meta: copy it to the CPU",
        "ValueError: hvd.allgather: a tensor needs at least one dimension: use reshape(1)",
    ]
    assert result.stdout.splitlines() == expected


def train(world: int, *options: str) -> tuple[list[float], float]:
    """Trains; returns the losses and the norm of the weights, which all ranks have in common."""
    result = torchrun(world, "-m", "harp.horovod", str(TRAIN), *options)
    assert result.returncode == 0, result.stderr[-4000:]
    *epochs, last = result.stdout.splitlines()
    arguments = last.split()
    assert arguments[2:] == ["equal", "True", "ranks", str(world)]
    return [float(line.split()[3]) for line in epochs], float(arguments[1])


@pytest.mark.parametrize("options", [[], ["--clip", "0.1"], ["--passes", "2"]])
def test_unmodified_script(options: list[str]) -> None:
    """Two and four ranks compute the same losses and weights as one."""
    losses, norm = train(1, *options)
    assert losses[-1] < losses[0]
    for world in (2, 4):
        other_losses, other_norm = train(world, *options)
        assert other_losses == pytest.approx(losses, abs=1e-4)
        assert other_norm == pytest.approx(norm, abs=1e-3)


def test_compression() -> None:
    losses, _ = train(2)
    other_losses, _ = train(2, "--fp16-allreduce")
    assert other_losses == pytest.approx(losses, rel=0.02)


def test_mpi() -> None:
    """mpirun's variables instead of torchrun's."""
    ranks = "\n".join(
        f'OMPI_COMM_WORLD_RANK={rank} {sys.executable} -m harp.horovod {TRAIN} & pids="$pids $!"'
        for rank in range(2)
    )
    script = f"{ranks}\nfor pid in $pids; do wait $pid || exit 1; done"
    world = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    result = run_isolated(["sh", "-c", script], **world)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.splitlines()[-1].endswith("equal True ranks 2")


def test_missing_modules_and_scripts(tmp_path: Path) -> None:
    """Horovod modules and functions that HARP lacks, and a missing script."""
    script = tmp_path / "train.py"
    script.write_text("import horovod.tensorflow\n", encoding="ascii")
    result = run_isolated([sys.executable, "-m", "harp.horovod", str(script)])
    error = "ModuleNotFoundError: No module named 'horovod.tensorflow'"
    assert result.stderr.splitlines()[-1] == error
    result = run_isolated([sys.executable, "-m", "harp.horovod", "nothing.py"])
    assert (result.returncode, result.stderr) == (2, "harp: error: there is no script nothing.py\n")
    result = torchrun(2, "-m", "harp.horovod", str(TRAIN), "--use-adasum")
    assert result.returncode != 0
    assert "AttributeError: harp.horovod has no Adasum: use Average" in result.stderr
