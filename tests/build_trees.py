# SPDX-License-Identifier: Apache-2.0
"""Builds of the tree that differ from build/: other compilers, sanitizers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
BUILD_S = 2400


def output(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> str:
    """What a command that must succeed printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        pytest.fail(f"{words}\nexit status {done.returncode}\n{done.stdout[-8000:]}", pytrace=False)
    return done.stdout


def _set_up(root: Path, name: str, options: Sequence[str], cc: str) -> Path:
    build = root / "build-long" / name
    again = ["--reconfigure"] if (build / "build.ninja").is_file() else []
    setup = ["meson", "setup", *again, build, root, "-Dpython=disabled", *options]
    output(setup, env={"CC": cc}, timeout_s=BUILD_S)
    return build


def built(root: Path, name: str, *options: str, cc: str = "gcc") -> Path:
    """The tree built with these options into build-long/<name>; without Python if not said."""
    build = _set_up(root, name, options, cc)
    output(["ninja", "-C", build], timeout_s=BUILD_S)
    return build


def each_once(build: Path) -> list[dict[str, str]]:
    """How each file of a build is compiled, once: some are parts of several programs. Twice where
    macros differ."""
    commands = json.loads((build / "compile_commands.json").read_text())

    def defined(command: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(sorted(w for w in command["command"].split() if w.startswith("-D")))

    return list({(each["file"], defined(each)): each for each in commands}.values())


def compiled(root: Path, name: str, *options: str, cc: str = "gcc") -> int:
    """Each file of the tree compiled once with these options. How many there are."""
    build = _set_up(root, name, options, cc)
    objects = [each["output"] for each in each_once(build)]
    output(["ninja", "-C", build, *objects], timeout_s=BUILD_S)
    return len(objects)
