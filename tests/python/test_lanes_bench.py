# SPDX-License-Identifier: Apache-2.0
"""Kernel lanes beside NCCL's sockets: the verdict over times that are given, and one short run."""

import json

import pytest
from click.testing import CliRunner

from harp import cli_bench, lanes, paths
from harp.paths import KIB, Run, Way


def judged(sixteen: list[float]) -> list[str]:
    costs = {way.name: [2.0] * len(sixteen) for way in lanes.LANES}
    costs |= {"sockets": [2.0] * len(sixteen), "sockets2x8": [4.0] * len(sixteen)}
    missed = lanes.judge(costs | {"kernel16": sixteen})["missed"]
    assert isinstance(missed, list)
    return missed


def test_each_is_compared_with_its_shape() -> None:
    assert judged([4.0] * 5) == []
    assert judged([6.0] * 5) == ["kernel16: 1.50 times the time of sockets2x8"]
    assert judged([6.0, 2.0, 6.0, 2.0, 6.0]) == [], "the interval reaches below"


def test_every_way_has_a_rival_that_runs() -> None:
    sockets = {way.name for way in paths.WAYS if way.sockets}
    assert set(lanes.RIVALS) == {way.name for way in lanes.LANES}
    assert set(lanes.RIVALS.values()) == sockets


def test_rows_come_from_the_rounds() -> None:
    ways = [*lanes.LANES, *(way for way in paths.WAYS if way.sockets)]

    def measure(way: Way, mode: str) -> Run:
        return Run({8: (4.0 if way.sockets else 3.0) * (1 if mode == "lat" else 2)}, {})

    turns = paths.take_turns(measure, ways, 2, lambda _: None)
    results = paths.collect(turns.runs, ways, (8,), lanes.judge)
    (row,) = results["bw"]
    assert row["rounds"]["kernel1"] == [6.0, 6.0]
    assert row["ratio"]["kernel2x8"] == {"ratio": 0.75, "low": 0.75, "high": 0.75}


def test_lanes_command(need_root: None, few_messages: None) -> None:
    words = ["lanes", "--sizes", "8,64K", "--rounds", "1", "-o", "json"]
    done = CliRunner().invoke(cli_bench.bench, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    for rows in report["results"].values():
        assert [row["size_bytes"] for row in rows] == [8, 64 * KIB]
        for row in rows:
            assert set(row["rounds"]) == set(report["ways"])
            assert all(costs[0] > 0 for costs in row["rounds"].values())


@pytest.mark.parametrize("words", [["--ipv6"], ["--sizes", "0"], ["--plugin", "/nowhere.so"]])
def test_bad_arguments(words: list[str]) -> None:
    done = CliRunner().invoke(cli_bench.bench, ["lanes", *words])
    assert done.exit_code != 0
