# SPDX-License-Identifier: Apache-2.0
"""tools/requirements*.lock: all packages that `make build`, the tests and CI install have
hashes."""

import os
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


def test_setup_installs_with_hashes_or_says_that_it_does_not(root_dir: Path) -> None:
    """The words of setup.sh between finding Python and pip's start, with pip replaced by echo."""
    text = (root_dir / "tools" / "setup.sh").read_text()
    assert text.count("pip install") == 1, "no other way in"
    functions = text[text.index("requirements() {") : text.index("venv_usable() {")]
    # Also where a virtual environment is there already.
    check = text[
        text.index('\t[ -z "${REQUIRE_HASHES:-}" ]') : text.index("\tif ! venv_usable; then")
    ]
    script = f"""
        python={sys.executable}
        say() {{ echo "$*"; }}
        die() {{ echo "$*"; exit 1; }}
        logged() {{ echo "$*"; }}
        {functions.replace(">.venv/requirements.txt", ">/dev/null")}
        FITS
        install() {{
        {check}
        install_packages build test
        }}
        install
    """

    outside = {name: value for name, value in os.environ.items() if name != "REQUIRE_HASHES"}

    def said(fits: str, **variables: str) -> str:
        command = ["bash", "-euc", script.replace("FITS", f"lock_fits() {{ {fits}; }}")]
        done = subprocess.run(
            command,
            cwd=root_dir,
            capture_output=True,
            text=True,
            check=True,
            env=outside | variables,
        )
        return done.stdout

    assert "--require-hashes --only-binary :all: -r .venv/requirements.txt" in said("true")
    assert "no hashes" not in said("true")
    without = said("false")
    assert "--require-hashes" not in without
    assert "no hashes of Python packages are checked" in without
    # CI has no such way out.
    assert "\nexport REQUIRE_HASHES=1\n" in (root_dir / ".ci" / "run").read_text()
    with pytest.raises(subprocess.CalledProcessError) as refused:
        said("false", REQUIRE_HASHES="1")
    assert "REQUIRE_HASHES is set" in refused.value.stdout
    assert "--require-hashes" in said("true", REQUIRE_HASHES="1")
