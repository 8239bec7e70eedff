# SPDX-License-Identifier: Apache-2.0
"""The project's own files: packages with hashes, the package's name, subjects of commits."""

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


def tool(root_dir: Path, *words: str) -> Done:
    command = [sys.executable, root_dir / "tools" / "lock.py", *words]
    return finished(command)


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


# --------------------------------------------------------------------------------------------------
# The package: what it must not contain, and the other project of its name.
#
def test_nothing_in_the_wheel_makes_packets_of_others(root_dir: Path) -> None:
    """Packet sockets are for what attacks a laboratory's hosts; that is in tests/hostile."""
    sources = [path for path in (root_dir / "harp").rglob("*") if path.suffix in (".py", ".pyx")]
    assert len(sources) > 20
    for path in sources:
        assert not re.search(r"AF_PACKET|SOCK_PACKET", path.read_text()), path


def test_another_package_named_harp_is_named(root_dir: Path, tmp_path: Path) -> None:
    """PyPI's other project called harp, installed after harp-nccl: its __init__.py is in use."""
    shutil.copytree(root_dir / "harp", tmp_path / "harp", ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "harp/__init__.py").write_text("")
    (tmp_path / "harp-1.2.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harp.cli"
    done = finished([sys.executable, "-P", "-c", code], cwd="/")
    assert done.returncode == 1
    assert done.stderr.startswith("harpctl: the unrelated PyPI package harp 1.2 is installed over")
    assert "pip uninstall harp" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_is_not_named_as_the_other_project(root_dir: Path) -> None:
    """And no document, message or script tells anyone to install that one."""
    project = tomllib.loads((root_dir / "pyproject.toml").read_text())["project"]
    assert project["name"] == "harp-nccl"
    wrong = re.compile(r"pip3? install [^\n]*\bharp(?![-_]nccl|\w)")
    folders = ("harp", "docs", "tools", "conf", "examples")
    paths = [path for folder in folders for path in (root_dir / folder).rglob("*")]
    paths += root_dir.glob("*.md")
    texts = {path: path.read_text() for path in paths if path.suffix in (".py", ".md", ".sh")}
    assert not [path for path, text in texts.items() if wrong.search(text)]


# --------------------------------------------------------------------------------------------------
# tools/check_commits.py accepts `area: Imperative summary` and names what it rejects.
#
@pytest.mark.parametrize(
    ("subject", "words"),
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
def test_a_subject_is_judged(root_dir: Path, subject: str, words: str) -> None:
    found = runpy.run_path(str(root_dir / "tools" / "check_commits.py"))["offence"](subject)
    assert bool(found) == bool(words)
    assert words in found
