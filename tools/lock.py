#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tools/requirements.lock: the Python packages that `make build` installs, with hashes.

    .venv/bin/python tools/lock.py       takes the newest that pyproject.toml allows, from PyPI
    python3 tools/lock.py --ranges       prints what pyproject.toml allows
    python3 tools/lock.py --fits         exit code 0: the lock is for this Python

A hash is of one file, the wheel for one Python on one kind of machine. With any other,
tools/setup.sh installs what pyproject.toml allows, and says so.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "requirements.lock"
FOR = "cpython 3.11 linux x86_64 glibc"
HEAD = f"""\
# SPDX-License-Identifier: Apache-2.0
# What `make build` installs into .venv with {FOR}. Written by tools/lock.py.
"""


def ranges() -> list[str]:
    """The requirements of the package, its demo, real NCCL and its development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["demo"], *extras["nccl"], *extras["dev"]]


def this_python() -> str:
    """As FOR has it."""
    version = ".".join(map(str, sys.version_info[:2]))
    words = (sys.implementation.name, version, sys.platform)
    return " ".join((*words, platform.machine(), platform.libc_ver()[0]))


def resolve() -> str:
    """The lock's text, by pip's report of what it would install."""
    # The hashes shall be PyPI's, not a mirror's or a local folder's.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    kept |= {"PIP_CONFIG_FILE": os.devnull}
    if "PIP_CERT" in os.environ:
        kept["PIP_CERT"] = os.environ["PIP_CERT"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--only-binary", ":all:", "--disable-pip-version-check"]
        command += ["--index-url", "https://pypi.org/simple", "--report", str(report)]
        subprocess.run([*command, *ranges()], check=True, env=kept)
        found = json.loads(report.read_text())["install"]
    lines = [
        f"{each['metadata']['name'].lower()}=={each['metadata']['version']} \\\n"
        f"    --hash=sha256:{each['download_info']['archive_info']['hashes']['sha256']}\n"
        for each in found
    ]
    return HEAD + "".join(sorted(lines))


def main() -> int:
    if sys.argv[1:] == ["--ranges"]:
        print("\n".join(ranges()))
        return 0
    if sys.argv[1:] == ["--fits"]:
        return int(this_python() != FOR)
    if this_python() != FOR:
        print(f"lock.py: this is {this_python()}; the lock is for {FOR}", file=sys.stderr)
        return 1
    LOCK.write_text(resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
