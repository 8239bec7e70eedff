# SPDX-License-Identifier: Apache-2.0
"""Fixtures that skip a test if this build has no DPDK."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dpdk_tools import Ends

from harp.errors import HarpError


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


@pytest.fixture(scope="session")
def bindings() -> None:
    """harp.dpdk can be imported."""
    try:
        import harp.dpdk  # noqa: F401
    except HarpError as error:
        pytest.skip(str(error))
