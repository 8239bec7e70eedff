# SPDX-License-Identifier: Apache-2.0
"""Every test of the meson build (C unit tests, simulator, examples) as one pytest case."""

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harp import _paths

EXIT_SKIP = 77  # as automake and meson have it


@functools.cache
def meson_tests() -> tuple[dict[str, Any], ...]:
    """What the build knows of its tests."""
    build = _paths.build_dir()
    if build is None:
        return ()
    path = build / "meson-info" / "intro-tests.json"
    return tuple(json.loads(path.read_text())) if path.is_file() else ()


def _cases() -> list[Any]:
    cases, seen = [], {}
    for test in meson_tests():
        suites = [suite.split(":")[-1] for suite in test["suite"]]
        name = "-".join([*(s for s in suites if s and s != "harp"), test["name"]])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}-{seen[name]}"
        marks = [pytest.mark.long] if "long" in suites else []
        cases.append(pytest.param(test, id=name, marks=marks))
    return cases


def test_the_build_has_tests() -> None:
    """An empty list would make the parametrised test below vanish in silence."""
    assert meson_tests(), "no meson tests in build/meson-info/intro-tests.json: run `make build`"


def run_meson_test(test: dict[str, Any], env: dict[str, str] | None = None) -> None:
    """Runs one entry of intro-tests.json as meson does."""
    seconds = test["timeout"] * 2 or None  # two processors shared with whatever else runs here
    try:
        done = subprocess.run(
            test["cmd"],
            cwd=test["workdir"] or Path(test["cmd"][0]).parent,
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
        pytest.skip((done.stdout + done.stderr).strip().splitlines()[-1:][0] or "skipped")
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-8000:]
        pytest.fail(
            f"{' '.join(test['cmd'])}\nexit status {done.returncode}\n{text}", pytrace=False
        )


@pytest.mark.parametrize("test", _cases())
def test_meson(test: dict[str, Any]) -> None:
    """The program says so by its exit status: 0 good, 77 can't run here."""
    run_meson_test(test)
