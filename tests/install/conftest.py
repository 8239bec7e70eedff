# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the installation tests."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_trees import BUILD_S, output
from debian import Debian, bootstrap


@pytest.fixture(scope="session")
def debian_base(root_dir: Path) -> Path:
    """A fresh Debian 12, which tests copy."""
    if shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap: apt-get install debootstrap")
    folder = root_dir / "build-long/debian12"
    bootstrap(folder)
    return folder


@pytest.fixture
def debian(debian_base: Path, tmp_path: Path, need_root: None) -> Iterator[Debian]:
    copy = Debian(debian_base, tmp_path / "debian")
    yield copy
    copy.close()


@pytest.fixture(scope="session")
def wheel(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of tools/wheel.py, as `make wheel` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    path = output([sys.executable, root_dir / "tools/wheel.py", folder], timeout_s=BUILD_S)
    return Path(path.strip())


@pytest.fixture(scope="session")
def wheelhouse(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and its dependencies, so that Debian needs no network."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    command = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--quiet"]
    output([*command, "--disable-pip-version-check", "--dest", folder, wheel], timeout_s=600)
    return folder
