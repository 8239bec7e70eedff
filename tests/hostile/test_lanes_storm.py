# SPDX-License-Identifier: Apache-2.0
"""Comms between four hosts, all opened at once: all of them come, and nothing of them stays."""

from __future__ import annotations

import pytest
from actor import Actor, actors

from harp import _paths
from harp.lab import Lab, LabOptions

HOSTS = 4
MEMORY_KIB = 1024  # of a process, for each of its comms, at most
# Of 2048-byte frames; a process that is not told takes as much memory for one comm.
ENV = {"HARP_FRAMES": "4096", "HARP_EAGER_BYTES": "16384", "NCCL_SOCKET_IFNAME": "=eth0"}
OTHERS = [(one, other) for one in range(HOSTS) for other in range(HOSTS) if one != other]


class Storm:
    """An actor on each host; `count` comms from each host to each other one."""

    def __init__(self, ranks: tuple[Actor, ...], count: int) -> None:
        self.ranks, self.count = ranks, count
        self.names = {
            (a, b): [f"{a} to {b}, {n}" for n in range(count)] for a, b in OTHERS
        }  # sender, receiver

    def open(self) -> None:
        """Everybody listens, then everybody connects and accepts."""
        listens: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for a, b in OTHERS:
            listens[a, b] = self.ranks[b].call("listen_many", count=self.count)
        self.listens = listens
        for me, rank in enumerate(self.ranks):
            handles = [handle for a, b in OTHERS if a == me for handle, _ in listens[a, b]]
            mine = [listen for a, b in OTHERS if b == me for _, listen in listens[a, b]]
            rank.start("join", handles=handles, listens=mine, timeout_s=200)
        self.comms = [rank.result() for rank in self.ranks]

    def cross(self, size: int) -> None:
        """A message over each of them, at once."""
        for me, rank in enumerate(self.ranks):
            sends = [name for a, b in OTHERS if a == me for name in self.names[a, b]]
            receives = [name for a, b in OTHERS if b == me for name in self.names[a, b]]
            rank.start(
                "cross",
                sends=list(zip(self.comms[me][0], sends, strict=True)),
                receives=list(zip(self.comms[me][1], receives, strict=True)),
                size=size,
                timeout_s=200,
            )
        for rank in self.ranks:
            assert rank.result() == 2 * self.count * (HOSTS - 1)

    def close(self) -> None:
        for me, rank in enumerate(self.ranks):
            for name, comms in zip(("close_send", "close_recv"), self.comms[me], strict=True):
                rank.call("each", name=name, values=comms)
            listens = [each for a, b in OTHERS if b == me for _, each in self.listens[a, b]]
            rank.call("each", name="close_listen", values=listens)


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
        rank.call("load", path=str(_paths.plugin()))
    storm = Storm(ranks, count)
    storm.open()
    storm.cross(10_000)
    peak = [rank.call("resources") for rank in ranks]
    storm.close()
    for rank in ranks:
        assert rank.call("warnings") == []
        rank.call("finalize")
    return peak, [rank.call("settled") for rank in ranks]
