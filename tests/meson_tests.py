# SPDX-License-Identifier: Apache-2.0
"""What a build tree knows of its tests, and how to run one as meson does."""

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

EXIT_SKIP = 77  # as automake and meson have it
PATIENCE = 10  # times a test's own limit: that ends what hangs, this machine may be busy
# What computes under a virtual clock leaves the processors to tests that run by the real one.
VIRTUAL = ["nice", "-n", "5"]


@functools.cache
def meson_tests(build: Path) -> tuple[dict[str, Any], ...]:
    """The entries of intro-tests.json; none where there is no build."""
    path = build / "meson-info" / "intro-tests.json"
    tests = json.loads(path.read_text()) if path.is_file() else []
    # Arguments that are files of the build are relative to it, and meson runs tests there.
    return tuple(test | {"workdir": test["workdir"] or str(build)} for test in tests)


def suites(test: Mapping[str, Any]) -> list[str]:
    """The suites of a test, without the project's name."""
    named = (suite.split(":")[-1] for suite in test["suite"])
    return [suite for suite in named if suite and suite != "harp"]


def run_meson_test(test: Mapping[str, Any], env: Mapping[str, str] | None = None) -> None:
    """Runs one entry of intro-tests.json: 0 good, 77 can't run here."""
    seconds = test["timeout"] * PATIENCE or None
    try:
        done = subprocess.run(
            [*(VIRTUAL if "sim" in suites(test) else []), *test["cmd"]],
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
        pytest.skip(words[-1] if words else "it can't run here, and doesn't say why")
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-8000:]
        pytest.fail(
            f"{' '.join(test['cmd'])}\nexit status {done.returncode}\n{text}", pytrace=False
        )
