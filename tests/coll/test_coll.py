# SPDX-License-Identifier: Apache-2.0
"""libharp-coll and harp.collectives: ranks in one network namespace, and on two hosts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import MODULES, finished_alone

from harp.lab import Lab, LabOptions

pytestmark = pytest.mark.usefixtures("need_root")
RANKS = Path(__file__).with_name("coll_ranks.py")
TIMEOUT_S = 120
ENV = MODULES | {"HARP_DAEMON": "off", "OPENBLAS_NUM_THREADS": "1"}


def ranks_command(
    scenario: str, world: int, ranks: list[int], hosts: str, folder: Path
) -> list[str]:
    names = ",".join(map(str, ranks))
    return [sys.executable, str(RANKS), scenario, str(world), names, hosts, str(folder)]


def results(outcomes: list[tuple[int, str, str]]) -> dict[int, Any]:
    """The result of each rank, by rank."""
    assert not any(status for status, _, _ in outcomes), [err[-4000:] for _, _, err in outcomes]
    lines = [json.loads(line) for _, out, _ in outcomes for line in out.splitlines()]
    return dict(lines)


def run_local(
    folder: Path, scenario: str, world: int, hosts: int = 0, timeout_s: float = TIMEOUT_S
) -> dict[int, Any]:
    """All ranks in one new network namespace, over kernel lanes on lo and shared memory."""
    return run_program(
        ranks_command(scenario, world, list(range(world)), str(hosts), folder), timeout_s
    )


def run_program(command: list[str], timeout_s: float = TIMEOUT_S) -> dict[int, Any]:
    env = ENV | {"HARP_PATH": "kernel", "NCCL_SOCKET_IFNAME": "lo"}
    result = finished_alone(command, env, timeout_s)
    return results([(result.returncode, result.stdout, result.stderr)])


def run_on_hosts(folder: Path, scenario: str, world: int, path: str) -> dict[int, Any]:
    """Rank r on host r modulo 2 of a lab."""
    with Lab(LabOptions()) as lab:
        processes = [
            host.popen(
                ranks_command(scenario, world, list(range(host.index, world, 2)), "real", folder),
                env=os.environ | ENV | {"HARP_PATH": path, "NCCL_SOCKET_IFNAME": f"={host.ifname}"},
                stderr=subprocess.PIPE,
            )
            for host in lab.hosts
        ]
        outcomes = [
            (process.communicate(timeout=TIMEOUT_S), process.returncode) for process in processes
        ]
    return results([(status, out, err) for (out, err), status in outcomes])


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8, 13])
def test_operations(tmp_path: Path, world: int) -> None:
    """Every operation equals numpy's, in every size class."""
    stats = run_local(tmp_path, "ops", world)
    assert len(stats) == world
    assert all(stat["shm_sent_messages"] == 0 for stat in stats.values())


@pytest.mark.parametrize(("world", "hosts"), [(3, 1), (5, 2), (6, 3), (8, 2)])
def test_operations_on_hosts(tmp_path: Path, world: int, hosts: int) -> None:
    """Ranks of a host communicate through shared memory."""
    stats = run_local(tmp_path, "ops", world, hosts)
    assert len(stats) == world
    for rank, stat in stats.items():
        neighbors = len(range(rank % hosts, world, hosts)) - 1
        assert (stat["shm_sent_messages"] > 0) == (neighbors > 0)
        assert (stat["net_sent_messages"] > 0) == (hosts > 1)


@pytest.mark.parametrize(("world", "hosts"), [(2, 0), (4, 1)])
def test_types(tmp_path: Path, world: int, hosts: int) -> None:
    """Every type with every reduction that it supports."""
    assert len(run_local(tmp_path, "types", world, hosts)) == world


@pytest.mark.parametrize(("hosts", "expected"), [(0, (6, 3, 3)), (2, (2, 1, 1))])
def test_large(tmp_path: Path, hosts: int, expected: tuple[int, ...]) -> None:
    """Requests overlap. `expected`: MiB that each of four ranks sends over the network in an
    all-reduce, a reduce-scatter and an all-gather of 4 MiB. Two hosts send a third of four.
    """
    for sent in run_local(tmp_path, "large", 4, hosts).values():
        assert sent == pytest.approx([mib << 20 for mib in expected], rel=0.05)


@pytest.mark.parametrize(
    ("scenario", "calls"),
    [
        ("different_ops", ("allreduce(float32, 100 elements, sum)", "broadcast(float32, 100")),
        ("different_blocks", ("bytes to rank",)),
    ],
)
def test_mismatched_calls(tmp_path: Path, scenario: str, calls: tuple[str, ...]) -> None:
    """Both ranks report both calls. tests/sim/sim_coll_run.c simulates more mismatches."""
    for text in run_local(tmp_path, scenario, 2).values():
        assert text.startswith("71 ")
        assert "rank 0" in text
        assert "rank 1" in text
        assert all(call in text for call in calls), text


@pytest.mark.parametrize(("world", "hosts"), [(3, 0), (5, 2), (6, 3), (3, 1)])
def test_wire_formats(tmp_path: Path, world: int, hosts: int) -> None:
    """Half of the bytes cross the network; sums are as accurate as the format allows."""
    shares = [
        share for values in run_local(tmp_path, "wires", world, hosts).values() for share in values
    ]
    assert bool(shares) == (hosts != 1)
    assert all(abs(share - 0.5) < 0.01 for share in shares), shares


def test_different_settings(tmp_path: Path) -> None:
    """An error names the setting in which ranks differ."""
    for texts in run_local(tmp_path, "different_settings", 2).values():
        option, variable, unknown, unknown_algorithm, algorithm, call = texts
        assert unknown_algorithm == "HARP_COLL_ALGO=tree: must be empty or ring"
        assert "the HARP_COLL_* variables of ranks 0 and 1 differ" in algorithm
        assert "rank 1 opened it with wire format float16, rank 0 with native; give all" in option
        assert "rank 1 opened it with wire format native, rank 0 with bfloat16; give" in variable
        assert unknown == "HARP_COLL_WIRE=float8: must be native, float16 or bfloat16"
        assert "rank 0 called allreduce(float32, 100 elements, sum)" in call
        assert "rank 1 called allreduce(float32, 100 elements, sum, wire float16)" in call


@pytest.mark.parametrize("hosts", [0, 1])
def test_a_late_rank_is_named(tmp_path: Path, hosts: int) -> None:
    errors = run_local(tmp_path, "late", 3, hosts)
    for rank in (0, 1):
        assert errors[rank].startswith("110 ")
        assert re.search(r"timed out: rank 2 \(host \S+\) did not take part in it", errors[rank])


@pytest.mark.parametrize("hosts", [0, 1])
def test_an_idle_rank_sends_its_last_messages(tmp_path: Path, hosts: int) -> None:
    """The other rank gets them without another call of the idle rank."""
    assert run_local(tmp_path, "idle_after_an_operation", 2, hosts) == {0: None, 1: None}


@pytest.mark.parametrize("hosts", [0, 1])
def test_a_killed_rank_is_named(tmp_path: Path, hosts: int) -> None:
    errors = run_local(tmp_path, "killed", 3, hosts)
    for rank in (0, 2):
        assert errors[rank].startswith("104 "), errors
        assert "rank 1" in errors[rank]
    # A survivor that has no connection to the killed rank reads the reason in the store.
    assert "rank 1" in (tmp_path / "harp_coll_g_error").read_text()


PRIVATE_MEMORY = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("scenario", "error", "rank"),
    [
        ("killed_before_mapping", r"104 .*rank {} \(host \S+\) died, process \d+", 1),
        ("killed_after_mapping", r"104 .*rank {} \(host \S+\) died, process \d+", 0),
        ("stopped_before_mapping", r"110 .*rank {} \(host \S+\) did not map", 1),
    ],
)
def test_a_rank_that_fails_while_the_group_opens(
    tmp_path: Path, scenario: str, error: str, rank: int
) -> None:
    """The others report it long before their timeout, and leave no file in /dev/shm."""
    errors = run_program([*PRIVATE_MEMORY, *ranks_command(scenario, 3, [0, 1, 2], "1", tmp_path)])
    assert len(errors) == (2 if scenario.startswith("killed") else 3)
    for text, files in errors.values():
        assert re.match(error.format(rank), text), errors
        assert files == []


def test_absent_rank(tmp_path: Path) -> None:
    errors = run_local(tmp_path, "absent", 3)
    assert all("rank 1 did not open it" in errors[rank] for rank in (0, 2)), errors


def test_other_world(tmp_path: Path) -> None:
    errors = run_local(tmp_path, "other_world", 2)
    assert "rank 1 opened it with world 3, rank 0 with 2" in errors[0]
    assert "world" in errors[1]


def test_other_version(tmp_path: Path) -> None:
    text = "group g: rank 1 has another version of libharp-coll; install the same on all hosts"
    errors = run_local(tmp_path, "other_version", 2)
    assert errors == {0: f"71 {text}", 1: f"HARP-COLL-ERROR 71 {text}"}


def test_broken_store(tmp_path: Path) -> None:
    for text in run_local(tmp_path, "broken_store", 2).values():
        assert text.startswith("5 the key-value store failed to set harp/coll/g/info/")
        assert text.endswith("(no answer to harp/coll/g/info)")


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("mount -t tmpfs -o size=4k none /dev/shm", "No space left on device; "),
        ("mount -t tmpfs -o size=64k none /dev/shm", "No space left on device; "),
        ("ulimit -f 100", "File too large; raise the limit (ulimit -f), "),
    ],
)
def test_a_full_dev_shm_is_an_error(tmp_path: Path, limit: str, text: str) -> None:
    """Neither the segment nor a link's ring causes SIGBUS. Rank 1, which waits for rank 0's
    segment, reports the same error."""
    limited = ["unshare", "-m", "sh", "-c", f'{limit} && exec "$@"']
    command = [*limited, "sh", *ranks_command("no_space", 2, [0, 1], "1", tmp_path)]
    errors = run_program(command)
    assert all(f"{text}free space in /dev/shm" in errors[rank] for rank in (0, 1)), errors


def test_abort(tmp_path: Path) -> None:
    errors = run_local(tmp_path, "aborted", 3)
    assert errors[0] == "125 rank 0 aborted the group: lunch"
    assert all(errors[rank].startswith("104 ") and "lunch" in errors[rank] for rank in (1, 2)), (
        errors
    )


def test_fork(tmp_path: Path) -> None:
    """Calls in the child fail; the parent's group still works."""
    assert run_local(tmp_path, "forked", 2) == {0: "child 0", 1: "child 0"}


@pytest.mark.parametrize("hosts", [0, 1])
def test_close_with_work_in_flight(tmp_path: Path, hosts: int) -> None:
    errors = run_local(tmp_path, "in_flight", 2, hosts)
    assert errors[0].startswith("125 rank 0 closed the group")
    assert errors[1].startswith("104 ")
    assert "rank 0" in errors[1]


def test_bad_calls(tmp_path: Path) -> None:
    """Each call raises one clear error, and the group still works."""
    for texts in run_local(tmp_path, "bad_calls", 2).values():
        for text, message in zip(
            texts,
            ("mean", "band", "float16", "4 elements", "not supported", "root 2", "peer", "divided"),
            strict=True,
        ):
            assert message in text


@pytest.mark.parametrize(("scenario", "path"), [("ops", "xdp"), ("large", "xdp")])
def test_two_hosts(tmp_path: Path, scenario: str, path: str) -> None:
    """Two network namespaces over AF_XDP."""
    assert len(run_on_hosts(tmp_path, scenario, 2, path)) == 2


def test_two_hosts_of_two_ranks(tmp_path: Path) -> None:
    """HARP detects that the ranks of a network namespace can share memory."""
    stats = run_on_hosts(tmp_path, "ops", 4, "kernel")
    assert all(stat["shm_sent_bytes"] > 0 for stat in stats.values())


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("hosts", [0, 1, 2])
def test_every_type(
    tmp_path: Path, world: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation with every type, reduction and size equals numpy's."""
    monkeypatch.setenv("HARP_TEST_TYPES", "all")
    # 13 ranks on few processors take minutes on a busy machine.
    assert len(run_local(tmp_path, "types", world, hosts, timeout_s=600)) == world


@pytest.mark.sample("0-100", "1-100")
@pytest.mark.parametrize("groups", [100, 1000])
@pytest.mark.parametrize("hosts", [0, 1])
def test_groups_leak_nothing(
    tmp_path: Path, groups: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither descriptors nor threads nor memory, over the plugin and through shared memory."""
    monkeypatch.setenv("HARP_TEST_GROUPS", str(groups))
    for count, descriptors, threads, kib in run_local(tmp_path, "many_groups", 2, hosts).values():
        assert count == groups
        # A leak would be one per group. Connections of the last groups may still be closing.
        assert descriptors < groups / 4
        assert threads < groups / 4
        # A leak would be larger: a group has half a MiB of shared memory.
        assert kib < 2048
