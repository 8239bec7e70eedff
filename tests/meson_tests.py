# SPDX-License-Identifier: Apache-2.0
"""Read the list of tests of a build tree, and run one test as meson does."""

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

EXIT_SKIP = 77  # as automake and meson have it
TIMEOUT_FACTOR = 10  # of a test's own timeout, which only ends tests that hang; the machine is busy
# Tests under a virtual clock give way to tests that depend on real time.
LOW_PRIORITY = ["nice", "-n", "5"]


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
        done = subprocess.run(
            [*(LOW_PRIORITY if "sim" in suites(test) else []), *test["cmd"]],
            cwd=test["workdir"],
            env=os.environ | test["env"] | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
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
