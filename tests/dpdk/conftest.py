# SPDX-License-Identifier: Apache-2.0
"""Fixtures that skip a test if the build has no DPDK."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dpdk_tools import DpdkTools

from harp.errors import HarpError


@pytest.fixture
def tools(build_dir: Path) -> Iterator[DpdkTools]:
    """The tools of this build."""
    tools = DpdkTools(build_dir)
    if not (tools.library / "libharp-dpdk.so").is_file():
        pytest.skip("this build has no DPDK: install libdpdk-dev and build again")
    yield tools
    tools.close()


@pytest.fixture(scope="session")
def bindings() -> None:
    """harp.dpdk can be imported."""
    try:
        import harp.dpdk  # noqa: F401
    except HarpError as error:
        pytest.skip(str(error))
