# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet tests: one stack whose peer is the test."""

from collections.abc import Iterator

import pytest
from packet_rig import Rig


@pytest.fixture(params=["ipv4", "ipv6"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A stack of each family."""
    rig = Rig(request.param)
    yield rig
    rig.close()


@pytest.fixture
def rig4() -> Iterator[Rig]:
    rig = Rig("ipv4")
    yield rig
    rig.close()


@pytest.fixture
def rig6() -> Iterator[Rig]:
    rig = Rig("ipv6")
    yield rig
    rig.close()
