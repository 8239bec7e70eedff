# SPDX-License-Identifier: Apache-2.0
"""The bad path loses the configured share, counts it, and leaves nothing behind."""

from collections.abc import Iterator

import pytest

from harp import _paths
from harp.bench.badpath import Dropper
from harp.errors import HarpError
from harp.lab import Lab, LabOptions

BYTES = 20_000_000
PORT = "7000"


@pytest.fixture
def lab(need_root: None) -> Iterator[Lab]:
    with Lab(LabOptions(switch=True, offload=False)) as made:
        yield made


def transfer(lab: Lab, count: int = BYTES) -> None:
    """Bytes from host 0 to host 1 by kernel sockets, each compared there."""
    here, there = lab.hosts
    tool = _paths.find("harp-tcp")
    server = there.popen([tool, "serve", there.address, PORT, "--kernel"])
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    here.run(tool, "send", there.address, PORT, "--kernel", "--bytes", str(count))
    assert server.wait(20) == 0


def test_the_configured_share_is_lost_and_counted(lab: Lab) -> None:
    with Dropper(lab) as dropper:
        dropper.lose(0, 0.01, seed=7)
        transfer(lab)
        data, acks = dropper.counts(0), dropper.counts(1)
        # Some 14,000 packets: five standard deviations are 0.42 %.
        assert 0.0055 < data["dropped_packets"] / data["packets"] < 0.0145
        assert data["payload_bytes"] - data["dropped_payload_bytes"] >= BYTES
        assert data["dropped_payload_bytes"] <= data["dropped_packets"] * 1448
        assert data["super_packets"] == 0
        assert acks["packets"] > 0
        assert acks["dropped_packets"] == 0
        dropper.lose(0, 0)
        dropper.lose(1, 0.05)
        transfer(lab)
        assert dropper.counts(0)["dropped_packets"] == data["dropped_packets"]
        assert dropper.counts(1)["dropped_packets"] > 0


def test_everything_can_be_lost_and_comes_back(lab: Lab) -> None:
    here, there = lab.hosts
    with Dropper(lab) as dropper:
        dropper.lose_both_ways(1)
        tool = _paths.find("harp-tcp")
        with pytest.raises(HarpError, match="timed out"):
            here.run(tool, "send", there.address, PORT, "--kernel", "--timeout", "1")
        counts = dropper.counts(0)
        assert counts["dropped_packets"] == counts["packets"] > 0
    transfer(lab, 100_000)


def test_nothing_stays_attached(lab: Lab) -> None:
    assert lab.switch is not None
    show = ["tc", "qdisc", "show", "dev", "p0", "clsact"]
    with Dropper(lab) as dropper:
        assert "clsact" in lab.switch.run(*show)
        with pytest.raises(HarpError, match="loss p0 2000000 1: Invalid argument"):
            dropper.lose(0, 2)
    assert "clsact" not in lab.switch.run(*show)


def test_without_a_switch_there_is_one_clear_error(need_root: None) -> None:
    with Lab() as made, pytest.raises(HarpError, match="switch=True"):
        Dropper(made)
