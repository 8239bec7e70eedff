# SPDX-License-Identifier: Apache-2.0
"""Many comms between four hosts, opened concurrently: all connect, and they leak nothing."""

import pytest
from actor import Actor, actors
from hosts import Comms

from harp.lab import Lab, LabOptions

HOSTS = 4
MEMORY_KIB = 1024  # limit per comm of a process
# Frames of 2048 bytes. By default, a process allocates as much for a single comm.
ENV = {"HARP_FRAMES": "4096", "HARP_EAGER_BYTES": "16384", "NCCL_SOCKET_IFNAME": "=eth0"}
PAIRS = [(one, other) for one in range(HOSTS) for other in range(HOSTS) if one != other]


@pytest.mark.sample("auto-516 comms")
@pytest.mark.parametrize(
    "count", [43, pytest.param(171, marks=pytest.mark.long)], ids=["516 comms", "2052 comms"]
)
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
def test_many_connects_leak_nothing(need_root: None, path: str, count: int) -> None:
    with Lab(LabOptions(hosts=HOSTS)) as lab:
        processes = [Actor(host.netns, {"HARP_PATH": path, **ENV}) for host in lab.hosts]
        with actors(*processes) as ranks:
            first, before = run_round(ranks, 1)
            peak, after = run_round(ranks, count)
            assert [rank[:2] for rank in after] == [rank[:2] for rank in before]
            for at_peak, at_first in zip(peak, first, strict=True):
                assert at_peak[2] - at_first[2] < 6 * count * MEMORY_KIB


def run_round(ranks: tuple[Actor, ...], count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Runs from load to finalize; returns each rank's resources with all comms open, and after
    finalize, which releases the ports of TIME-WAIT."""
    for rank in ranks:
        rank.load()
    comms = Comms(ranks, PAIRS, count)
    comms.wait_open()
    comms.exchange(10_000)
    peak = [rank.call("resources") for rank in ranks]
    comms.close()
    for rank in ranks:
        assert rank.call("warnings") == []
        rank.call("finalize")
    return peak, [rank.call("settled_resources") for rank in ranks]
