#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the lock files of Python packages, with hashes, for the build, the tests and the site.

    .venv/bin/python tools/lock.py        locks the newest versions that pyproject.toml allows
    python3 tools/lock.py --ranges EXTRA  prints the ranges of pyproject.toml (build, test or site)
    python3 tools/lock.py --fits          exit code 0 if the locks are for this Python

`make build` installs tools/requirements.lock, the tests also tools/requirements-test.lock, and
`make site` installs tools/requirements-site.lock. A hash identifies one file: the wheel for one
Python version and platform. With another Python, tools/setup.sh installs from the ranges of
pyproject.toml, and prints a line about it.
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
LOCKS = {
    "build": ROOT / "tools" / "requirements.lock",
    "test": ROOT / "tools" / "requirements-test.lock",
    "site": ROOT / "tools" / "requirements-site.lock",
}
FOR = "cpython 3.11 linux x86_64 glibc"
HEADS = {
    "build": "What `make build` installs into .venv",
    "test": "What the tests add to tools/requirements.lock",
    "site": "What `make site` installs into build-site/venv",
}


def head(extra: str) -> str:
    """First lines of a lock file."""
    license_line = "# SPDX-License-Identifier: Apache-2.0"
    return f"{license_line}\n# {HEADS[extra]} with {FOR}. Written by tools/lock.py.\n"


def ranges(extra: str) -> list[str]:
    """Requirements of an extra; `build` includes those of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = project["optional-dependencies"][extra]
    return [*project["dependencies"], *wanted] if extra == "build" else wanted


def this_python() -> str:
    """This interpreter, in the format of FOR."""
    version = ".".join(map(str, sys.version_info[:2]))
    words = (sys.implementation.name, version, sys.platform)
    return " ".join((*words, platform.machine(), platform.libc_ver()[0]))


def resolve(requirements: list[str]) -> dict[str, str]:
    """Lock entries by package name, from pip's report of what it would install."""
    # Ignore pip's settings: the hashes must be PyPI's, not those of a mirror or a local folder.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    kept |= {"PIP_CONFIG_FILE": os.devnull}
    if "PIP_CERT" in os.environ:
        kept["PIP_CERT"] = os.environ["PIP_CERT"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--only-binary", ":all:", "--disable-pip-version-check"]
        command += ["--index-url", "https://pypi.org/simple", "--report", str(report)]
        subprocess.run([*command, *requirements], check=True, env=kept)
        packages = json.loads(report.read_text())["install"]
    entries = {}
    for package in packages:
        name, version = package["metadata"]["name"].lower(), package["metadata"]["version"]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        entries[name] = f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
    return entries


def write_locks() -> None:
    """Resolves build and tests together, so that their versions agree, and splits the result."""
    everything = resolve([*ranges("build"), *ranges("test")])
    of_build = resolve(ranges("build")).keys()
    lists = {
        "build": [entry for name, entry in everything.items() if name in of_build],
        "test": [entry for name, entry in everything.items() if name not in of_build],
        "site": list(resolve(ranges("site")).values()),
    }
    for extra, path in LOCKS.items():
        path.write_text(head(extra) + "".join(sorted(lists[extra])))


def main() -> int:
    if sys.argv[1:2] == ["--ranges"]:
        print("\n".join(ranges(sys.argv[2])))
        return 0
    if sys.argv[1:] == ["--fits"]:
        return int(this_python() != FOR)
    if this_python() != FOR:
        print(f"lock.py: this is {this_python()}; the locks are for {FOR}", file=sys.stderr)
        return 1
    write_locks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
