# SPDX-License-Identifier: Apache-2.0
"""harp-bench over HARP's AF_XDP path, between two hosts joined by a cable."""

import contextlib
import json
import os
from collections.abc import Iterator

import pytest
from driver_rig import HANGS_S, ROLES, Running, Start, bench, delivers, finish, outlives

from harp.lab import Lab, LabOptions

LABS = {"IPv4-1500": LabOptions(), "IPv6-9000": LabOptions(ipv6=True, mtu_bytes=9000)}


@pytest.fixture(scope="module", params=LABS.values(), ids=LABS)
def start(request: pytest.FixtureRequest, need_root: None) -> Iterator[Start]:
    """Starts one rank in the background."""
    with Lab(request.param) as lab:

        def begin(rank: int, mode: str, *args: str, path: str = "xdp") -> Running:
            root = lab.hosts[0].endpoint(7000)
            command = bench(mode, rank, 2, root, "--ifname", "=eth0", *args)
            return lab.hosts[rank].popen(command, env=os.environ | {"HARP_PATH": path})

        yield begin


PATHS = [("xdp", "xdp"), ("xdp", "kernel"), ("kernel", "xdp")]


@pytest.mark.parametrize("paths", PATHS, ids="-".join)
@pytest.mark.parametrize(
    "args",
    [
        ("lat", "--sizes", "8:200,136:200,2312:200,39304:200"),
        ("bw", "--sizes", "1M:100"),
        ("alltoall", "--sizes", "3000,30000,300000", "--channels", "2"),
        ("allreduce", "--sizes", "4:3,44:3,5324:3,58564:3,644204:3", "--channels", "2"),
    ],
    ids=lambda args: args[0],
)
def test_every_mode_measures_over_a_cable(
    start: Start, args: tuple[str, ...], paths: tuple[str, str]
) -> None:
    """Every byte of every mode is right, over HARP TCP, and between HARP and kernel lanes."""
    with contextlib.ExitStack() as stack:
        ranks = [start(rank, *args, path=paths[rank]) for rank in range(2)]
        for process in ranks:
            stack.callback(finish, process)
        ended = [process.communicate(timeout=2 * HANGS_S) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], ended
    document = json.loads(ended[0][0])
    assert document["wrong"] == 0
    log = " ".join(line["text"] for line in document["log"])
    assert "AF_XDP" in log or paths != ("xdp", "xdp")


@pytest.mark.parametrize("fork", [[], ["--fork-child"]], ids=["alone", "forked"])
@pytest.mark.parametrize("roles", ROLES, ids="-".join)
def test_the_survivor_of_a_killed_rank_ends_with_an_error(
    start: Start, roles: tuple[str, str], fork: list[str]
) -> None:
    """HARP detects the peer's death. Silence it would tolerate for longer
    (HARP_USER_TIMEOUT_MS) than harp-bench does."""
    outlives(start, roles, *fork)


@pytest.mark.parametrize("size", ["9", "100000", "1M"])
def test_completed_sends_were_delivered(start: Start, size: str) -> None:
    delivers(start, size)
