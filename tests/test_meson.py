# SPDX-License-Identifier: Apache-2.0
"""Every test of the meson build (C unit tests, simulator, examples) as one pytest case."""

from typing import Any

import pytest
from meson_tests import meson_tests, run_meson_test, suites

from harp import _paths


def _cases() -> list[Any]:
    build = _paths.build_dir()
    cases, seen = [], {}
    for test in meson_tests(build) if build else ():
        name = "-".join([*suites(test), test["name"]])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}-{seen[name]}"
        marks = [pytest.mark.long] if "long" in suites(test) else []
        cases.append(pytest.param(test, id=name, marks=marks))
    return cases


CASES = _cases()


def test_the_build_has_tests() -> None:
    """An empty list would make the parametrised test below vanish in silence."""
    assert CASES, "no meson tests in build/meson-info/intro-tests.json: run `make build`"


@pytest.mark.parametrize("test", CASES)
def test_meson(test: dict[str, Any]) -> None:
    """The program says so by its exit status: 0 good, 77 can't run here."""
    run_meson_test(test)
