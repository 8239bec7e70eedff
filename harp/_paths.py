# SPDX-License-Identifier: Apache-2.0
"""Locations of the compiled parts: the build tree (editable) or the installed package."""

import os
from functools import cache
from pathlib import Path

from harp.errors import Exit, HarpError

PLUGIN = "libnccl-net-harp.so"
XDP_LIBRARY = "libharp-xdp.so"
DPDK_LIBRARY = "libharp-dpdk.so"  # if HARP was built with DPDK
COLL_LIBRARY = "libharp-coll.so"
PROFILER = "libnccl-profiler-harp.so"  # NCCL_PROFILER_PLUGIN=harp
SOCKET_PLUGIN = "libnccl-net-sock.so"  # NCCL's use of kernel sockets, the baseline

# Locations in the build tree. A wheel has everything in harp/lib and harp/bin.
_BUILD_FOLDERS = {
    PLUGIN: "plugin",
    XDP_LIBRARY: "dataplane/xdp",
    DPDK_LIBRARY: "dataplane/dpdk",
    COLL_LIBRARY: "coll",
    PROFILER: "plugin",
    "harp-bench": "tools/driver",
    "harp-nccl-rank": "tools/nccl",  # only in the build tree
    SOCKET_PLUGIN: "tools/driver",
    "harp-wire": "tools/wire",
    "harp-tcp": "tools/tcp",
    "harp-switch": "tools/switch",
}


@cache
def build_dir() -> Path | None:
    """The build tree of this source tree: $HARP_BUILD, else the folder build/ next to harp/."""
    override = os.environ.get("HARP_BUILD")
    if override:
        return Path(override).resolve()
    # This file is in the source tree when the package is installed in editable mode.
    tree = Path(__file__).resolve().parent.parent
    if (tree / "meson.build").is_file() and (tree / "build" / "build.ninja").is_file():
        return tree / "build"
    return None


def find(name: str) -> Path:
    """Return the path of a compiled part. HarpError lists the folders that were searched."""
    build, package = build_dir(), Path(__file__).resolve().parent
    candidates = [build / _BUILD_FOLDERS[name] / name] if build is not None else []
    candidates.append(package / ("lib" if ".so" in name else "bin") / name)
    for path in candidates:
        if path.is_file():
            return path
    places = ", ".join(str(path.parent) for path in candidates)
    raise HarpError(f"{name} not found in {places}. Run `make build` first", Exit.MISSING)


def plugin(path: str | Path | None = None) -> Path:
    """Return the plugin to load: path, which must exist, or HARP's own."""
    if path is None:
        return find(PLUGIN)
    file = Path(path).resolve()
    if not file.is_file():
        raise HarpError(f"no plugin at {file}", Exit.MISSING)
    return file
