# SPDX-License-Identifier: Apache-2.0
"""Run each test of the meson build (C unit tests, simulator, examples) as one pytest case."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from meson_tests import meson_tests, run_meson_test, suites

from harp import _paths

# `make check` omits the simulator's thousands of seeds and tables, and conformance tests of all ABI
# versions but the newest.
_CHECK_CONFORMANCE = "conform-v12"


def _marks(test: dict[str, Any]) -> list[pytest.MarkDecorator]:
    name, of = test["name"], suites(test)
    marks = [pytest.mark.long] if "long" in of else []
    if "CONFORM_HOSTS" in test["env"] or "hosts" in name or "dpdk" in of:
        marks.append(pytest.mark.root)
    if "sim" in of or (name.startswith("conform") and name != _CHECK_CONFORMANCE):
        marks.append(pytest.mark.full)
    return marks


def _cases() -> list[Any]:
    build = _paths.build_dir()
    cases, seen = [], {}
    for test in meson_tests(build) if build else ():
        name = "-".join([*suites(test), test["name"]])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}-{seen[name]}"
        cases.append(pytest.param(test, id=name, marks=_marks(test)))
    return cases


CASES = _cases()


def test_the_build_has_tests() -> None:
    """With an empty list, pytest would skip the parametrized test below without a message."""
    assert CASES, "no meson tests in build/meson-info/intro-tests.json: run `make build`"


@pytest.mark.parametrize("test", CASES)
def test_meson(test: dict[str, Any]) -> None:
    """The exit status of the program decides: 0 means passed, 77 means skipped."""
    run_meson_test(test)


@pytest.mark.parametrize(
    ("program", "seeds"), [("sim_run", 500), ("sim_comm_run", 200), ("sim_coll_run", 40)]
)
def test_simulator_passes_a_few_seeds(build_dir: Path, program: str, seeds: int) -> None:
    """`make check` runs only these seeds; the suite `sim` has thousands."""
    command = [build_dir / "tests/sim" / program, "--seeds", "0", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
