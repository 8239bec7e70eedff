# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL with the plugin's tuner, which uses the measured times of a profile."""

import re
import socket
from pathlib import Path

import pytest
from nccl_tools import NEWEST, check_all, check_once, ranks_of, read_logs

from harp.lab import Lab
from harp.nccl.ranks import HARP, RankError, Ranks

pytestmark = pytest.mark.nccl

# 2.26 closes a tuner's library once too often, which a second communicator shows.
VERSIONS = ("2.21.5", "2.23.4", "2.25.1", "2.26.5", "2.27.7", "2.30.7", NEWEST)


def profile(folder: Path, latency_ns: int = 20_000, host: str = "") -> str:
    file = folder / f"profile-{latency_ns}.toml"
    file.write_text(
        f'version = 1\nhost = "{host or socket.gethostname()}"\n'
        f"[tuner]\nlatency_ns = {latency_ns}\n"
        'rates = "16384:300 65536:1100 1048576:1200"\nchannels = "1:1100 2:1800"\n'
    )
    return str(file)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tuned", [True, False])
def test_the_tuner_is_loaded_and_every_byte_is_correct(
    lab: Lab, version: str, tuned: bool, tmp_path: Path
) -> None:
    extra = {"HARP_PROFILE": profile(tmp_path)} if tuned else {}
    with ranks_of(lab, version, HARP, extra) as ranks:
        for _ in range(3):
            ranks.init()
            check_all(ranks, version)
            ranks.ask("destroy 0")
        log = read_logs(ranks)
    assert re.search(r"TUNER/Plugin: Using (tuner plugin )?HARP", log)
    line = "TUNER/HARP: 2 ranks on 2 hosts, by the profile: latency 20.0 us, 2 channels pay"
    assert (line in log) == tuned
    assert "WARN NET/HARP" not in log


def init_and_run(ranks: Ranks) -> None:
    """NCCL connects in init or in the first operation."""
    ranks.init()
    check_once(ranks)


def test_hosts_with_different_times_do_not_connect(lab: Lab, tmp_path: Path) -> None:
    per_rank = [{"HARP_PROFILE": profile(tmp_path, ns)} for ns in (20_000, 30_000)]
    with ranks_of(lab, NEWEST, per_rank=per_rank) as ranks:
        with pytest.raises(RankError):
            init_and_run(ranks)
        log = read_logs(ranks)
    assert "the peer's NCCL tuner uses other times" in log
    assert "or set HARP_TUNER=off" in log


def test_the_tuner_can_be_disabled(lab: Lab, tmp_path: Path) -> None:
    per_rank = [{"HARP_PROFILE": profile(tmp_path), "HARP_TUNER": "off"}, {}]
    with ranks_of(lab, NEWEST, per_rank=per_rank) as ranks:
        ranks.init()
        check_once(ranks)
        ranks.ask("destroy 0")
        assert "TUNER/HARP" not in read_logs(ranks)


def test_the_profile_of_another_host_is_ignored_with_one_warning(lab: Lab, tmp_path: Path) -> None:
    with ranks_of(
        lab, NEWEST, extra={"HARP_PROFILE": profile(tmp_path, host="elsewhere")}
    ) as ranks:
        init_and_run(ranks)
        ranks.ask("destroy 0")
        log = ranks[0].log
    warnings = [line for line in log if "it is of host elsewhere, and this is" in line]
    assert len(warnings) == 1
    assert "NCCL WARN" in warnings[0]
    assert not any("TUNER/HARP" in line for line in log)
