# SPDX-License-Identifier: Apache-2.0
"""Builds of the tree: their tests, and builds with other compilers and sanitizers."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from programs import finished

BIN = Path(sys.executable).parent
BUILD_S = 2400
EXIT_SKIP = 77  # as automake and meson have it
TIMEOUT_FACTOR = 10  # of a test's own timeout, which only ends tests that hang; the machine is busy
# Tests under a virtual clock give way to tests that depend on real time.
LOW_PRIORITY = ["nice", "-n", "5"]


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


@functools.cache
def meson_tests(build: Path) -> tuple[dict[str, Any], ...]:
    """Return the entries of intro-tests.json, or none without a build."""
    path = build / "meson-info" / "intro-tests.json"
    tests = json.loads(path.read_text()) if path.is_file() else []
    # Arguments that name files of the build are relative to it, and meson runs tests there.
    return tuple(test | {"workdir": test["workdir"] or str(build)} for test in tests)


def suites(test: Mapping[str, Any]) -> list[str]:
    """Return the suites of a test, without the project's name."""
    named = (suite.split(":")[-1] for suite in test["suite"])
    return [suite for suite in named if suite and suite != "harp"]


def run_meson_test(test: Mapping[str, Any], env: Mapping[str, str] | None = None) -> None:
    """Run one entry of intro-tests.json. Exit status 0 means passed, 77 means skipped."""
    seconds = test["timeout"] * TIMEOUT_FACTOR or None
    try:
        done = finished(
            [*(LOW_PRIORITY if "sim" in suites(test) else []), *test["cmd"]],
            cwd=test["workdir"],
            env=os.environ | test["env"] | (env or {}),
            stdin=subprocess.DEVNULL,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        pytest.fail(f"still running after {seconds} s; its output ends:\n{text[-4000:]}")
    if done.returncode == EXIT_SKIP:
        words = (done.stdout + done.stderr).strip().splitlines()
        pytest.skip(words[-1] if words else "it cannot run here and gives no reason")
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-8000:]
        pytest.fail(
            f"{' '.join(test['cmd'])}\nexit status {done.returncode}\n{text}", pytrace=False
        )
