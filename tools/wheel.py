#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that other hosts can install: dist/harp_nccl-*-manylinux_*.whl.

    .venv/bin/python tools/wheel.py [DIRECTORY]

It has no DPDK, whose libraries differ from host to host: hosts that need DPDK build HARP
themselves. Copies of libbpf and libelf are in it. auditwheel chooses the oldest manylinux tag that
the libraries' symbols allow, and refuses a wheel that needs other libraries than those of the tag.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-wheel"
SETTINGS = ("-Ddpdk=disabled", "-Dbundle_libbpf=true", f"-Dman={BUILD / 'man'}")


def run(*command: str | Path) -> None:
    """Run a command with the tools of .venv; print its output if it fails."""
    folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{command[0]} failed")


def build(into: Path) -> Path:
    """Return the path of the wheel."""
    shutil.rmtree(BUILD / "man", ignore_errors=True)
    configured = BUILD / "tree/meson-private/coredata.dat"
    options = ROOT / "meson.options"
    if configured.is_file() and options.stat().st_mtime > configured.stat().st_mtime:
        shutil.rmtree(BUILD / "tree")  # meson would refuse an option that is new
    run(sys.executable, "-c", f"from harp.cli import manual; from pathlib import Path\n"
        f"list(manual.write_all(Path({str(BUILD / 'man')!r})))")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=BUILD) as name:
        command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        command += ["--disable-pip-version-check", f"-Cbuild-dir={BUILD / 'tree'}"]
        command += [f"-Csetup-args={setting}" for setting in SETTINGS]
        run(*command, "-w", name, ROOT)
        (plain,) = Path(name).glob("*.whl")
        repaired = Path(name) / "repaired"
        run(sys.executable, "-m", "auditwheel", "repair", "-w", repaired, plain)
        (wheel,) = repaired.glob("*.whl")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, into / wheel.name))


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"))
