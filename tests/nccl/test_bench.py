# SPDX-License-Identifier: Apache-2.0
"""harpctl bench nccl-real: its table, and its exit code."""

import json
from typing import Any

import pytest
from nccl_tools import NEWEST
from test_cli_config import harpctl

from harp.bench import nccl_real
from harp.bench.nccl_real import NOTE, OPERATIONS
from harp.nccl import wheels
from harp.nccl.ranks import SOCKETS

COLUMNS = ("operation", "size B", "over", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "speed")


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert nccl_real.bus_factor("allreduce", 4) == 1.5
    for operation in ("allgather", "reducescatter", "alltoall"):
        assert nccl_real.bus_factor(operation, 4) == 0.75


def test_the_speed_is_a_median_of_ratios_within_a_round() -> None:
    options = nccl_real.RealOptions(NEWEST, rounds=3)
    key = ("allreduce", 1000)

    def runs(*times_us: float) -> list[dict[Any, Any]]:
        return [{key: {"time_us": time_us, "bytes": 1000, "wrong": 1}} for time_us in times_us]

    row = nccl_real._row(options, 2, key, {"auto": runs(1, 20, 3), SOCKETS: runs(2, 10, 9)})
    auto = row["transports"]["auto"]
    assert auto["speed_to_sockets"] == 2
    assert (auto["time_us"], auto["wrong"]) == (3, 3)
    assert auto["algbw_gb_per_s"] == auto["busbw_gb_per_s"] == pytest.approx(1 / 3)


@pytest.mark.nccl
@pytest.mark.parametrize("ranks", ["2", "4"])
def test_all_operations_over_harp_and_over_the_sockets(need_root: None, ranks: str) -> None:
    wheels.fetch(NEWEST)
    arguments = ("bench", "nccl-real", "--nccl", NEWEST, "--rounds", "1", "--size", "4096")
    result = harpctl(*arguments, "--ranks", ranks, "--path", "xdp", "-o", "json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["note"] == NOTE
    assert report["ranks"] == int(ranks)
    assert [row["operation"] for row in report["results"]] == list(OPERATIONS)
    for row in report["results"]:
        assert set(row["transports"]) == {"xdp", SOCKETS}
        assert all(cell["wrong"] == 0 < cell["time_us"] for cell in row["transports"].values())


@pytest.mark.nccl
def test_the_table_begins_with_the_meaning_of_times(need_root: None) -> None:
    wheels.fetch(NEWEST)
    arguments = ("bench", "nccl-real", "--nccl", NEWEST, "--rounds", "1", "--size", "4096")
    result = harpctl(*arguments, "--operation", "allreduce", COLUMNS="200")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "The CPU emulates the GPU: times compare transports on this machine only.\n"
    )
    (header,) = (line for line in result.stdout.splitlines() if "algbw" in line)
    assert [name for name in COLUMNS if name not in header] == []
    assert "NCCL's sockets" in result.stdout
    assert "HARP auto" in result.stdout
