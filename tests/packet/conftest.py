# SPDX-License-Identifier: Apache-2.0
"""Packet tests: one stack, and packets made by hand."""

from collections.abc import Iterator

import pytest
from packet_rig import Rig


@pytest.fixture(params=["ipv4", "ipv6"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A stack of either family; what it leaves behind is the test's failure."""
    made = Rig(request.param)
    yield made
    made.close()


@pytest.fixture
def rig4() -> Iterator[Rig]:
    made = Rig("ipv4")
    yield made
    made.close()


@pytest.fixture
def rig6() -> Iterator[Rig]:
    made = Rig("ipv6")
    yield made
    made.close()
