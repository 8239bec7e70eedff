# SPDX-License-Identifier: Apache-2.0
"""Run each test of the meson build (C unit tests, simulator, examples) as one pytest case."""

from pathlib import Path
from typing import Any

import pytest
from build_trees import meson_tests, run_meson_test, suites
from programs import finished

from harp import _paths

# `make check` omits the simulator's thousands of seeds and tables, and conformance tests of all ABI
# versions but the newest.
_CHECK_CONFORMANCE = "conform-v12"


def _marks(test: dict[str, Any]) -> list[pytest.MarkDecorator]:
    name, suite_names = test["name"], suites(test)
    marks = [pytest.mark.long] if "long" in suite_names else []
    if "CONFORM_HOSTS" in test["env"] or "hosts" in name or "dpdk" in suite_names:
        marks.append(pytest.mark.root)
    if "sim" in suite_names or (name.startswith("conform") and name != _CHECK_CONFORMANCE):
        marks.append(pytest.mark.full)
    return marks


def _cases() -> list[Any]:
    build = _paths.build_dir()
    return [
        pytest.param(test, id="-".join([*suites(test), test["name"]]), marks=_marks(test))
        for test in (meson_tests(build) if build else ())
    ]


CASES = _cases()


def test_the_build_has_tests() -> None:
    """With an empty list, pytest would skip the parametrized test below without a message."""
    assert CASES, "no meson tests in build/meson-info/intro-tests.json: run `make build`"


def test_the_oldest_meson_has_all_features(build_dir: Path) -> None:
    """The build files use nothing newer than `meson_version` in meson.build."""
    log = (build_dir / "meson-logs/meson-log.txt").read_text()
    assert "features which were added in newer versions" not in log


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
    done = finished(command, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
