# SPDX-License-Identifier: Apache-2.0
"""The scan for leftovers finds all objects of its own run, and none of another run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import RUN, leftovers, others, without
from netns_tools import Tools, finish

from harp.lab import Lab

# Makes a namespace, says its name, and goes without removing it. Of a name that no laboratory
# removes, as it would one of its kind.
LEAVE = """
import os, subprocess, sys
name = f"hx-leave-{os.getpid()}"
subprocess.run(["ip", "netns", "add", name], check=True)
print(name, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[False, True], ids=["ours", "another's"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of what this run starts, or another does."""
    return os.environ | {RUN: "another"} if request.param else dict(os.environ)


@pytest.fixture
def forgetful(env: dict[str, str], need_root: None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and the namespace that it made."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE], env=env, stdin=-1, stdout=-1, text=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    yield process, name
    process.communicate()
    subprocess.run(["ip", "netns", "delete", name], check=True)


def test_a_namespace_and_its_process_are_found(
    forgetful: tuple[subprocess.Popen[str], str],
    env: dict[str, str],
    build_dir: Path,
    tmp_path: Path,
) -> None:
    process, name = forgetful
    left = without(leftovers(build_dir, tmp_path), others(build_dir))
    ours = env[RUN] == os.environ[RUN]
    assert (("namespace", name) in left) is ours
    found = [
        what for kind, what in left if kind == "process" and what.startswith(f"{process.pid} ")
    ]
    assert len(found) == ours
    assert others(build_dir).tests or ours
    process.communicate("")
    left = without(leftovers(build_dir, tmp_path), others(build_dir))
    assert ("namespace", name) in left, "the dead are nobody else's"


def test_an_attached_xdp_program_is_found(
    tools: Tools, lab: Lab, env: dict[str, str], build_dir: Path, tmp_path: Path
) -> None:
    before = leftovers(build_dir, tmp_path)
    here, there = lab.hosts
    server = there.popen(
        [tools.tcp, "serve", there.address, "61000", *tools.side(there, "harp")], env=env
    )
    tools.started.append(server)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    held = there.run("ip", "-d", "link", "show")
    number = held.split("prog/xdp id ")[1].split()[0]
    mine = ("XDP program", f"{number} harp_steer")
    new = leftovers(build_dir, tmp_path) - before
    assert mine in new
    ours = env[RUN] == os.environ[RUN]
    assert (mine in without(new, others(build_dir))) is ours
    tools.call_tcp(here, "kernel", "echo", there.address, 61000, "--count", "1")
    finish(server)
    assert server.returncode == 0


def test_a_mounted_bpffs_is_found(build_dir: Path, tmp_path: Path, need_root: None) -> None:
    at = tmp_path / "bpf"
    at.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", at], check=True)
    try:
        assert ("bpffs", str(at)) in without(leftovers(build_dir, tmp_path), others(build_dir))
    finally:
        subprocess.run(["umount", at], check=True)
    assert ("bpffs", str(at)) not in leftovers(build_dir, tmp_path)
