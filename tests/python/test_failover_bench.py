# SPDX-License-Identifier: Apache-2.0
"""harpctl bench failover, and what it needs of the laboratory's rails."""

import json

import pytest

from harp.bench import failover
from harp.bench.streams import Sample, pause_ns, rate_bytes_per_s
from harp.errors import Exit, HarpError
from harp.lab import Lab, LabOptions, RailOptions
from harp.lab.rails import Rails


def test_bad_shapes_are_named(need_root: None) -> None:
    with pytest.raises(HarpError, match="mtu") as caught:
        Lab(LabOptions(rails=(RailOptions(100),)))
    assert caught.value.code == Exit.USAGE
    with pytest.raises(HarpError, match="rails"):
        Lab(LabOptions(rails=(RailOptions(),) * 4))
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
    """bench failover: every byte arrives, and the report has the times of the cut."""
    options = failover.FailoverOptions(rounds=1, seconds=0.5, cut_s=0.5, after_s=0.5)
    report = failover.run_failover(options, lambda words: None)
    (found,) = report["rounds"]
    times = found["times_ms"]
    assert 0 < times["cut"] < times["back"] < times["end"]
    assert found["bytes"] > 0
    assert report["longest_pause_ms"] == found["pause_ms"] > 0
    assert {len(row) for row in found["timeline"]["rails"]} == {1 + options.rails}
    json.dumps(report)
