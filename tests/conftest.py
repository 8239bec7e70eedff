# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests: the build tree, root, and a check that the run leaves nothing behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import RUN, huge_pages_used, leftovers, other_processes, without_others

from harp import _paths

ROOT = Path(__file__).resolve().parent.parent

# Set before the first child process starts, because all children must inherit it.
os.environ[RUN] = f"{os.getpid()}-{time.time_ns()}"
# In a background job of a shell (nohup make test &), these are ignored and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# On SIGTERM, fixtures must end the processes that they started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


# Files with few long tests run first. A long test that starts last would leave processors idle.
_FIRST = (
    *("test_meson.py", "test_long.py", "test_lint.py", "test_operating.py", "test_versus.py"),
    "test_prometheus.py",
)


# Folders in which all tests create network namespaces or open a queue of a NIC.
_ROOT_FOLDERS = {"daemon", "driver", "dpdk", "hostile", "netns"}


def _needs_root(item: pytest.Item) -> bool:
    return item.path.parent.name in _ROOT_FOLDERS or "need_root" in getattr(
        item, "fixturenames", ()
    )


def _keep_samples(items: list[pytest.Item], complete: bool) -> None:
    """Mark all cases as `long` except those that the marker `sample` names.

    complete: all cases of each file were collected, so every name must match a case.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is None:
            continue
        function, _, case = item.nodeid.partition("[")
        case = case.removesuffix("]")
        missing.setdefault(function, set(sample.args)).discard(case)
        if case not in sample.args:
            item.add_marker(pytest.mark.long)
    unknown = [f"{function}{sorted(cases)}" for function, cases in missing.items() if cases]
    if complete and unknown:
        raise pytest.UsageError("the marker `sample` names unknown cases: " + ", ".join(unknown))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_root(item):
            item.add_marker(pytest.mark.root)
    complete = not config.getoption("lf", False) and not any("::" in arg for arg in config.args)
    _keep_samples(items, complete)
    items.sort(key=lambda item: item.path.name not in _FIRST)


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """Return the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Return the build tree that the installed harp package uses."""
    build = _paths.build_dir()
    if build is None:
        pytest.fail("no build/: run `make build`")
    return build


@pytest.fixture(scope="session")
def need_root() -> None:
    """Skip the test without root. CI runs as root (.ci/run)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if it leaves a namespace, XDP program, pin, bpffs, process or huge page."""
    build = _paths.build_dir() or ROOT / "build"
    ours = tmp_path_factory.getbasetemp()
    before, pages_before = leftovers(build, ours), huge_pages_used()
    yield
    # The kernel frees namespaces, programs and pages asynchronously: within tens of milliseconds,
    # or later after the hundreds of namespaces of a whole run. Objects that appear after this first
    # scan, and objects that other processes own, belong to other runs.
    left = leftovers(build, ours) - before
    deadline = time.monotonic() + 60
    while True:
        others = other_processes(build)
        left = without_others(left, others)
        # Huge pages have no owner, so they are checked only if no other run is active.
        pages = 0 if others.has_test_run else huge_pages_used() - pages_before
        if not left and pages <= 0:
            return
        if time.monotonic() > deadline:
            objects = sorted(f"{kind} {name}" for kind, name in left)
            objects += [f"{pages} huge pages"] if pages > 0 else []
            pytest.fail("the tests left behind: " + "; ".join(objects))
        time.sleep(0.05)
        left &= leftovers(build, ours)
