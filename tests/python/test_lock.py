# SPDX-License-Identifier: Apache-2.0
"""tools/requirements*.lock: all packages that `make build`, the tests and CI install have
hashes."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENTRY = re.compile(r"(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")


def tool(root_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root_dir / "tools" / "lock.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def entries(path: Path) -> dict[str, str]:
    """Versions by name; every line belongs to an entry with a hash."""
    text = path.read_text()
    assert ENTRY.sub("", re.sub(r"^#.*\n", "", text, flags=re.M)) == ""
    return {canonicalize_name(name): version for name, version in ENTRY.findall(text)}


@pytest.fixture
def of_build(root_dir: Path) -> dict[str, str]:
    return entries(root_dir / "tools" / "requirements.lock")


@pytest.fixture
def locked(root_dir: Path, of_build: dict[str, str]) -> dict[str, str]:
    """What the build and the tests install together."""
    of_tests = entries(root_dir / "tools" / "requirements-test.lock")
    assert not of_build.keys() & of_tests.keys()
    return of_build | of_tests


@pytest.mark.parametrize(("extra", "least"), [("build", 8), ("test", 8)])
def test_the_locks_have_what_pyproject_asks_for(
    root_dir: Path, of_build: dict[str, str], locked: dict[str, str], extra: str, least: int
) -> None:
    versions = of_build if extra == "build" else locked
    wanted = [Requirement(line) for line in tool(root_dir, "--ranges", extra).stdout.splitlines()]
    assert len(wanted) > least
    for each in wanted:
        assert versions[canonicalize_name(each.name)] in each.specifier, each


def test_the_build_installs_no_tool_of_the_tests(of_build: dict[str, str]) -> None:
    of_tests = {"pytest", "mypy", "ruff", "scapy", "hypothesis", "scipy", "scikit-learn"}
    assert not of_tests & of_build.keys()


def test_the_lock_has_what_those_need(root_dir: Path, locked: dict[str, str]) -> None:
    """Of what is installed here, which --require-hashes would refuse to install otherwise."""
    if tool(root_dir, "--fits").returncode:
        pytest.skip("the lock is for another Python")
    for name, version in locked.items():
        assert metadata.version(name) == version
        for line in metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert locked[canonicalize_name(need.name)] in need.specifier, (name, line)


def test_ci_installs_with_hashes_only(root_dir: Path) -> None:
    setup = (root_dir / "tools" / "setup.sh").read_text()
    assert setup.count("pip install") == 1, "no other way in"
    assert "--require-hashes --only-binary :all:" in setup
    assert '[ -z "${REQUIRE_HASHES:-}" ] || lock_fits || die' in setup
    assert "\nexport REQUIRE_HASHES=1\n" in (root_dir / ".ci" / "run").read_text()
