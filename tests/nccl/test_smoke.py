# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL over HARP, one version: the newest in the cache."""

import pytest
from nccl_tools import check_all, log_of, ranks_of

from harp.lab import Lab
from harp.nccl import wheels


def test_the_newest_nccl_in_the_cache_is_right_over_harp(lab: Lab) -> None:
    versions = wheels.cached()
    if not versions:
        pytest.skip(f"no NCCL in {wheels.cache_dir()}: `make test-nccl` downloads it")
    with ranks_of(lab, versions[-1]) as ranks:
        ranks.init()
        check_all(ranks, versions[-1])
        assert "via NET/HARP/0" in log_of(ranks)
        ranks.ask("destroy 0")
