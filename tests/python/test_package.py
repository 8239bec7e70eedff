# SPDX-License-Identifier: Apache-2.0
"""The wheel has the modules of its programs, documents and tools, and no test-only module."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCUMENTED = re.compile(r"\bharp(?:\.[a-z_]\w*)+")
IMPORTED = re.compile(
    r"^[ \t]*(?:from[ \t]+(harp[\w.]*)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]*)"
    r"|c?import[ \t]+(harp[\w.]*))",
    re.M,
)


def module_of(name: str) -> str:
    """harp.config of harp/config/__init__.py."""
    return re.sub(r"(\.__init__)?\.pyx?$", "", name.replace("/", "."))


def installed_files(root: Path, installed: dict[str, str]) -> Iterator[str]:
    """The files under harp/ that a build installs: single ones, and those of installed folders."""
    for source, place in installed.items():
        name = "harp/" + place.partition("/harp/")[2]
        if (root / "harp") in Path(source).parents and Path(source).is_dir():
            yield from (f"{name}/{path.name}" for path in sorted(Path(source).glob("*.py")))
        else:
            yield name


@pytest.fixture
def package(root_dir: Path, build_dir: Path) -> dict[str, Path]:
    """The modules that a wheel of this build has, by name: their sources."""
    installed = json.loads((build_dir / "meson-info" / "intro-installed.json").read_text())
    found = {}
    for name in installed_files(root_dir, installed):
        name = re.sub(r"\.cpython-.*\.so$", ".pyx", name)
        if name.endswith((".py", ".pyx")) and (root_dir / name).exists():
            found[module_of(name)] = root_dir / name
    assert {"harp", "harp.cli", "harp._core", "harp.config.keys"} <= found.keys()
    return found


def names_in(path: Path) -> Iterator[str]:
    """Whatever may name a module: imports, and the strings of `python -m` and of lazy imports."""
    text = path.read_text()
    if path.suffix == ".pyx":
        for module, what, plain in IMPORTED.findall(text):
            yield plain or module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", what))
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def with_parents(name: str) -> Iterator[str]:
    """Importing a.b.c imports a and a.b; `python -m a` runs a.__main__."""
    while name:
        yield from (name, f"{name}.__main__")
        name = name.rpartition(".")[0]


def used(package: dict[str, Path], roots: set[str]) -> set[str]:
    """The modules that can be reached from these."""
    reached: set[str] = set()
    waiting = {each for root in roots for each in with_parents(root)} & package.keys()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for other in names_in(package[name]):
            waiting |= set(with_parents(other)) & package.keys() - reached
    return reached


def test_the_wheel_has_no_module_for_tests_alone(root_dir: Path, package: dict[str, Path]) -> None:
    project = tomllib.loads((root_dir / "pyproject.toml").read_text())["project"]
    entries = project["scripts"] | project["entry-points"]["torch.backends"]
    roots = {entry.partition(":")[0] for entry in entries.values()}
    for page in (root_dir / "README.md", *(root_dir / "docs").glob("*.md")):
        roots |= set(DOCUMENTED.findall(page.read_text()))
    for tool in (root_dir / "tools").glob("*.py"):  # those that make the documents
        roots |= set(names_in(tool))
    assert package.keys() - used(package, roots) == set()


def test_nothing_in_the_wheel_makes_packets_of_others(package: dict[str, Path]) -> None:
    """Packet sockets are for what attacks a laboratory's hosts; that is in tests/hostile."""
    sources = {name: path.read_text() for name, path in package.items()}
    assert not [name for name, text in sources.items() if re.search(r"AF_PACKET|SOCK_PACKET", text)]
    assert not [name for name in package if re.search(r"attack|ncclnet|flood|loris", name)]


def test_another_package_named_harp_is_named(root_dir: Path, tmp_path: Path) -> None:
    """PyPI's other project called harp, installed after harp-nccl: its __init__.py is in use."""
    shutil.copytree(root_dir / "harp", tmp_path / "harp", ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "harp/__init__.py").write_text("")
    (tmp_path / "harp-1.2.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harp.cli"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("harpctl: the unrelated PyPI package harp 1.2 is installed over")
    assert "pip uninstall harp" in done.stderr
    assert "Traceback" not in done.stderr


def test_import_warns_of_another_package_named_harp(root_dir: Path, tmp_path: Path) -> None:
    """The same with harp-nccl installed last: its __init__.py is in use."""
    shutil.copytree(root_dir / "harp", tmp_path / "harp", ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "harp-1.2.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import harp"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert "ImportWarning: the unrelated PyPI package harp 1.2" in done.stderr


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
