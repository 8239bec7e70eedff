# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL over HARP, one version: the newest in the cache."""

from pathlib import Path

import pytest
from nccl_tools import check_all, log_of, ranks_of

from harp import trace
from harp.lab import Lab
from harp.nccl import wheels
from harp.nccl.ranks import HARP


def test_the_newest_nccl_in_the_cache_is_right_over_harp(lab: Lab, tmp_path: Path) -> None:
    versions = wheels.cached()
    if not versions:
        pytest.skip(f"no NCCL in {wheels.cache_dir()}: `make test-nccl` downloads it")
    more = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path)}
    with ranks_of(lab, versions[-1], HARP, more) as ranks:
        ranks.init()
        check_all(ranks, versions[-1])
        assert "via NET/HARP/0" in log_of(ranks)
        ranks.ask("destroy 0")
    if wheels.version_key(versions[-1]) >= (2, 26):
        found = trace.summary(trace.read_directory(tmp_path))
        assert found["processes"] == 2
        assert found["messages"] > 100
        assert found["unfinished"] == found["failed"] == 0
