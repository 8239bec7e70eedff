# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL over HARP, with the newest version in the cache."""

from pathlib import Path

import pytest
from nccl_tools import check_all, ranks_of, read_logs

from harp import trace
from harp.lab import Lab
from harp.nccl import wheels
from harp.nccl.ranks import HARP


def test_the_newest_nccl_in_the_cache_is_correct_over_harp(lab: Lab, tmp_path: Path) -> None:
    versions = wheels.cached()
    if not versions:
        pytest.skip(f"no NCCL in {wheels.cache_dir()}: `make test-nccl` downloads it")
    extra = {"NCCL_PROFILER_PLUGIN": "harp", "HARP_TRACE": str(tmp_path)}
    with ranks_of(lab, versions[-1], HARP, extra) as ranks:
        ranks.init()
        check_all(ranks, versions[-1])
        assert "via NET/HARP/0" in read_logs(ranks)
        ranks.ask("destroy 0")
    if wheels.version_key(versions[-1]) >= (2, 26):
        summary = trace.summary(trace.read_directory(tmp_path))
        assert summary["processes"] == 2
        assert summary["messages"] > 100
        assert summary["unfinished"] == summary["failed"] == 0
