# SPDX-License-Identifier: Apache-2.0
"""harpctl bench nccl: the verdict on times, and one real run of every shape. Reports of harpctl
bench failover and bench loss."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harp.bench import failover, loss
from harp.bench import nccl as nccl_bench
from harp.bench.nccl import AUTO, KERNEL, SOCKETS, XDP, Shape, judge
from harp.bench.streams import Sample, pause_ns, rate_bytes_per_s
from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions
from harp.lab.rails import Rails

ROUNDS = 5


def times(auto: float, xdp: float, kernel: float, sockets: float) -> dict[str, list[float]]:
    """Return the same times for each round."""
    by_name = {AUTO: auto, XDP: xdp, KERNEL: kernel, SOCKETS: sockets}
    return {name: [value] * ROUNDS for name, value in by_name.items()}


def test_auto_is_compared_with_the_faster_forced_path() -> None:
    cell = judge(times(10, 20, 10.2, 12))
    assert cell["best_forced"] == KERNEL
    assert cell["speed"][KERNEL]["ratio"] == pytest.approx(1.02)
    assert cell["speed"][SOCKETS]["ratio"] == pytest.approx(1.2)
    assert cell["missed"] == []


def test_a_goal_outside_the_confidence_interval_is_missed() -> None:
    missed = judge(times(10, 8, 9, 9.9))["missed"]
    assert missed == ["0.90 of the speed of kernel", "0.99 of the speed of NCCL's sockets"]


def test_an_interval_that_reaches_the_goal_is_not_missed() -> None:
    samples = times(10, 9, 20, 20)
    samples[AUTO] = [10, 10, 9, 9, 9]
    assert judge(samples)["missed"] == []


def test_ratios_are_computed_within_a_round() -> None:
    """A round in which the machine is three times slower changes no ratio."""
    samples = times(10, 12, 20, 15)
    slow = {
        name: [value * (3 if index == 2 else 1) for index, value in enumerate(values)]
        for name, values in samples.items()
    }
    assert judge(slow)["speed"] == judge(samples)["speed"]


def test_repetitions_are_bounded_by_bytes_and_number() -> None:
    shape = Shape("allreduce", "allreduce", (8, 64 * nccl_bench.MIB))
    assert shape.argument(64 * nccl_bench.MIB, (4, 1000)) == f"8:1000:200,{64 * nccl_bench.MIB}:4:1"


def test_sizes_beyond_the_limits_are_left_out() -> None:
    shape = Shape("stream", "bw", (8, 4096, 65536))
    assert nccl_bench.limit_sizes(shape, 4096).sizes == (8, 4096)
    assert nccl_bench.limit_sizes(shape, None).sizes == shape.sizes


@pytest.mark.parametrize(("second_us", "is_ok"), [(10.0, True), (12.0, False)])
def test_the_second_measurement_of_a_cell_that_missed_decides(
    monkeypatch: pytest.MonkeyPatch, second_us: float, is_ok: bool
) -> None:
    sizes_run = []

    def run_shape(lab: object, shape: Shape, transport: str) -> tuple[dict[int, float], str]:
        sizes_run.append(shape.sizes)
        slow = 12.0 if shape.sizes == (8, 64) else second_us
        auto_us = {8: slow, 64: 10.0}
        return {size: auto_us[size] if transport == AUTO else 10.0 for size in shape.sizes}, ""

    monkeypatch.setattr(nccl_bench, "run_shape", run_shape)
    monkeypatch.setattr(nccl_bench, "Lab", lambda options: contextlib.nullcontext())
    shape = Shape("allreduce", "allreduce", (8, 64))
    report = nccl_bench.run_nccl([LabOptions()], [shape], 3, lambda words: None)
    assert report["ok"] is is_ok
    assert sizes_run == [(8, 64)] * 12 + [(8,)] * 24
    small, large = report["settings"][0]["shapes"][0]["cells"]
    assert small["first"]["missed"]
    assert "first" not in large


@pytest.mark.parametrize("args", [["--ranks", "4", "--shape", "pingpong"], ["--channels", "3"]])
def test_options_that_select_no_shape_are_an_error(args: list[str]) -> None:
    result = CliRunner().invoke(nccl_bench.nccl, args)
    assert isinstance(result.exception, HarpError)
    assert result.exception.code == Exit.USAGE


def test_a_plot_without_an_all_reduce_of_two_ranks_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(HarpError, match="all-reduce of 2 ranks"):
        nccl_bench.plot_allreduce({"settings": []}, tmp_path / "plot.png")


@pytest.fixture(scope="module")
def report(need_root: None) -> dict[str, Any]:
    """A report of every kind of shape, with two sizes."""
    shapes = {shape.name: shape for shape in nccl_bench.SHAPES if shape.channels < 4}
    small = tuple(nccl_bench.limit_sizes(shape, 65536) for shape in shapes.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_bench, "_RUNS_MAX", 16)  # the tests do not judge the times
        return nccl_bench.run_nccl([LabOptions()], small, 1, lambda words: None)


def test_every_transport_measures_every_shape(report: dict[str, Any]) -> None:
    (setting,) = report["settings"]
    assert {shape["name"] for shape in setting["shapes"]} == set(nccl_bench.SHAPE_NAMES)
    for shape in setting["shapes"]:
        assert "AF_XDP" in shape["paths"][XDP]
        assert "kernel TCP" in shape["paths"][KERNEL]
        for cell in shape["cells"]:
            assert set(cell["median_us"]) == set(nccl_bench.TRANSPORTS)
            assert all(time > 0 for time in cell["median_us"].values())
    json.dumps(report)


# --------------------------------------------------------------------------------------------------
# Failover and loss.
#
def test_bad_lab_options_are_named(need_root: None) -> None:
    with pytest.raises(HarpError, match="mtu") as caught:
        Lab(LabOptions(mtu_bytes=100, rails=2))
    assert caught.value.code == Exit.USAGE
    with pytest.raises(HarpError, match="rails"):
        Lab(LabOptions(rails=5))
    with Lab() as lab, pytest.raises(HarpError, match="switch"):
        Rails(lab)


def test_pauses_and_rates_of_a_timeline() -> None:
    samples = [Sample(at * 10, count) for at, count in enumerate((0, 5, 9, 9, 9, 12, 20))]
    assert pause_ns(samples, 0, 60) == 30
    assert pause_ns(samples, 30, 60) == 20
    assert pause_ns(samples, 0, 100) == 40
    assert pause_ns([], 0, 100) == 100
    assert rate_bytes_per_s(samples, 0, 20) == pytest.approx(9e9 / 20)
    assert rate_bytes_per_s(samples, 21, 29) == 0


def test_a_failed_nic_is_measured(need_root: None) -> None:
    """bench failover: every byte arrives, and the report has the times of the outage."""
    options = failover.FailoverOptions(rounds=1, seconds=0.5, cut_s=0.5, after_s=0.5)
    report = failover.run_failover(options, lambda words: None)
    (result,) = report["rounds"]
    times = result["times_ms"]
    assert 0 < times["cut"] < times["back"] < times["end"]
    assert result["bytes"] > 0
    assert report["longest_pause_ms"] == result["pause_ms"] > 0
    assert {len(row) for row in result["timeline"]["rails"]} == {1 + options.rails}
    json.dumps(report)


def test_the_loss_report_is_consistent(need_root: None) -> None:
    """The machine may be busy, so the rates are not judged."""
    options = loss.LossOptions(losses=(0.01,), kinds=("harp", "cubic"), rounds=1, seconds=1.5)
    log: list[str] = []
    report = loss.run_loss(options, log.append)
    assert log == ["loss 1.0%, round 1 of 1"]
    (result,) = report["results"]
    assert set(result["median"]) == {"harp", "cubic"}
    for kind, (values,) in result["rounds"].items():
        assert result["median"][kind]["stream_gbit_per_s"] == values["stream_gbit_per_s"] > 0
        assert 0 < values["single_p50_us"] <= values["single_p99_us"]
        assert values["lost_bytes"] > 0
        assert values["resent_to_lost"] > 0.9, "lost data is retransmitted"
        for test in ("stream", "single"):
            conn = values[f"{test}_conn"]
            assert conn["kind"] == ("harp" if kind == "harp" else "kernel")
            assert conn["cc"] == "cubic"
            assert conn["snd_mss_bytes"] == 1448
    assert set(result["met"]) == {"goodput", "stream p99", "single p99", "resent"}
    assert report["ok"] is all(result["met"].values())
