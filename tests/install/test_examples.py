# SPDX-License-Identifier: Apache-2.0
"""The examples of launchers: each script runs two ranks of examples/allreduce.py over HARP.

torchrun, srun, scontrol and mpirun are fakes, which start ranks with the variables of the real
programs and log their command lines. Long tests run the real Open MPI and Slurm.
"""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import finished

from harp import _paths

RANKS = 2
# Starts two ranks of a command, each with its own variables.
START = """\
#!{python}
import os, subprocess, sys
{parse}
open({log!r}, "w").write("\\n".join(sys.argv[1:]))
ranks = [subprocess.Popen(command, env={{**os.environ, **variables(n)}}) for n in range({ranks})]
sys.exit(max(rank.wait() for rank in ranks))
"""
TORCHRUN = """\
options = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
command = [sys.executable, *(word for word in sys.argv[1:] if not word.startswith("--"))]
def variables(n):
    return {"RANK": str(n), "WORLD_SIZE": options["nproc-per-node"], "LOCAL_RANK": str(n),
            "MASTER_ADDR": options["master-addr"], "MASTER_PORT": options["master-port"]}
"""
SRUN = """\
command = sys.argv[1:]
def variables(n):
    return {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n), "SLURM_NTASKS": "2"}
"""
# Remote ranks get only the variables that -x names.
MPIRUN = """\
command, passed = sys.argv[1:], {}
while command[0].startswith("-"):
    if command[0] == "-x":
        name, _, value = command[1].partition("=")
        passed[name] = value
    command = command[2:]
for name in [name for name in os.environ if name.startswith(("NCCL_", "HARP_", "LD_"))]:
    del os.environ[name]
def variables(n):
    return passed | {"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_SIZE": "2",
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
"""
SCONTROL = '#!/bin/sh\n[ "$3" = "node[1-2]" ] && printf "127.0.0.1\\n127.0.0.2\\n"\n'
SHOW = """\
import os, runpy, sys
names = ("NCCL_NET", "NCCL_NET_PLUGIN", "LD_LIBRARY_PATH")
missing = [name for name in names if name not in os.environ]
if missing or os.environ["NCCL_NET_PLUGIN"] != "harp":
    sys.exit(f"not set: {missing}")
runpy.run_path(sys.argv[1])
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the fakes and this build's harpctl."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, parse in (("torchrun", TORCHRUN), ("srun", SRUN), ("mpirun", MPIRUN)):
        log = str(tmp_path / f"{name}.log")
        text = START.format(python=sys.executable, parse=parse, log=log, ranks=RANKS)
        (folder / name).write_text(text)
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "harpctl").write_text(f"#!{sys.executable}\nfrom harp.cli import main\nmain()\n")
    (tmp_path / "show.py").write_text(SHOW)
    for path in folder.iterdir():
        path.chmod(0o755)
    return folder


def run(
    root_dir: Path, tools: Path, port: int, script: str, *arguments: str | Path, **variables: str
) -> str:
    inherited = {
        name: os.environ[name] for name in ("HOME", "TMPDIR", "PYTHONPATH") if name in os.environ
    }
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "MASTER_PORT": str(port),
        **inherited,
        **variables,
    }
    done = finished([root_dir / "examples" / script, *arguments], env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_correct(output: str) -> bool:
    lines = [f"rank {rank} of {RANKS}: the sum is 3" for rank in range(RANKS)]
    return sorted(output.splitlines()) == lines


@pytest.fixture
def program(root_dir: Path, tmp_path: Path) -> list[Path]:
    """examples/allreduce.py, after a check of the rank's variables."""
    return [tmp_path / "show.py", root_dir / "examples/allreduce.py"]


def test_torchrun(root_dir: Path, tools: Path, port: int, program: list[Path]) -> None:
    assert is_correct(run(root_dir, tools, port, "torchrun.sh", *program, RANKS_PER_NODE="2"))
    arguments = (tools.parent / "torchrun.log").read_text().split("\n")
    assert {"--nnodes=1", "--node-rank=0", "--nproc-per-node=2"} <= set(arguments)


def test_slurm(root_dir: Path, tools: Path, port: int, program: list[Path]) -> None:
    nodes = {"SLURM_JOB_NODELIST": "node[1-2]"}
    output = run(root_dir, tools, port, "slurm.sbatch", sys.executable, *program, **nodes)
    assert is_correct(output)


def test_mpirun(root_dir: Path, tools: Path, port: int, program: list[Path]) -> None:
    arguments = ("-np", "2", "-x", f"HARP_COLL_PORT={port}", sys.executable, *program)
    assert is_correct(run(root_dir, tools, port, "mpirun.sh", *arguments))
    log = (tools.parent / "mpirun.log").read_text()
    assert f"LD_LIBRARY_PATH={_paths.plugin().parent}" in log


@pytest.mark.long
def test_real_open_mpi(
    root_dir: Path, tools: Path, port: int, program: list[Path], need_root: None
) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI: apt-get install openmpi-bin")
    (tools / "mpirun").unlink()
    options = ("--allow-run-as-root", "--oversubscribe", "-np", "2", "-x", f"HARP_COLL_PORT={port}")
    assert is_correct(run(root_dir, tools, port, "mpirun.sh", *options, sys.executable, *program))


# Two nodes on one host, in a network namespace. The addresses are on a veth, because Slurm resolves
# no names on a host that has only a loopback interface.
SLURM = """\
ClusterName=harp
SlurmctldHost=node1
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/linear
MpiDefault=none
NodeName=node1 Port=16818 CPUs=2 State=UNKNOWN
NodeName=node2 Port=16819 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES OverSubscribe=FORCE State=UP
"""
CLUSTER = """\
hostname node1
ip link add v0 type veth peer name v1
ip addr add 10.9.0.1/24 dev v0
ip addr add 10.9.0.2/24 dev v0
for link in lo v0 v1; do ip link set $link up; done
printf '127.0.0.1 localhost\\n10.9.0.1 node1\\n10.9.0.2 node2\\n' >hosts
mount --bind hosts /etc/hosts
slurmctld -D -i -c &
slurmd -D -N node1 &
slurmd -D -N node2 &
until [ "$(sinfo --noheader --format=%A)" = 0/2 ]; do :; done
sbatch --wait --output=job.out --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 "$@"
"""


@pytest.mark.long
def test_real_slurm(root_dir: Path, tools: Path, program: list[Path], need_root: None) -> None:
    needed = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
    missing = [package for name, package in needed.items() if shutil.which(name) is None]
    if missing:
        pytest.skip(f"apt-get install {' '.join(missing)}")
    for name in ("srun", "scontrol"):
        (tools / name).unlink()
    folder = tools.parent / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder))
    command = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", "bash", "-e", "-c", CLUSTER, "cluster"]
    done = finished(
        [*command, root_dir / "examples/slurm.sbatch", sys.executable, *program],
        cwd=folder,
        env=os.environ
        | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_CONF": f"{folder}/slurm.conf"},
        timeout=300,
    )
    text = (folder / "job.out").read_text() if (folder / "job.out").exists() else ""
    assert is_correct(text), text + done.stdout + done.stderr


def test_a_failing_harpctl_starts_nothing(root_dir: Path, tools: Path) -> None:
    (tools / "harpctl").write_text("#!/bin/sh\necho 'harpctl: no' >&2\nexit 4\n")
    done = subprocess.run(
        [root_dir / "examples/mpirun.sh", "true"],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert done.returncode == 4
    assert not (tools.parent / "mpirun.log").exists()


@pytest.mark.parametrize("script", ["torchrun.sh", "slurm.sbatch", "mpirun.sh"])
def test_scripts_have_valid_syntax(root_dir: Path, script: str) -> None:
    path = root_dir / "examples" / script
    subprocess.run(["bash", "-n", path], check=True)
    assert os.access(path, os.X_OK)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)


def test_outside_of_slurm_the_script_names_sbatch(root_dir: Path) -> None:
    env = {"PATH": os.environ["PATH"]}
    done = finished([root_dir / "examples/slurm.sbatch", "true"], env=env)
    assert done.returncode != 0
    assert "start this script with sbatch" in done.stderr
