# SPDX-License-Identifier: Apache-2.0
"""The package: what it must not contain, and the other project of its name."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path


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
