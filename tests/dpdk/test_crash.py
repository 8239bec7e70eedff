# SPDX-License-Identifier: Apache-2.0
"""NCCL streams over memif while a rank is killed. The survivor names the lost peer, the resources
of the dead rank are freed, and both can restart."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dpdk_tools import ENVIRONMENT, Ends

from harp.bench.streams import SINK, SOURCE, Stream, StreamOptions
from harp.lab import Lab, memif

REMOTE_ERROR, PLUGIN_FAILED = 6, 4
USER_TIMEOUT_MS = 2000
MORE_BYTES = 4 << 20
SIDES = pytest.mark.parametrize("victim", [SINK, SOURCE], ids=["sink", "source"])


@pytest.fixture(scope="module")
def meeting(need_root: None) -> Iterator[Lab]:
    """Where the ranks find each other; their data has no way there."""
    with Lab() as lab:
        yield lab


@pytest.fixture
def options(ends: Ends, tmp_path: Path) -> StreamOptions:
    """The sink is the memif's server."""
    common = ENVIRONMENT | {
        "HARP_PATH": "dpdk",
        "HARP_IFNAME": "=net_memif0",
        "HARP_DAEMON": "off",
        "HARP_DPDK_MEMORY_MIB": "128",
        "HARP_FRAMES": "2048",
    }
    server, client = memif.port_texts(tmp_path)
    return StreamOptions(env=(common | {"HARP_DPDK": server}, common | {"HARP_DPDK": client}))


def impatient(options: StreamOptions) -> StreamOptions:
    """A rank without an answer gives up soon."""
    timeout = {"HARP_USER_TIMEOUT_MS": str(USER_TIMEOUT_MS)}
    sink, source = options.env
    return replace(options, env=(timeout | dict(sink), timeout | dict(source)))


def left_by(pid: int, since: float) -> list[Path]:
    """What a process of DPDK's left in the file system; older is another's of that number."""
    places = [Path("/var/run/dpdk"), Path("/dev/hugepages")]
    entries = [entry for place in places for entry in place.glob(f"*{pid}*")]
    named = [entry for entry in entries if str(pid) in re.findall(r"\d+", entry.name)]
    return [entry for entry in named if entry.stat().st_mtime >= since]


@SIDES
def test_a_killed_rank_is_named_and_both_can_restart(
    meeting: Lab, options: StreamOptions, tmp_path: Path, victim: int
) -> None:
    since = time.time()
    with Stream(meeting, impatient(options)) as stream:
        stream.flow(MORE_BYTES)
        dead, other = stream.ranks[victim], stream.ranks[1 - victim]
        dead.process.kill()
        dead.process.wait()
        assert other.process.wait(30) == PLUGIN_FAILED, stream.words()
        for thread in stream._threads:
            thread.join()
        error = other.events[-1]
        assert (error["event"], error["nccl"]) == ("error", REMOTE_ERROR)
        assert memif.address(victim) in error["text"], stream.words()
        assert not [path for rank in stream.ranks for path in left_by(rank.process.pid, since)]
    # On the socket that the first one left.
    with Stream(meeting, options) as stream:
        stream.flow(MORE_BYTES)
        assert stream.finish() >= MORE_BYTES
        assert "connected by HARP TCP" in stream.ranks[SINK].log()
        assert "kernel TCP" not in stream.ranks[SOURCE].log()
    assert {path.name for path in tmp_path.iterdir()} <= {"memif.sock"}
