# SPDX-License-Identifier: Apache-2.0
"""Every test of the meson build (C unit tests, simulator, examples) as one pytest case."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from meson_tests import meson_tests, run_meson_test, suites

from harp import _paths

# What `make check` leaves out of the suites: the simulator's thousands of seeds and tables, and
# conformance by other ABIs than the newest.
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
    """An empty list would make the parametrised test below vanish in silence."""
    assert CASES, "no meson tests in build/meson-info/intro-tests.json: run `make build`"


@pytest.mark.parametrize("test", CASES)
def test_meson(test: dict[str, Any]) -> None:
    """The program says so by its exit status: 0 good, 77 can't run here."""
    run_meson_test(test)


@pytest.mark.parametrize(("program", "seeds"), [("sim_run", 500), ("sim_comm_run", 200)])
def test_simulator_passes_a_few_seeds(build_dir: Path, program: str, seeds: int) -> None:
    """What `make check` runs of the simulator; the suite sim has thousands of seeds."""
    command = [build_dir / "tests/sim" / program, "--seeds", "0", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
