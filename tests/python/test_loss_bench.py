# SPDX-License-Identifier: Apache-2.0
"""harpctl bench loss: the report is consistent. Rates on a busy machine are not judged here."""

from harp.bench import loss


def test_the_loss_report_is_consistent(need_root: None) -> None:
    options = loss.LossOptions(losses=(0.01,), kinds=("harp", "cubic"), rounds=1, seconds=1.5)
    said: list[str] = []
    report = loss.run_loss(options, said.append)
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
