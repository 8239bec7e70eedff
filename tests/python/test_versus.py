# SPDX-License-Identifier: Apache-2.0
"""The benches against the kernel: they measure what they say, and judge it by their goals.

What they measure on a busy machine is not judged here.
"""

from typing import Any

import pytest

from harp.bench import versus
from harp.errors import Exit, HarpError


def test_loss(need_root: None) -> None:
    options = versus.LossOptions(losses=(0.01,), kinds=("harp", "cubic"), rounds=1, seconds=1.5)
    said: list[str] = []
    report = versus.run_loss(options, said.append)
    assert said == ["loss 1.0%, round 1 of 1"]
    (result,) = report["results"]
    assert set(result["median"]) == {"harp", "cubic"}
    for kind, (found,) in result["rounds"].items():
        assert result["median"][kind]["stream_gbit_per_s"] == found["stream_gbit_per_s"] > 0
        assert 0 < found["single_p50_us"] <= found["single_p99_us"]
        assert found["lost_bytes"] > 0
        assert found["resent_to_lost"] > 0.9, "what was lost was sent again"
        for test in ("stream", "single"):
            conn = found[f"{test}_conn"]
            assert conn["kind"] == ("harp" if kind == "harp" else "kernel")
            assert conn["cc"] == "cubic"
            assert conn["snd_mss_bytes"] == 1448
    assert set(result["met"]) == {"goodput", "stream p99", "single p99", "resent"}
    assert report["ok"] is all(result["met"].values())


def test_fairness(need_root: None) -> None:
    """Who ran when, and what is reported of it; how much they got is the bench's to say."""
    options = versus.FairnessOptions(
        mbit_per_s=100, queue_bytes=250_000, flows=2, rounds=2, seconds=2, skip_s=1, alone=True
    )
    said: list[str] = []
    report = versus.run_fairness(options, said.append)
    assert [word.split(",")[0] for word in said] == ["round 1 of 2", "round 2 of 2"]
    assert [found["began_first"] for found in report["rounds"]] == ["harp", "cubic"]
    for found in report["rounds"]:
        for side in ("harp", "kernel"):
            flows = found[f"{side}_flows_mbit_per_s"]
            assert len(flows) == len(found[f"{side}_conns"]) == 2
            assert flows == sorted(flows)
            assert found[f"{side}_mbit_per_s"] == pytest.approx(sum(flows))
            assert {conn["kind"] for conn in found[f"{side}_conns"]} == {side}
            assert len(found[f"{side}_cpu_shares"]) == 2  # sender, receiver
        # Counted where it arrives, by one clock: never more than the line carries.
        assert found["harp_mbit_per_s"] + found["kernel_mbit_per_s"] <= 100
    assert report["median"]["share_ratio"] >= 1
    assert report["ok"] is (report["median"]["share_ratio"] <= report["goals"]["share_ratio"])
    assert set(report["alone"]) == {"harp", "kernel"}
    for side, runs in report["alone"].items():
        assert len(runs) == 2
        for found in runs:
            assert len(found[f"{side}_flows_mbit_per_s"]) == 4


@pytest.mark.parametrize(
    ("harp", "kernel", "ratio"),
    [(48.0, 48.0, 1.0), (64.0, 32.0, 2.0), (24.0, 72.0, 3.0), (0.0, 96.0, float("inf"))],
)
def test_shares(harp: float, kernel: float, ratio: float) -> None:
    found = versus._fairness_shares({"harp_mbit_per_s": harp, "kernel_mbit_per_s": kernel})
    assert found["share_ratio"] == ratio


@pytest.mark.parametrize(("rates", "index"), [((5.0, 5.0), 1.0), ((0.0, 7.0), 0.5), ((3.0,), 1.0)])
def test_fairness_index(rates: tuple[float, ...], index: float) -> None:
    assert versus._jain(rates) == pytest.approx(index)


def test_nothing_came_through() -> None:
    with pytest.raises(HarpError, match=r"no flow got a byte .* make it longer"):
        versus._jain([0.0, 0.0])


def result_with(harp: dict[str, float], cubic: dict[str, float]) -> dict[str, Any]:
    """A loss result of one round, made of 1.0s but for what is given."""
    names = versus._MEDIANS
    rounds: dict[str, list[dict[str, Any]]] = {
        "harp": [dict.fromkeys(names, 1.0) | harp],
        "cubic": [dict.fromkeys(names, 1.0) | cubic],
    }
    return versus._loss_result(0.01, rounds)


@pytest.mark.parametrize(
    ("harp", "cubic", "missed"),
    [
        ({}, {}, set()),
        ({"stream_gbit_per_s": 0.91}, {}, set()),
        ({"stream_gbit_per_s": 0.89}, {}, {"goodput"}),
        ({"stream_p99_us": 1.12}, {}, {"stream p99"}),
        ({}, {"single_p99_us": 0.88}, {"single p99"}),
        ({"resent_to_lost": 1.6}, {}, {"resent"}),
    ],
)
def test_goals_of_loss(harp: dict[str, float], cubic: dict[str, float], missed: set[str]) -> None:
    met = result_with(harp, cubic)["met"]
    assert {name for name, good in met.items() if not good} == missed


def test_an_unknown_congestion_control_is_named() -> None:
    with pytest.raises(HarpError, match="no congestion control vegan; it has") as caught:
        versus.run_loss(versus.LossOptions(kinds=("harp", "vegan")), lambda _: None)
    assert caught.value.code == Exit.MISSING
