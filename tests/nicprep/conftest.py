# SPDX-License-Identifier: Apache-2.0
"""A fake host for each test."""

from pathlib import Path

import pytest
from fake_host import FakeHost


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    """Two nodes, eight processors, eth1 with every feature."""
    return FakeHost(tmp_path)
