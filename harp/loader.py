# SPDX-License-Identifier: Apache-2.0
"""Finds a library by its name as the dynamic loader does for NCCL's dlopen()."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SYSTEM_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_CACHE_LINE = re.compile(r"^\s+(\S+) \((.*)\) => (.+)$", re.MULTILINE)
_LDCONFIG_S = 60


def ldconfig() -> str | None:
    """Return the path of ldconfig, which a user's PATH may lack; None if not installed."""
    return shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def cached() -> dict[str, list[Path]]:
    """Return the libraries of the loader's cache by name, preferred ones first."""
    program = ldconfig()
    if program is None:
        return {}
    command = [program, "-p"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LDCONFIG_S, check=False)
    libraries: dict[str, list[Path]] = {}
    for name, _, path in _CACHE_LINE.findall(done.stdout):
        libraries.setdefault(name, []).append(Path(path))
    return libraries


def find(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that the loader would open for this name; None if there is none."""
    search_path = environ.get("LD_LIBRARY_PATH")
    folders = re.split("[:;]", search_path) if search_path else []
    candidates = [Path(folder or ".") / name for folder in folders]
    candidates += cached().get(name, [])
    candidates += [Path(folder) / name for folder in _SYSTEM_DIRECTORIES]
    return next((path for path in candidates if path.is_file()), None)
