# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL when a rank dies, stops or aborts: the others learn of it and can abort."""

import signal

import pytest
from nccl_tools import NEWEST, check_once, log_of, ranks_of

from harp.lab import Lab, LabOptions
from harp.nccl.ranks import HARP, SOCKETS, RankError, Ranks

pytestmark = pytest.mark.nccl

BYTES = 64 << 20
ONE_EACH_WAY = ("2.23.4", "2.27.7", NEWEST)


def traffic_without(ranks: Ranks, absent: int) -> None:
    """Every rank but one is in the middle of an exchange, which therefore cannot end."""
    for _ in range(2):
        check_once(ranks)
    for rank in ranks.ranks:
        if rank.index != absent:
            rank.ask(f"start 0 sendrecv {BYTES}")


@pytest.mark.parametrize("version", ONE_EACH_WAY)
@pytest.mark.parametrize("net", [SOCKETS, HARP])
def test_a_rank_that_is_killed(lab: Lab, version: str, net: str) -> None:
    with ranks_of(lab, version, net) as ranks:
        ranks.init()
        traffic_without(ranks, 1)
        ranks[1].process.kill()
        with pytest.raises(RankError, match="remote process exited or there was a network error"):
            ranks[0].ask("finish 0")
        ranks[0].ask("abort 0")


@pytest.mark.parametrize("version", ONE_EACH_WAY)
@pytest.mark.parametrize("path", ["xdp", "kernel"])
def test_a_rank_that_stops(lab: Lab, version: str, path: str) -> None:
    """There is no control: NCCL's sockets wait forever."""
    more = {"HARP_PATH": path, "HARP_USER_TIMEOUT_MS": "2000", "HARP_PROBE_INTERVAL_MS": "500"}
    with ranks_of(lab, version, HARP, more) as ranks:
        ranks.init()
        traffic_without(ranks, 1)
        ranks[1].process.send_signal(signal.SIGSTOP)
        try:
            ranks[0].send("finish 0")
            with pytest.raises(RankError, match="remote process exited"):
                ranks[0].receive()
            ranks[0].ask("abort 0")
        finally:
            ranks[1].process.send_signal(signal.SIGCONT)
        warnings = [line for line in ranks[0].log if "no answer in time" in line]
        assert len(warnings) == 1, warnings


@pytest.mark.parametrize("version", ONE_EACH_WAY)
@pytest.mark.parametrize("net", [SOCKETS, HARP])
def test_all_ranks_abort_under_traffic_and_begin_again(lab: Lab, version: str, net: str) -> None:
    with ranks_of(lab, version, net) as ranks:
        ranks.init(comm=1)  # keeps the plugin loaded
        ranks.init()
        traffic_without(ranks, 1)
        ranks.ask("abort 0")
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
        ranks.ask("destroy 1")


@pytest.mark.parametrize("lab", [LabOptions(hosts=4)], indirect=True)
@pytest.mark.parametrize("version", ["2.19.3", "2.25.1", NEWEST])
@pytest.mark.parametrize("net", [SOCKETS, HARP])
def test_four_ranks_split_into_pairs(lab: Lab, version: str, net: str) -> None:
    with ranks_of(lab, version, net) as ranks:
        ranks.init()
        check_once(ranks)
        for rank in ranks.ranks:
            rank.send(f"split 0 1 {rank.index % 2} {rank.index}")
        answers = [rank.receive() for rank in ranks.ranks]
        assert [(each["rank"], each["ranks"]) for each in answers] == [
            (0, 2),
            (0, 2),
            (1, 2),
            (1, 2),
        ]
        check_once(ranks, comm=1)
        check_once(ranks)
        ranks.ask("destroy 1")
        ranks.ask("destroy 0")
        assert "WARN NET/HARP" not in log_of(ranks)
