# SPDX-License-Identifier: Apache-2.0
"""Builds with other compilers and sanitizers, and the meson tests of a build."""

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
EXIT_SKIP = 77  # the convention of automake and meson
TIMEOUT_FACTOR = 10  # multiplies a meson test's timeout, since the machine is busy
# Tests under a virtual clock yield to tests that depend on real time.
LOW_PRIORITY = ["nice", "-n", "5"]


def output(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> str:
    """Run a command that must succeed. Return its output."""
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
        line = " ".join(map(str, command))
        pytest.fail(f"{line}\nexit status {done.returncode}\n{done.stdout[-8000:]}", pytrace=False)
    return done.stdout


def _set_up(root: Path, name: str, options: Sequence[str], cc: str) -> Path:
    build = root / "build-long" / name
    reconfigure = ["--reconfigure"] if (build / "build.ninja").is_file() else []
    setup = ["meson", "setup", *reconfigure, build, root, "-Dpython=disabled", *options]
    output(setup, env={"CC": cc}, timeout_s=BUILD_S)
    return build


def built(root: Path, name: str, *options: str, cc: str = "gcc") -> Path:
    """Build the tree in build-long/<name>, without Python by default. Return the build tree."""
    build = _set_up(root, name, options, cc)
    output(["ninja", "-C", build], timeout_s=BUILD_S)
    return build


def unique_commands(build: Path) -> list[dict[str, str]]:
    """Return one compile command for each file and set of macros. Several programs share files."""
    commands = json.loads((build / "compile_commands.json").read_text())

    def macros(command: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(sorted(w for w in command["command"].split() if w.startswith("-D")))

    return list({(command["file"], macros(command)): command for command in commands}.values())


def compiled(root: Path, name: str, *options: str, cc: str = "gcc") -> int:
    """Compile each file of the tree once with these options. Return the number of objects."""
    build = _set_up(root, name, options, cc)
    objects = [command["output"] for command in unique_commands(build)]
    output(["ninja", "-C", build, *objects], timeout_s=BUILD_S)
    return len(objects)


@functools.cache
def meson_tests(build: Path) -> tuple[dict[str, Any], ...]:
    """Return the entries of intro-tests.json, or none without a build."""
    path = build / "meson-info" / "intro-tests.json"
    tests = json.loads(path.read_text()) if path.is_file() else []
    # meson runs tests in the build tree: their arguments may be paths relative to it.
    return tuple(test | {"workdir": test["workdir"] or str(build)} for test in tests)


def suites(test: Mapping[str, Any]) -> list[str]:
    """Return the suites of a test, without the project's name."""
    names = (suite.split(":")[-1] for suite in test["suite"])
    return [name for name in names if name and name != "harp"]


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
        lines = (done.stdout + done.stderr).strip().splitlines()
        pytest.skip(lines[-1] if lines else "the test cannot run here and gives no reason")
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-8000:]
        pytest.fail(
            f"{' '.join(test['cmd'])}\nexit status {done.returncode}\n{text}", pytrace=False
        )
