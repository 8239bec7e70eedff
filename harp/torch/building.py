# SPDX-License-Identifier: Apache-2.0
"""Compiles backend.cpp on this machine, once for each torch, and loads it.

c10d has no stable ABI, so no wheel can carry the compiled backend for all releases of torch.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from harp import _paths
from harp.errors import Exit, HarpError

NAME = "harp_torch_backend"
OLDEST, NEWEST = (2, 13), (2, 14)  # releases of torch for which the backend is known to compile

_SOURCE = Path(__file__).with_name("backend.cpp")
_HEADER = "harp_coll.h"


def _header_dir() -> Path:
    """Return the folder of libharp-coll's header: this one if installed, coll/ in a source tree."""
    tree = _SOURCE.parent.parent.parent / "coll"
    for folder in (_SOURCE.parent, tree):
        if (folder / _HEADER).is_file():
            return folder
    raise HarpError(f"no {_HEADER} in {_SOURCE.parent} or {tree}: install HARP again", Exit.MISSING)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def check_release(version: str) -> None:
    """Raise HarpError for a torch that is too old. A newer one than NEWEST may work."""
    if _release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise HarpError(
            f"torch {version} is too old for the harp backend: install torch {oldest} or later",
            Exit.MISSING,
        )


def cache_dir(version: str) -> Path:
    """Return the folder of the backend that is compiled for this torch, Python and HARP."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    digest = hashlib.sha256()
    for part in (_SOURCE.read_bytes(), (_header_dir() / _HEADER).read_bytes()):
        digest.update(part)
    library = _paths.find(_paths.COLL_LIBRARY)
    digest.update(f"{library}:{sysconfig.get_config_var('SOABI')}".encode())
    return Path(root) / "harp" / "torch" / f"{version}-{digest.hexdigest()[:16]}"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _missing_tools() -> list[str]:
    compiler = os.environ.get("CXX", "c++").split()[0]
    missing = [] if shutil.which(compiler) else [f"a C++ compiler ({compiler})"]
    try:
        import ninja  # noqa: F401
    except ImportError:
        missing += [] if shutil.which("ninja") else ["ninja (pip install ninja)"]
    include = Path(sysconfig.get_path("include")) / "Python.h"
    return missing + ([] if include.is_file() else [f"Python's headers ({include})"])


def _compile(version: str, target: Path) -> None:
    missing = _missing_tools()
    if missing:
        raise HarpError(
            "the harp backend must be compiled at its first use, but this machine lacks "
            f"{', '.join(missing)}; install it, or copy {target.parent} from a machine with the "
            "same torch, Python and HARP",
            Exit.MISSING,
        )
    from torch.utils import cpp_extension

    library = _paths.find(_paths.COLL_LIBRARY)
    print(
        f"harp: compiling the backend for torch {version}, once; it takes a minute",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as work:
        try:
            cpp_extension.load(
                name=NAME,
                sources=[str(_SOURCE)],
                extra_cflags=["-O2", "-g0"],
                extra_include_paths=[str(_header_dir())],
                extra_ldflags=[str(library), f"-Wl,-rpath,{library.parent}"],
                build_directory=work,
                is_python_module=False,
            )
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            log = target.parent / "error.log"
            log.write_text(str(error))
            newest = ".".join(map(str, NEWEST))
            reason = (
                f"it is newer than {newest}, the newest known to work; install torch {newest}"
                if _release(version) > NEWEST
                else f"the compiler's output is in {log}"
            )
            raise HarpError(
                f"the harp backend cannot be compiled for torch {version}: {reason}", Exit.FAILURE
            ) from None
        (Path(work) / f"{NAME}.so").replace(target)


@cache
def module() -> ModuleType:
    """Return the compiled backend; compile it if necessary."""
    import torch

    version = torch.__version__
    check_release(version)
    folder = cache_dir(version)
    path = folder / f"{NAME}.so"
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / "lock").open("w")
        except OSError as error:
            raise HarpError(
                f"the compiled backend cannot be stored: {error}; set XDG_CACHE_HOME to a writable "
                "folder",
                Exit.FAILURE,
            ) from None
        with lock:  # one rank of the host compiles
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _compile(version, path)
    try:
        return _load(path)
    except ImportError as error:
        raise HarpError(
            f"the compiled backend {path} cannot be loaded: {error}; remove {folder} to compile it "
            "again",
            Exit.FAILURE,
        ) from None
