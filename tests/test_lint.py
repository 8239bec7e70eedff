# SPDX-License-Identifier: Apache-2.0
"""Formatters and linters, one test each. A finding is a failure."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from programs import finished

BIN = Path(sys.executable).parent


def sources(root: Path, *suffixes: str) -> list[str]:
    """Files of the tree (tracked, or new and not ignored) with one of these suffixes."""
    git = ["git", "-c", f"safe.directory={root}", "ls-files", "-co", "--exclude-standard", "-z"]
    done = finished(git, cwd=root)
    if done.returncode == 0:
        names = [name for name in done.stdout.split("\0") if name]
    else:  # an unpacked archive
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
    skip = ("build", ".venv/")
    return sorted(
        name
        for name in names
        if name.endswith(suffixes) and not name.startswith(skip) and (root / name).is_file()
    )


def run(root: Path, *command: str) -> None:
    # cython-lint calls pycodestyle by name.
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = finished(command, cwd=root, env=environment)
    if done.returncode != 0:
        pytest.fail((done.stdout + done.stderr)[-6000:], pytrace=False)


def tool(name: str) -> str:
    """Return the path of a linter in the virtual environment or the system. Fail without it."""
    path = shutil.which(name, path=f"{BIN}:/usr/bin:/usr/local/bin")
    if path is None:
        pytest.fail(f"{name} is not installed: run `make build`")
    return path


def test_c_is_formatted(root_dir: Path) -> None:
    """clang-format has nothing to change (run `make format`)."""
    run(root_dir, tool("clang-format"), "--dry-run", "-Werror", *sources(root_dir, ".c", ".h"))


def test_python_is_formatted(root_dir: Path) -> None:
    """Ruff's formatter has nothing to change (run `make format`)."""
    run(root_dir, tool("ruff"), "format", "--check", *sources(root_dir, ".py", ".pyi"))


def test_ruff(root_dir: Path) -> None:
    run(root_dir, tool("ruff"), "check", *sources(root_dir, ".py", ".pyi"))


def test_mypy(root_dir: Path) -> None:
    """The package and the tools are typed throughout."""
    run(root_dir, tool("mypy"), "--strict", "harp", "tools")


def test_cython_lint(root_dir: Path) -> None:
    files = sources(root_dir, ".pyx", ".pxd")
    assert files, "no Cython sources found"
    run(root_dir, tool("cython-lint"), *files)


def test_spelling(root_dir: Path) -> None:
    """Codespell's built-in list, over the whole tree."""
    suffixes = (".md", ".c", ".h", ".py", ".pyi", ".pyx", ".pxd", ".sh", ".yml", ".build")
    run(root_dir, tool("codespell"), *sources(root_dir, *suffixes))


def test_vocabulary(root_dir: Path) -> None:
    """American spelling everywhere, and no retired term (docs/glossary.md)."""
    suffixes = (".md", ".c", ".h", ".cpp", ".py", ".pyi", ".pyx", ".pxd", ".sh", ".toml", ".build")
    command = [tool("codespell"), "--builtin", "en-GB_to_en-US", "--dictionary", "-"]
    # The kernel's and numpy's own spellings.
    ignored = r"`[^`]*`|linux/neighbour\.h|flags\.writeable"  # codespell:ignore
    command += ["--dictionary", "tools/vocabulary.txt", "--ignore-regex", ignored]
    run(root_dir, *command, *sources(root_dir, *suffixes))


def test_comments_wrap(root_dir: Path) -> None:
    """Lines of C comments end at column 100; clang-format does not wrap them."""
    wide = [
        f"{name}:{number}"
        for name in sources(root_dir, ".c", ".h", ".cpp")
        for number, line in enumerate((root_dir / name).read_text().splitlines(), 1)
        if len(line.expandtabs(8)) > 100
        and (line.lstrip().startswith(("*", "//")) or "/*" in line or line.endswith("*/"))
    ]
    assert not wide


def test_layers(root_dir: Path) -> None:
    """No file includes a header of a layer that it must not use."""
    run(root_dir, sys.executable, "tools/check_layers.py")


def test_a_forbidden_include_is_found(root_dir: Path, tmp_path: Path) -> None:
    """tools/check_layers.py reports a forbidden include."""
    for name, text in (
        ("dataplane/base/rng.c", '#include "memory/frame.h"\n'),
        ("dataplane/memory/frame.h", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "plugin").mkdir()
    command = [sys.executable, root_dir / "tools" / "check_layers.py", tmp_path]
    done = finished(command)
    assert done.returncode == 1
    assert done.stdout.startswith("dataplane/base/rng.c:1: includes ")


def test_every_c_file_is_built(root_dir: Path, build_dir: Path) -> None:
    """A source without a target would be neither compiled nor run."""
    commands = json.loads((build_dir / "compile_commands.json").read_text())
    compiled = {(build_dir / entry["file"]).resolve() for entry in commands}
    files = [name for name in sources(root_dir, ".c") if not name.endswith(".bpf.c")]
    if not any(path.parent.name == "dpdk" for path in compiled):  # a build without DPDK
        files = [name for name in files if Path(name).parent.name != "dpdk"]
    assert not [name for name in files if root_dir / name not in compiled]


def test_license(root_dir: Path) -> None:
    """Every source file names its license in its first lines."""
    suffixes = (".c", ".h", ".py", ".pyi", ".pyx", ".pxd", ".sh", ".toml", ".options")
    files = sources(root_dir, *suffixes)
    without_license = [
        name
        for name in files
        if "SPDX-License-Identifier: Apache-2.0" not in (root_dir / name).read_text()[:400]
    ]
    assert not without_license


def test_shell_scripts_parse(root_dir: Path) -> None:
    for name in [*sources(root_dir, ".sh"), ".ci/run"]:
        run(root_dir, "bash", "-n", name)
