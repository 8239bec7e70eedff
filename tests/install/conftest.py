# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the installation's tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian import Debian, bootstrap


@pytest.fixture(scope="session")
def debian_base(root_dir: Path) -> Path:
    """A fresh Debian 12, which tests copy."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap: apt-get install debootstrap")
    folder = root_dir / "build-long/debian12"
    bootstrap(folder)
    return folder


@pytest.fixture
def debian(debian_base: Path, tmp_path: Path, need_root: None) -> Iterator[Debian]:
    """A Debian 12 of its own."""
    made = Debian(debian_base, tmp_path / "debian")
    yield made
    made.close()
