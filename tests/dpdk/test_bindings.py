# SPDX-License-Identifier: Apache-2.0
"""harp.dpdk. The scenes are functions of bindings_*.py. Each runs in its own process and network
namespace."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROLES = {"memif_flood"}  # what a scene starts
WITHOUT = """
import sys
sys.modules["harp._dpdk"] = None
import harp.dpdk
"""


def scenes() -> list[tuple[str, str]]:
    """Files and functions that take nothing, or a folder, and return nothing."""
    pattern = re.compile(r"^def (\w+)\((?:folder: Path)?\) -> None:", re.MULTILINE)
    return [
        (path.name, name)
        for path in sorted(HERE.glob("bindings_*.py"))
        for name in pattern.findall(path.read_text())
        if name not in ROLES
    ]


def run(name: str, scene: str, *arguments: str) -> None:
    """One scene, in a namespace of its own where we may make one."""
    words = [sys.executable, str(HERE / name), scene, *arguments]
    if os.geteuid() == 0:
        words = ["unshare", "--net", *words]
    paths = os.pathsep.join([str(ROOT), str(HERE)])
    done = subprocess.run(
        words,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{scene}: {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}", False)


@pytest.fixture(scope="module")
def bindings() -> None:
    """Skips where this build has no DPDK."""
    from harp.errors import HarpError

    try:
        import harp.dpdk  # noqa: F401
    except HarpError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "scene"), scenes())
def test_a_scene_passes(name: str, scene: str, bindings: None, tmp_path: Path) -> None:
    """See bindings_*.py."""
    if scene == "ports_say_what_they_are" and os.geteuid() != 0:
        pytest.skip("needs root: a tap device")
    run(name, scene, *([str(tmp_path)] if name == "bindings_devices.py" else []))


def test_a_missing_library_is_named() -> None:
    """A build without DPDK: one line, with the remedy, also as an ImportError."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "harp.dpdk._binding.MissingError: harp.dpdk: built without DPDK: install libdpdk-dev and"
        " rebuild"
    )
    ask = "try:\n import harp.dpdk\nexcept ImportError as e:\n print(type(e).__mro__[1].__name__)"
    code = WITHOUT.replace("import harp.dpdk\n", ask + "\n")
    asked = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert asked.stdout.strip() == "HarpError"
