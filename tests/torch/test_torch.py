# SPDX-License-Identifier: Apache-2.0
"""harp.torch: torch.distributed over HARP, ranks in one network namespace and on two hosts."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import Done, finished, finished_alone

from harp.lab import Lab, LabOptions

# A submodule of PyTorch, because "torch" is also the name of this folder.
pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("need_root")]
RANKS = Path(__file__).with_name("torch_ranks.py")
SUITE = Path(__file__).with_name("torch_suite.py")
DOCUMENT = Path(__file__).parents[2] / "docs/torch.md"
LANES, MEMORY = "", "one"  # HARP_COLL_HOST of the ranks
TIMEOUT_S = 120
ENV = {
    "HARP_DAEMON": "off",
    "HARP_PATH": "kernel",
    "NCCL_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def run_in_namespace(
    command: Sequence[str], env: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> Done:
    return finished_alone(command, ENV | dict(env), timeout_s)


def results(folder: Path, scenario: str, world: int, host: str = LANES, **env: str) -> Any:
    """The result of each rank, by rank."""
    command = [sys.executable, str(RANKS), scenario, str(world), host, str(folder)]
    result = run_in_namespace(command, env)
    assert result.returncode == 0, result.stderr[-4000:]
    return dict(json.loads(line) for line in result.stdout.splitlines())


@pytest.mark.parametrize(("world", "host"), [(1, LANES), (2, LANES), (3, MEMORY), (4, LANES)])
def test_operations(tmp_path: Path, world: int, host: str) -> None:
    """Every operation and type equals numpy's."""
    counters = results(tmp_path, "ops", world, host)
    assert len(counters) == world
    unused = "shm_sent_messages" if host == LANES else "net_sent_messages"
    assert all(counter[unused] == 0 for counter in counters.values())


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 5, 8])
@pytest.mark.parametrize("host", [LANES, MEMORY])
def test_operations_in_all_sizes(tmp_path: Path, world: int, host: str) -> None:
    """Every operation with every type in every size."""
    assert len(results(tmp_path, "ops", world, host, HARP_TEST_TYPES="all")) == world


@pytest.mark.parametrize(
    "world", [2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_training_equals_gloo(tmp_path: Path, world: int) -> None:
    """DDP, without a hook and with those of torch and of HARP."""
    results(tmp_path, "ddp", world)


@pytest.mark.parametrize("world", [2, 3])
def test_wire_formats(tmp_path: Path, world: int) -> None:
    """Half of the bytes; all ranks get the same bits, and must use the same format."""
    for world_share, group_share, *texts in results(tmp_path, "wire", world).values():
        assert abs(world_share - 0.5) < 0.01
        assert abs(group_share - 0.5) < 0.01
        differ, unknown, other = texts
        assert differ.startswith("DistBackendError: harp: group ")
        assert "rank 1 opened it with wire format bfloat16, rank 0 with native" in differ
        assert unknown == "ValueError: no wire format 'float8': native, float16, bfloat16 or None"
        assert other == (
            "TypeError: pg_options of the harp backend are harp.torch.Options, not dict"
        )


def test_tuning(tmp_path: Path) -> None:
    """tune() chooses DDP's bucket size with every hook and option."""
    texts = results(tmp_path, "tune", 2)
    assert texts[0] == texts[1]
    best, kept, advice, builtin, steps, sizes, other = texts[0]
    assert [line.split()[:2] for line in best.splitlines()[2:5]] == [
        ["default", "100.0"],
        ["0.1", "50.0"],
        ["10", "100.0"],
    ]
    assert best.endswith("harp: DDP now uses bucket_cap_mb=0.1")
    assert kept.endswith("harp: no size is better than the current one, which DDP keeps")
    assert advice.endswith("harp: DistributedDataParallel(model, bucket_cap_mb=0.1) is faster")
    assert "cannot change the buckets of this DDP: its built-in hook" in builtin
    assert "DistributedDataParallel(model, bucket_cap_mb=SIZE)" in builtin
    assert steps == "ValueError: tune: steps=0 is not 1 or more"
    assert sizes == "ValueError: tune: sizes_mb=[0]: sizes must be above 0 MiB"
    assert other == "TypeError: tune: Net is not a DistributedDataParallel"


def test_top_k(tmp_path: Path) -> None:
    """With error feedback, elements that were not sent are sent later; without it, never."""
    results(tmp_path, "feedback", 2)


def test_subgroups(tmp_path: Path) -> None:
    results(tmp_path, "subgroups", 4)


def test_split(tmp_path: Path) -> None:
    """Each half gets its own group, with the wire format of the parent group."""
    assert results(tmp_path, "split", 4) == {
        0: [0, 2, 2.0, True],
        2: [1, 2, 2.0, True],
        1: [0, 2, 4.0, True],
        3: [1, 2, 4.0, True],
    }


def test_mismatched_calls(tmp_path: Path) -> None:
    """Both ranks get an error that names both calls."""
    for text in results(tmp_path, "mismatch", 2).values():
        assert text.startswith("DistBackendError: harp: ranks called different operations")
        assert "rank 0 called broadcast(float32, 100 elements, root 0)" in text
        assert "rank 1 called allreduce(float32, 100 elements, sum)" in text


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    """In the errors of Work.wait() and of the Future."""
    texts = results(tmp_path, "killed", 3)
    assert sorted(texts) == [0, 2]
    assert all("rank 1" in text for text in texts.values()), texts


def test_a_late_rank_is_named(tmp_path: Path) -> None:
    """Two ranks: with three, the error would depend on which of the others comes first."""
    assert "rank 1" in results(tmp_path, "late", 2)[0]


def test_destroy_with_work_in_flight(tmp_path: Path) -> None:
    texts = results(tmp_path, "in_flight", 2)
    assert "rank 0 closed the group while operations were in progress" in texts[0]


def test_abort(tmp_path: Path) -> None:
    texts = results(tmp_path, "aborted", 3)
    assert all("rank 0 aborted the group" in text for text in texts.values()), texts


def test_store_server_has_ended(tmp_path: Path) -> None:
    text = results(tmp_path, "store_gone", 2)[1]
    assert text.startswith("DistBackendError: harp: the key-value store does not answer: "), text


def test_store_server_is_stopped(tmp_path: Path) -> None:
    """The operation times out and names the rank without the store."""
    text = results(tmp_path, "store_stopped", 3)[0]
    pattern = r"timed out: rank 1 \(host \S+\) did not answer: the network may be cut"
    assert re.search(pattern, text), text


def test_bad_calls(tmp_path: Path) -> None:
    messages = [
        "all_reduce: sparse tensors are not supported",
        "all_reduce: a tensor is on meta, but harp supports only CPU tensors",
        "band is not defined for float32",
        "PREMUL_SUM is only for NCCL",
        "no reduction supports Float8_e4m3fn tensors",
        ": 2 tensors: pass one",
        "the larger tensor has 2 elements, but needs 2 times 3",
        "3 tensors for 2 ranks",
        "destination rank should not be the same",
        "all_gather: tensor {0} of the list has 4 elements, but the other tensor of rank {0} has 3",
        "scatter: tensor {0} of the list has 4 elements, but the other tensor of rank {0} has 3",
        "alltoall: rank {0} sends itself 1 elements and expects 2",
    ]
    for rank, texts in results(tmp_path, "bad_calls", 2).items():
        for text, message in zip(texts, messages, strict=True):
            assert text.startswith("ValueError: ")
            assert message.format(rank) in text


def test_exit_without_destroy(tmp_path: Path) -> None:
    """A rank exits right after its operation; its data arrives."""
    assert results(tmp_path, "no_destroy", 2) == {0: "", 1: ""}


def compile_error(tmp_path: Path, code: str, **env: str) -> str:
    """The error line of a process that must compile the backend."""
    command = [
        sys.executable,
        "-c",
        f"import torch; {code}from harp.torch.__main__ import main; main()",
    ]
    result = run_in_namespace(command, {"XDG_CACHE_HOME": str(tmp_path), **env})
    return result.stderr.strip().splitlines()[-1]


def test_no_compiler(tmp_path: Path) -> None:
    text = compile_error(tmp_path, "", CXX="no-such-compiler")
    assert re.search(r"this machine lacks a C\+\+ compiler \(no-such-compiler\); install it", text)


def test_old_torch(tmp_path: Path) -> None:
    text = compile_error(tmp_path, "torch.__version__ = '2.1.0'; ")
    assert text == (
        "harp: error: torch 2.1.0 is too old for the harp backend: install torch 2.13 or later"
    )


def test_compiler_that_fails(tmp_path: Path) -> None:
    """As with a newer torch whose c10d has changed."""
    text = compile_error(tmp_path, "torch.__version__ = '9.0.0'; ", CXX="false")
    assert "it is newer than 2.14, the newest known to work" in text


@pytest.mark.long
@pytest.mark.parametrize(("world", "minimum", "host"), [("4", 66, LANES), ("8", 79, MEMORY)])
def test_suite_of_torch(world: str, minimum: int, host: str) -> None:
    """torch's own tests of backends: all that need neither a GPU nor another backend."""
    command = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, str(SUITE)]
    check_suite(
        run_in_namespace(command, {"WORLD_SIZE": world, "HARP_COLL_HOST": host}, 900), minimum
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "hosts", "minimum"), [("xdp", 4, 66), ("xdp", 8, 79), ("kernel", 8, 79)]
)
def test_suite_of_torch_on_hosts(path: str, hosts: int, minimum: int) -> None:
    """The tests that docs/torch.md lists, with a host per rank."""
    text = DOCUMENT.read_text().split("These 80 pass")[1].split("`test_ddp_logging_data_cpu`")[0]
    names = [f"TestDistBackendWithSpawn.test_{name}" for name in re.findall(r"`(\w+)`", text)]
    assert len(names) == 80
    with Lab(LabOptions(hosts=hosts)) as lab:
        env = {
            "WORLD_SIZE": str(hosts),
            "TORCH_SUITE_NETNS": ",".join(host.netns for host in lab.hosts),
            "HARP_PATH": path,
            "NCCL_SOCKET_IFNAME": "=eth0",
        }
        result = run_in_namespace([sys.executable, str(SUITE), *names], env, 900)
    check_suite(result, minimum)


def check_suite(result: Done, minimum: int) -> None:
    """Checks unittest's output: no failure, and at least `minimum` tests ran."""
    assert result.returncode == 0, result.stderr[-4000:]
    ran = re.search(r"Ran (\d+) tests", result.stderr)
    skipped = re.search(r"skipped=(\d+)", result.stderr)
    assert int(ran[1]) - int(skipped[1]) >= minimum


def harpctl(*arguments: str) -> Any:
    command = [str(Path(sys.executable).with_name("harpctl")), *arguments, "-o", "json"]
    result = finished(command, timeout=TIMEOUT_S, env=os.environ)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def test_bench() -> None:
    """Sums are correct on two hosts, and HARP's bytes cross the network."""
    report = harpctl("bench", "torch", "--rounds", "1", "--max-bytes", "65536", "--path", "kernel")
    assert report["right"]
    assert [row["size_bytes"] for row in report["results"]] == [4, 8, 64, 1024, 8192, 32768]
    cells = [row["paths"]["kernel"] for row in report["results"]]
    assert all(cell["net_sent_bytes"] >= cell["size_bytes"] for cell in cells)
    assert all(len(times) == 1 for cell in cells for times in cell["times_us"].values())


@pytest.mark.parametrize(
    ("operation", "share"),
    [("reduce_scatter", 1 / 2), ("all_gather", 2 / 3), ("all_to_all", 1)],
)
def test_bench_of_operations(operation: str, share: float) -> None:
    """Two ranks on each host: results are correct, and 2D sends this share of the bytes."""
    size = ("--min-bytes", "1048576", "--max-bytes", "1048576")
    options = ("--operation", operation, "--ranks", "4", "--flat", "--rounds", "1")
    report = harpctl("bench", "torch", *options, *size)
    assert report["operation"] == operation
    assert report["right"]
    (cell,) = report["results"][0]["paths"].values()
    assert cell["net_sent_bytes"] / cell["flat_net_sent_bytes"] == pytest.approx(share, rel=0.01)


def test_bench_of_variants() -> None:
    """Two ranks on each host: 2D sends two thirds of a flat ring's bytes, float16 half of 2D's."""
    size = ("--min-bytes", "1048576", "--max-bytes", "1048576")
    variants = ("--ranks", "4", "--flat", "--wire", "float16", "--mbit", "5000")
    report = harpctl("bench", "torch", "--rounds", "1", *size, *variants)
    assert report["right"]
    assert report["lab"].endswith(", 5000 Mbit/s")
    (row,) = report["results"]
    (cell,) = row["paths"].values()
    assert row["size_bytes"] == 1 << 20
    assert abs(cell["net_sent_bytes"] / cell["flat_net_sent_bytes"] - 2 / 3) < 0.01
    assert abs(cell["float16_net_sent_bytes"] / cell["net_sent_bytes"] - 1 / 2) < 0.01
    assert cell["of_flat"] > 0
    assert cell["of_float16"] > 0


def test_bench_of_top_k() -> None:
    """One percent of the gradients, after a warm-up, reaches the loss of full gradients."""
    report = harpctl("bench", "torch", "--topk", "0.01", "--rounds", "1")
    (cell,) = report["paths"].values()
    assert cell["loss"]["topk"] < 1.02 * cell["loss"]["full"] < 0.12


def test_demonstration() -> None:
    """torchrun on two hosts: the same weights over Gloo and over HARP."""
    report = harpctl("demo", "--torch", "--epochs", "1")
    assert report["ranks_equal_bit_for_bit"]
    assert report["backends_equal_bit_for_bit"]
    assert report["weights"] > 1_000_000
