# SPDX-License-Identifier: Apache-2.0
"""Ends of streams on DPDK ports; all of it is skipped where this build has no DPDK."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dpdk_tools import Ends


@pytest.fixture
def ends(build_dir: Path) -> Iterator[Ends]:
    """The tools of this build."""
    ends = Ends(build_dir)
    if not (ends.library / "libharp-dpdk.so").is_file():
        pytest.skip(
            "this build is without DPDK: libdpdk was not there (apt-get install libdpdk-dev)"
        )
    yield ends
    ends.close()
