# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's wheels of NCCL: pip downloads them into a cache, which keeps libnccl.so.2.

The cache is harp/nccl in $XDG_CACHE_HOME, else in ~/.cache. It has a folder for each version, with
the library (200 to 450 MB) and its layout (harp.nccl.layout).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from harp import files
from harp.errors import Exit, HarpError
from harp.nccl import layout

PACKAGE = "nvidia-nccl-cu12"
LIBRARY = "libnccl.so.2"
_INSIDE = f"nvidia/nccl/lib/{LIBRARY}"
_VERSION = re.compile(r"\d+(\.\d+)+(\.post\d+)?")
_DOWNLOAD_S = 900


def cache_dir() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "harp" / "nccl"


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def cached() -> list[str]:
    """Return the versions in the cache, oldest first."""
    names = (path.parent.name for path in cache_dir().glob(f"*/{LIBRARY}"))
    return sorted((name for name in names if _VERSION.fullmatch(name)), key=version_key)


def check_version(version: str) -> None:
    """Raise HarpError for an invalid version: it becomes part of a path and of pip's command."""
    if not _VERSION.fullmatch(version):
        raise HarpError(f"'{version}' is not a version of NCCL, such as 2.30.7", Exit.USAGE)


def library(version: str) -> Path:
    """Return the library of a cached version; HarpError with the command to get it."""
    check_version(version)
    path = cache_dir() / version / LIBRARY
    if not path.is_file():
        raise HarpError(
            f"NCCL {version} is not in {cache_dir()}; run harpctl bench nccl-real --nccl {version}"
            " --download",
            Exit.MISSING,
        )
    return path


def layout_file(path: Path) -> Path:
    """Return the file with the layout of a library, which is written next to it if absent."""
    file = path.parent / f"layout-{layout.FORMAT}"
    if not file.is_file():
        files.write_whole(file, layout.read(path), durable=False)
    return file


def fetch(version: str | None = None) -> str:
    """Download a version unless it is cached, or the newest one; return the version."""
    if version is not None:
        check_version(version)
        if version in cached():
            return version
    cache = cache_dir()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarpError(f"{cache}: {error.strerror}; set XDG_CACHE_HOME") from error
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as name:
        folder = Path(name)
        _pip_download(version, folder)
        (wheel,) = folder.glob("*.whl")
        version = wheel.name.split("-")[1]
        check_version(version)
        _extract(wheel, folder)
        layout_file(folder / LIBRARY)  # fails for a library that can't be used
        target = cache / version
        target.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if file.suffix != ".whl":
                file.rename(target / file.name)
    return version


def _pip_download(version: str | None, folder: Path) -> None:
    requirement = f"{PACKAGE}=={version}" if version else PACKAGE
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HarpError(
            f"{requirement}: no download in {_DOWNLOAD_S} s; is there a network?"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit status {done.returncode}"
        raise HarpError(f"{requirement} could not be downloaded: {reason}; is there a network?")


def _extract(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_INSIDE) as source:
            with (folder / LIBRARY).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise HarpError(f"{wheel.name}: no {_INSIDE} in it: {error}") from error
