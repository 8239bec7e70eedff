# SPDX-License-Identifier: Apache-2.0
"""harp.horovod: its functions, and a script for Horovod, under torchrun and MPI's variables."""

import sys
from pathlib import Path
from typing import Any

import pytest
from test_torch import alone

# Of the real torch: this folder's name is found, too.
pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("need_root")]
OPS = Path(__file__).with_name("horovod_ops.py")
TRAIN = Path(__file__).with_name("horovod_train.py")
TIMEOUT_S = 180


def isolated(words: list[str], **env: str) -> Any:
    """Runs a program in a new network namespace."""
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
    return alone(up, env, TIMEOUT_S)


def torchrun(world: int, *words: str, **env: str) -> Any:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    return isolated([*command, *words], **env)


@pytest.mark.parametrize("world", [2, 4])
def test_functions(world: int) -> None:
    """Each does what Horovod's does; what is not there, and wrong use, says so in a sentence."""
    done = torchrun(world, str(OPS), HOROVOD_FUSION_THRESHOLD="100")
    assert done.returncode == 0, done.stderr[-4000:]
    wanted = [
        "ValueError: harp.horovod is not initialized: call hvd.init() first",
        "ValueError: harp.horovod is not initialized: call hvd.init() first",
        "RuntimeError: optimizer.zero_grad() between backward() and step(): call step() or "
        "synchronize() first",
        "RuntimeError: more than 1 backward passes before optimizer.step(): give "
        "DistributedOptimizer their number as backward_passes_per_step",
        "ValueError: named_parameters lacks 1 parameters of the optimizer",
        "ValueError: named_parameters has a name twice: table.weight",
        "ValueError: named_parameters are pairs, as model.named_parameters() gives them",
        "ValueError: harp.horovod has no process sets: use torch.distributed.new_group",
        "ValueError: backward_passes_per_step=0 is not 1 or more",
        "AttributeError: harp.horovod has no Adasum: use Average, and scale the learning rate with "
        "hvd.size()",
        "AttributeError: neither harp.horovod nor Horovod has nothing_at_all",
        "ValueError: hvd.allreduce: give op, and not average, which it replaces",
        "ValueError: harp.horovod has no process sets: use torch.distributed.new_group",
        f"ValueError: hvd.broadcast: root_rank {world} is not 0 to {world - 1}",
        "ValueError: harp.horovod moves CPU tensors, not those of meta",
        "ValueError: hvd.allgather: a tensor without dimensions has no first one to join",
    ]
    assert done.stdout.splitlines() == wanted


def trained(world: int, *options: str) -> tuple[list[float], float]:
    """Losses, and the norm of the weights, which all ranks have alike."""
    done = torchrun(world, "-m", "harp.horovod", str(TRAIN), *options)
    assert done.returncode == 0, done.stderr[-4000:]
    *epochs, last = done.stdout.splitlines()
    words = last.split()
    assert words[2:] == ["equal", "True", "ranks", str(world)]
    return [float(line.split()[3]) for line in epochs], float(words[1])


@pytest.mark.parametrize("options", [[], ["--clip", "0.1"], ["--passes", "2"]])
def test_unmodified_script(options: list[str]) -> None:
    """Two and four ranks learn what one learns."""
    losses, norm = trained(1, *options)
    assert losses[-1] < losses[0]
    for world in (2, 4):
        found, other = trained(world, *options)
        assert found == pytest.approx(losses, abs=1e-4)
        assert other == pytest.approx(norm, abs=1e-3)


def test_compression() -> None:
    losses, _ = trained(2)
    found, _ = trained(2, "--fp16-allreduce")
    assert found == pytest.approx(losses, rel=0.02)


def test_mpi() -> None:
    """mpirun's variables instead of torchrun's."""
    ranks = "\n".join(
        f'OMPI_COMM_WORLD_RANK={rank} {sys.executable} -m harp.horovod {TRAIN} & pids="$pids $!"'
        for rank in range(2)
    )
    script = f"{ranks}\nfor pid in $pids; do wait $pid || exit 1; done"
    world = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    done = isolated(["sh", "-c", script], **world)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].endswith("equal True ranks 2")


def test_what_is_not_there(tmp_path: Path) -> None:
    """Other modules of Horovod, and no script."""
    script = tmp_path / "train.py"
    script.write_text("import horovod.tensorflow\n", encoding="ascii")
    done = isolated([sys.executable, "-m", "harp.horovod", str(script)])
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: harp.horovod has no module horovod.tensorflow: it is horovod.torch "
        "alone"
    )
    done = isolated([sys.executable, "-m", "harp.horovod", "nothing.py"])
    assert (done.returncode, done.stderr) == (2, "harp: error: there is no script nothing.py\n")
    done = torchrun(2, "-m", "harp.horovod", str(TRAIN), "--use-adasum")
    assert done.returncode != 0
    assert "AttributeError: harp.horovod has no Adasum: use Average" in done.stderr
