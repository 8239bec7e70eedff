# SPDX-License-Identifier: Apache-2.0
"""The project's files: package locks with hashes, the package's name, commit subjects."""

import re
import runpy
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import Done, finished

ENTRY = re.compile(r"(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")


def run_lock(root_dir: Path, *arguments: str) -> Done:
    command = [sys.executable, root_dir / "tools" / "lock.py", *arguments]
    return finished(command)


def entries(path: Path) -> dict[str, str]:
    """Return versions by name. Every line must belong to an entry with a hash."""
    text = path.read_text()
    assert ENTRY.sub("", re.sub(r"^#.*\n", "", text, flags=re.M)) == ""
    return {canonicalize_name(name): version for name, version in ENTRY.findall(text)}


@pytest.fixture
def build_lock(root_dir: Path) -> dict[str, str]:
    return entries(root_dir / "tools" / "requirements.lock")


@pytest.fixture
def full_lock(root_dir: Path, build_lock: dict[str, str]) -> dict[str, str]:
    """The packages of the build and of the tests."""
    test_lock = entries(root_dir / "tools" / "requirements-test.lock")
    assert not build_lock.keys() & test_lock.keys()
    return build_lock | test_lock


@pytest.mark.parametrize(("extra", "least"), [("build", 8), ("test", 8)])
def test_the_locks_satisfy_pyproject_toml(
    root_dir: Path, build_lock: dict[str, str], full_lock: dict[str, str], extra: str, least: int
) -> None:
    versions = build_lock if extra == "build" else full_lock
    lines = run_lock(root_dir, "--ranges", extra).stdout.splitlines()
    requirements = [Requirement(line) for line in lines]
    assert len(requirements) > least
    for requirement in requirements:
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_build_installs_no_test_tool(build_lock: dict[str, str]) -> None:
    test_tools = {"pytest", "mypy", "ruff", "scapy", "hypothesis", "scipy", "scikit-learn"}
    assert not test_tools & build_lock.keys()


def test_the_lock_contains_all_dependencies(root_dir: Path, full_lock: dict[str, str]) -> None:
    """pip --require-hashes refuses to install a package whose dependencies are not locked."""
    if run_lock(root_dir, "--fits").returncode:
        pytest.skip("the lock is for another Python")
    for name, version in full_lock.items():
        assert metadata.version(name) == version
        for line in metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert full_lock[canonicalize_name(need.name)] in need.specifier, (name, line)


def test_ci_installs_with_hashes_only(root_dir: Path) -> None:
    setup = (root_dir / "tools" / "setup.sh").read_text()
    assert setup.count("pip install") == 1, "packages are installed in one place"
    assert "--require-hashes --only-binary :all:" in setup
    assert '[ -z "${REQUIRE_HASHES:-}" ] || lock_fits || die' in setup
    assert "\nexport REQUIRE_HASHES=1\n" in (root_dir / ".ci" / "run").read_text()


# --------------------------------------------------------------------------------------------------
# The wheel must not forge packets, and PyPI has an unrelated project named harp.
#
def test_nothing_in_the_wheel_forges_packets(root_dir: Path) -> None:
    """Only tests/hostile uses packet sockets, to attack lab hosts."""
    sources = [path for path in (root_dir / "harp").rglob("*") if path.suffix in (".py", ".pyx")]
    assert len(sources) > 20
    for path in sources:
        assert not re.search(r"AF_PACKET|SOCK_PACKET", path.read_text()), path


def test_another_package_named_harp_is_named(root_dir: Path, tmp_path: Path) -> None:
    """PyPI's project harp, if installed after harp-nccl, replaces its __init__.py."""
    shutil.copytree(root_dir / "harp", tmp_path / "harp", ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "harp/__init__.py").write_text("")
    (tmp_path / "harp-1.2.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harp.cli"
    done = finished([sys.executable, "-P", "-c", code], cwd="/")
    assert done.returncode == 1
    assert done.stderr.startswith("harpctl: the unrelated PyPI package harp 1.2 is installed over")
    assert "pip uninstall harp" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_is_named_harp_nccl_everywhere(root_dir: Path) -> None:
    """No document, message or script tells users to install harp."""
    project = tomllib.loads((root_dir / "pyproject.toml").read_text())["project"]
    assert project["name"] == "harp-nccl"
    bad_command = re.compile(r"pip3? install [^\n]*\bharp(?![-_]nccl|\w)")
    folders = ("harp", "docs", "tools", "conf", "examples")
    paths = [path for folder in folders for path in (root_dir / folder).rglob("*")]
    paths += root_dir.glob("*.md")
    texts = {path: path.read_text() for path in paths if path.suffix in (".py", ".md", ".sh")}
    assert not [path for path, text in texts.items() if bad_command.search(text)]


# --------------------------------------------------------------------------------------------------
# tools/check_commits.py accepts `area: Imperative summary` and gives a reason otherwise.
#
@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("tcp: Retransmit after three duplicate ACKs", ""),
        ("tests, build: Pass the suite on two cores", ""),
        ("harp/cli: Address the reader", ""),
        ("docs: Speed up the search", ""),
        ("Retransmit after three duplicate ACKs", "not of the form"),
        ("tcp: retransmit after three duplicate ACKs", "not of the form"),
        ("tcp: Retransmitted after three duplicate ACKs", "Retransmitted is not imperative"),
        ("tcp: Adding a test", "Adding is not imperative"),
        ("tcp: Retransmits after three duplicate ACKs", "Retransmits is not imperative"),
        ("tcp: Retransmit " + "x" * 60, "more than 72"),
    ],
)
def test_commit_subjects_are_checked(root_dir: Path, subject: str, reason: str) -> None:
    result = runpy.run_path(str(root_dir / "tools" / "check_commits.py"))["offence"](subject)
    assert bool(result) == bool(reason)
    assert reason in result
