# SPDX-License-Identifier: Apache-2.0
"""Comms between four hosts, all opened at once: all of them come, and nothing of them stays."""

import pytest
from actor import Actor, actors
from hosts import Comms

from harp.lab import Lab, LabOptions

HOSTS = 4
MEMORY_KIB = 1024  # of a process, for each of its comms, at most
# Of 2048-byte frames; a process that is not told takes as much memory for one comm.
ENV = {"HARP_FRAMES": "4096", "HARP_EAGER_BYTES": "16384", "NCCL_SOCKET_IFNAME": "=eth0"}
OTHERS = [(one, other) for one in range(HOSTS) for other in range(HOSTS) if one != other]


@pytest.mark.sample("auto-516 comms")
@pytest.mark.parametrize(
    "count", [43, pytest.param(171, marks=pytest.mark.long)], ids=["516 comms", "2052 comms"]
)
@pytest.mark.parametrize("path", ["auto", "xdp", "kernel"])
def test_a_storm_of_connects_leaves_nothing(need_root: None, path: str, count: int) -> None:
    with Lab(LabOptions(hosts=HOSTS)) as lab:
        made = [Actor(host.netns, {"HARP_PATH": path, **ENV}) for host in lab.hosts]
        with actors(*made) as ranks:
            first, before = round_of(ranks, 1)
            peak, after = round_of(ranks, count)
            assert [each[:2] for each in after] == [each[:2] for each in before]
            for now, then in zip(peak, first, strict=True):
                assert now[2] - then[2] < 6 * count * MEMORY_KIB


def round_of(ranks: tuple[Actor, ...], count: int) -> tuple[list[list[int]], list[list[int]]]:
    """From load to finalize: each rank's resources with all comms open, and afterwards. (Ports of
    connections in TIME-WAIT are held until finalize.)"""
    for rank in ranks:
        rank.load()
    comms = Comms(ranks, OTHERS, count)
    comms.come()
    comms.cross(10_000)
    peak = [rank.call("resources") for rank in ranks]
    comms.close()
    for rank in ranks:
        assert rank.call("warnings") == []
        rank.call("finalize")
    return peak, [rank.call("settled") for rank in ranks]
