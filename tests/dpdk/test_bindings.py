# SPDX-License-Identifier: Apache-2.0
"""harp.dpdk. The scenes are functions of bindings_*.py. Each runs in its own process and network
namespace."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROLES = {"memif_flood", "memif_peer"}  # what a scene starts
WITHOUT = """
import sys
sys.modules["harp._dpdk"] = None
import harp.dpdk
"""


def scenes(name: str) -> list[str]:
    """Functions of a file that say in their first argument, or by having none, that they are."""
    tree = ast.parse((HERE / name).read_text())
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            arguments = [each.arg for each in node.args.args]
            returns = isinstance(node.returns, ast.Constant) and node.returns.value is None
            if returns and arguments in ([], ["folder"]) and node.name not in ROLES:
                found.append(node.name)
    assert found
    return found


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


@pytest.mark.parametrize("scene", scenes("bindings_scenes.py"))
def test_a_scene_passes(scene: str, bindings: None) -> None:
    """See bindings_scenes.py."""
    if scene == "ports_say_what_they_are" and os.geteuid() != 0:
        pytest.skip("needs root: a tap device")
    run("bindings_scenes.py", scene)


@pytest.mark.parametrize("scene", scenes("bindings_enemies.py"))
def test_misuse_is_withstood(scene: str, bindings: None) -> None:
    """See bindings_enemies.py."""
    run("bindings_enemies.py", scene)


@pytest.mark.parametrize("scene", scenes("bindings_devices.py"))
def test_a_device_works(scene: str, bindings: None, tmp_path: Path) -> None:
    """See bindings_devices.py."""
    if scene == "the_kernel_answers" and os.geteuid() != 0:
        pytest.skip("needs root: a tap device")
    run("bindings_devices.py", scene, str(tmp_path))


def test_a_missing_library_is_named() -> None:
    """A build without DPDK: one line, with the remedy, and an ImportError for who asks so."""
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
