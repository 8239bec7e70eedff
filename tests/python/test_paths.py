# SPDX-License-Identifier: Apache-2.0
"""The side-by-side bench: what it measures, and its verdict over times that are given.

What it measures on a busy machine is not judged here.
"""

import json
from collections.abc import Mapping, Sequence

import pytest
from click.testing import CliRunner

from harp import cli_bench, cli_paths, paths
from harp.attaching import ATTACH_MODES, ATTACH_TESTS, Attached
from harp.errors import HarpError
from harp.lab import Lab
from harp.paths import KIB, MIB, Run, Way

ROUNDS = 5


def judged(
    auto: Sequence[float],
    xdp: float,
    kernel: float,
    sockets: Sequence[float],
    counts: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """The verdict on five rounds: auto's and the sockets' times given for each or for all."""
    costs = {
        "auto": list(auto) * (ROUNDS // len(auto)),
        "xdp": [xdp] * ROUNDS,
        "kernel": [kernel] * ROUNDS,
        "sockets": list(sockets) * (ROUNDS // len(sockets)),
    }
    return paths.judge(costs, [counts or {}] * ROUNDS)


def test_the_kind_counts_where_it_matters() -> None:
    """Chosen right though slow: right. Chosen wrong, and slow: missed. Wrong but as fast: right."""
    right, wrong = {"HARP": 90, "kernel": 10}, {"HARP": 10, "kernel": 90}
    assert judged([4.0], 3.0, 6.0, [6.0], right)["missed"] == []
    assert judged([6.0], 3.0, 6.0, [6.0], wrong)["missed"] == [
        "HARP is best, auto took it in 0 of 5 rounds"
    ]
    assert judged([3.2], 3.0, 6.0, [6.0], wrong)["missed"] == []
    assert judged([6.0], 3.0, 6.0, [6.0])["missed"], "nothing was counted at all"
    assert judged([6.0], 6.0, 3.0, [6.0], right)["best"] == "kernel"


def test_ways_that_hardly_differ_are_alike() -> None:
    verdict = judged([3.8], 3.0, 3.8, [3.8], {"kernel": 100})
    assert verdict["right_rounds"] == 0
    assert verdict["missed"] == []
    assert verdict["differ"] == pytest.approx(3.8 / 3)


@pytest.mark.parametrize(("good", "missed"), [(5, False), (4, False), (3, True)])
def test_rounds_are_counted(good: int, missed: bool) -> None:
    costs = {
        "auto": [3.0] * good + [6.0] * (ROUNDS - good),
        "xdp": [3.0] * ROUNDS,
        "kernel": [6.0] * ROUNDS,
    }
    chose = [{"HARP": 9}] * good + [{"kernel": 9}] * (ROUNDS - good)
    verdict = paths.judge(costs, chose)
    assert verdict["right_rounds"] == good
    assert bool(verdict["missed"]) is missed


def test_both_kinds_at_once_is_right_when_it_is_as_fast() -> None:
    both = {"both": 100}
    assert judged([2.0], 3.0, 5.0, [5.0], both)["missed"] == []
    assert judged([4.0], 3.0, 5.0, [5.0], both)["missed"] != []


def test_slower_than_sockets_is_missed_when_it_is_sure() -> None:
    right = {"kernel": 100}
    verdict = judged([6.0], 7.0, 6.0, [4.0], right)
    assert verdict["missed"] == ["1.50 times the time of kernel sockets"]
    # The same median, from rounds that say everything: the interval reaches below.
    noisy = judged([6.0], 7.0, 6.0, [4.0, 9.0, 4.0, 9.0, 4.0], right)
    assert noisy["missed"] == []


def test_intervals_come_from_the_rounds() -> None:
    flat = paths.interval([2.0] * 5, [1.0] * 5)
    assert flat == {"ratio": 2.0, "low": 2.0, "high": 2.0}
    spread = paths.interval([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert spread["ratio"] == 3.0
    assert 1.0 <= spread["low"] < 3.0 < spread["high"] <= 5.0
    assert spread == paths.interval([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5), "no luck in it"


def test_costs_are_compared_within_a_round() -> None:
    """A machine of two speeds: each round all ways are slow, or all are fast."""
    slow = [1.0, 2.5, 1.0, 2.5, 2.5]
    costs = {
        "auto": [3.0 * factor for factor in slow],
        "xdp": [3.0 * factor for factor in slow],
        "kernel": [6.0 * factor for factor in slow],
        "sockets": [3.0 * factor for factor in slow],
    }
    verdict = paths.judge(costs, [{"HARP": 9}] * ROUNDS)
    assert (verdict["best"], verdict["differ"], verdict["clear"]) == ("xdp", 2.0, True)
    assert verdict["ratio"]["xdp"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    wrong = paths.judge(costs | {"auto": costs["kernel"]}, [{"kernel": 9}] * ROUNDS)
    assert wrong["right_rounds"] == 0, "6.0 in a fast round is not near 7.5, the best's median"


def test_rounds_that_disagree_assert_nothing() -> None:
    """Which is better changes from round to round: there is no best to be missed."""
    costs = {
        "auto": [4.0] * ROUNDS,
        "xdp": [3.0, 3.0, 3.0, 6.0, 6.0],
        "kernel": [6.0, 6.0, 6.0, 3.0, 3.0],
    }
    verdict = paths.judge(costs, [{"kernel": 9}] * ROUNDS)
    assert (verdict["differ"], verdict["clear"], verdict["missed"]) == (2.0, False, [])


def test_surplus_is_to_the_kind_chosen() -> None:
    costs = {"auto": [3.3, 6.6, 9.0], "xdp": [3.0] * 3, "kernel": [6.0] * 3}
    verdict = paths.judge(costs, [{"HARP": 9}, {"kernel": 9}, {"both": 9}])
    assert verdict["surplus"]["ratio"] == pytest.approx(1.1)
    assert paths.judge(costs, [{}] * 3)["surplus"] is None


def test_favourites() -> None:
    assert paths.favourite({}) == "none"
    assert paths.favourite({"HARP": 51, "kernel": 49}) == "HARP"
    assert paths.favourite({"HARP": 50, "kernel": 50}) == "mixed"
    assert paths.favourite({"HARP": 40, "kernel": 30, "both": 30}) == "mixed"


def test_choices_are_read_from_the_plugins_words() -> None:
    lines = [
        "host:1:1 [0] NCCL INFO NET/HARP: HARP 0.4.0: eth0: path HARP: generic XDP: driver veth",
        "host:1:1 [0] NCCL INFO NET/HARP: messages sent, by size: 64 B: 90 HARP, 10 kernel;"
        " 16 KiB: 5 kernel; 64 MiB: 7 both",
        "host:1:1 [0] NCCL INFO NET/HARP: messages sent, by size: 64 B: 5 kernel",
    ]
    assert paths.read_choices(lines) == {
        64: {"HARP": 90, "kernel": 15},
        16 * KIB: {"kernel": 5},
        64 * MIB: {"both": 7},
    }
    assert [paths.class_bytes(size) for size in (1, 8, 64, 65, 4096, 4097, 64 * MIB)] == [
        *(64, 64, 64, 128, 4096, 8192, 64 * MIB)
    ]


def test_ways_take_turns() -> None:
    """Every way once a round and mode, beginning with another one each time."""
    asked: list[tuple[str, str]] = []

    def measure(way: Way, mode: str) -> Run:
        asked.append((way.name, mode))
        cost = {"auto": 3.0, "xdp": 3.0}.get(way.name, 6.0) + (8 if mode == "bw" else 0)
        return Run({8: cost}, {8: {"HARP": 9}})

    turns = paths.take_turns(measure, paths.WAYS, 3, lambda _: None)
    results = paths.collect(turns.runs, paths.WAYS, (8,))
    names = [way.name for way in paths.WAYS]
    assert [name for name, mode in asked if mode == "lat"] == [
        *names,
        *(*names[1:], names[0]),
        *(*names[2:], *names[:2]),
    ]
    (row,) = results["lat"]
    assert row["median"] == dict.fromkeys(names, 6.0) | {"auto": 3.0, "xdp": 3.0}
    assert (row["best"], row["right_rounds"], row["favourites"]) == ("xdp", 3, ["HARP"] * 3)
    assert row["ratio"]["kernel"]["ratio"] == 0.5
    assert results["bw"][0]["median"]["auto"] == 11.0


def test_a_round_in_which_the_pace_changes_is_taken_again() -> None:
    """What is kept is of one pace, and in the end what there is."""
    ways, costs = paths.WAYS[:2], iter(range(100))
    looks = [2.0, 2.1, 5.5] + [5.5, 5.4, 5.6] + [2.0, 5.0, 2.0] * 4
    said: list[str] = []
    left = iter(looks)

    def measure(_way: Way, _mode: str) -> Run:
        return Run({8: float(next(costs))}, {})

    turns = paths.take_turns(measure, ways, 2, said.append, lambda: next(left))
    assert turns.again == 1 + 3
    assert turns.paces == [(5.4, 5.6), (2.0, 5.0)]
    assert sum("again" in words for words in said) == turns.again
    # Four runs a round: the first round's are those of its second try, the other's of its fourth.
    assert [run.cost[8] for run in turns.runs["lat", "auto"]] == [4.0, 22.0]
    assert not list(left)


def test_long_messages_are_few() -> None:
    for mode in paths.MODES:
        for words in paths.sizes_argument(mode, paths.SIZES).split(","):
            size, count, warm = map(int, words.split(":"))
            assert count >= 16
            assert warm >= 8
            assert size * (count + warm) <= 4096 * MIB


# --------------------------------------------------------------------------------------------------
# On this machine.
#
def test_paths_command(need_root: None, few_messages: None) -> None:
    """A short run of everything: each way, each mode, both sizes, and what auto's plugin said."""
    words = ["paths", "--sizes", "8,64K", "--rounds", "1", "-o", "json"]
    done = CliRunner().invoke(cli_bench.bench, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert set(report["results"]) == {"lat", "bw"}
    for rows in report["results"].values():
        assert [row["size_bytes"] for row in rows] == [8, 64 * KIB]
        for row in rows:
            assert set(row["rounds"]) == {way.name for way in paths.WAYS}
            assert all(len(costs) == 1 and costs[0] > 0 for costs in row["rounds"].values())
    assert report["ok"] is not any(
        row["missed"] for rows in report["results"].values() for row in rows
    )


def test_attach_command(need_root: None, few_messages: None) -> None:
    done = CliRunner().invoke(
        cli_bench.bench, ["attach", "--rounds", "1", "-o", "json"], catch_exceptions=False
    )
    report = json.loads(done.stdout)
    assert done.exit_code == (0 if report["ok"] else 1), "one round says little of the speed"
    assert report["why"]["unnamed"].startswith("eth0: generic XDP, on a device beside it (harp")
    assert report["why"]["named"] == report["why"]["unnamed"]
    assert report["why"]["direct"].startswith("eth0: generic XDP: as asked; ")
    assert report["why"]["none"] == "no program"
    assert set(report["speed_ratio"]) == {"unnamed", "named", "leased", "direct", "native"}
    assert report["why"]["leased"].startswith("eth0: generic XDP, on a device beside it (harp")
    for found in report["costs"].values():
        assert set(found) == set(ATTACH_TESTS)


def test_no_baseline_beside_a_program(need_root: None) -> None:
    """It would be measured without saying so; and what was attached is gone afterwards."""
    with Lab() as lab:
        paths.check_bare(lab)
        for mode in ("unnamed", "direct"):
            with Attached(lab, ATTACH_MODES[mode]):
                assert all(paths.program_attached(host) for host in lab.hosts)
                with pytest.raises(HarpError, match="that is no baseline"):
                    paths.check_bare(lab)
            paths.check_bare(lab)


@pytest.mark.parametrize("words", ["", "8,", "0", "65M", "8,8", "1K,1024", "-1", "8G"])
def test_bad_sizes(words: str) -> None:
    done = CliRunner().invoke(cli_bench.bench, ["paths", "--sizes", words])
    assert done.exit_code == 2
    assert "Error: Invalid value for '--sizes'" in done.output


def test_size_words() -> None:
    assert [cli_paths.size_words(size) for size in (8, 1000, 4096, 64 * MIB)] == [
        *("8", "1000", "4K", "64M")
    ]
