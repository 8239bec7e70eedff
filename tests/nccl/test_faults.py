# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL over HARP when something goes wrong: peers that die, stop, or cannot be reached."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nccl_tools import NEWEST, ONE_OF_EACH_TABLE, check_once, ranks_of, run_on_paths

from harp.lab import Lab
from harp.nccl.ranks import HARP, RankError, Ranks

pytestmark = pytest.mark.nccl

BYTES = 3_000_000
ERROR_MS = 20_000  # limit for NCCL to report an error
ABORT_S = 20  # enough on a loaded machine; 2.23 never returns


def kill(ranks: Ranks) -> None:
    """Rank 1 dies: rank 0 gets an error."""
    ranks[0].ask(f"start 0 alltoall {BYTES}")
    ranks[1].process.kill()
    ranks[1].process.wait()
    with pytest.raises(RankError, match="remote process exited or there was a network error"):
        ranks[0].ask(f"finish 0 {ERROR_MS}")
    ranks[0].process.kill()


def kill_and_abort(ranks: Ranks) -> None:
    """Rank 1 dies, and rank 0 aborts after the error, which not every version reports."""
    ranks[0].ask(f"start 0 alltoall {BYTES}")
    ranks[1].process.kill()
    ranks[1].process.wait()
    with pytest.raises(RankError):
        ranks[0].ask(f"finish 0 {ERROR_MS}")
    ranks[0].ask("abort 0", ABORT_S)
    ranks[0].process.kill()


def stop(ranks: Ranks) -> None:
    """Rank 1 stops before it sends, with data in flight to it, and continues: no byte is lost."""
    ranks[1].process.send_signal(signal.SIGSTOP)
    try:
        for rank in ranks.ranks:
            rank.send(f"start 0 alltoall {BYTES}")
        ranks[0].receive()
        ranks[0].send("finish 0")
        # Rank 0 waits and reports no error.
        with pytest.raises(RankError, match="no answer in 1 s"):
            ranks[0].receive(1)
    finally:
        ranks[1].process.send_signal(signal.SIGCONT)
    ranks[1].receive()
    assert ranks[0].receive()["wrong"] == ranks[1].ask("finish 0")["wrong"] == 0
    ranks.ask("destroy 0")


def abort(ranks: Ranks) -> None:
    """Rank 0 aborts an operation that rank 1 never starts; both create another communicator."""
    ranks[0].ask(f"start 0 alltoall {BYTES}")
    ranks[0].ask("abort 0", ABORT_S)
    ranks[1].ask("abort 0", ABORT_S)
    ranks.init(1)
    check_once(ranks, 1)
    ranks.ask("destroy 1")


def split(ranks: Ranks) -> None:
    """ncclCommSplit() with the ranks in reverse order; parent and child carry data."""
    ranks[0].send("split 0 1 0 1")
    ranks[1].send("split 0 1 0 0")
    assert [rank.receive()["rank"] for rank in ranks.ranks] == [1, 0]
    check_once(ranks, 0)
    check_once(ranks, 1)
    ranks.ask("destroy 1")
    check_once(ranks, 0)
    ranks.ask("destroy 0")


@pytest.mark.parametrize("version", ONE_OF_EACH_TABLE)
@pytest.mark.parametrize("scenario", [kill, kill_and_abort, stop, abort, split])
def test_scenario(
    lab: Lab, scenario: Callable[[Ranks], None], version: str, tmp_path: Path
) -> None:
    run_on_paths(lab, version, scenario, tmp_path)


@pytest.mark.parametrize("path", ["kernel", "xdp"])
def test_a_silent_peer_causes_one_warning(lab: Lab, path: str) -> None:
    """Four comms time out; only the first logs a WARN."""
    extra = {"HARP_PATH": path, "HARP_USER_TIMEOUT_MS": "8000"}
    peer = lab.hosts[1]
    with ranks_of(lab, NEWEST, HARP, extra) as ranks:
        ranks.init()
        check_once(ranks)
        ranks[0].ask(f"start 0 alltoall {BYTES}")
        down = ["ip", "-n", peer.netns, "link", "set", peer.ifname, "down"]
        subprocess.run(down, check=True)
        with pytest.raises(RankError, match="no answer in time"):
            ranks[0].ask("finish 0")
        log = ranks[0].log
        for rank in ranks.ranks:
            rank.process.kill()
    timeouts = [line for line in log if " silent for " in line]
    assert len([line for line in timeouts if "NCCL WARN" in line]) == 1
    assert len(timeouts) > 1, "the other comms log at INFO"
    ends = [line for line in log if "no answer in time" in line]
    assert len([line for line in ends if "NCCL WARN" in line]) == 1
