#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the includes of every file against the layer rule.

dataplane/ consists of layers; each may include itself and the layers below. The other folders of
dataplane/, host, xdp and dpdk, may include public headers, base, and EXTRA_HEADERS. coll/ may
include only NCCL's ABI, so that it works over any plugin. The plugin and the Python bindings may
include the public headers and those in SHARED.

plugin/ has its own layers. A folder may include, and call functions of, itself and the folders
below. At most three files of a folder may form a dependency cycle; a file depends on the files
whose functions it names, so a common header hides nothing. Prints each violation; exit code 1 if
there is one.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Lowest first: a layer may include itself and those before it.
LAYERS = ("base", "memory", "nic", "link", "network", "transport", "socket", "stack")
# The plugin's folders, lowest first, with the same rule.
PLUGIN_LAYERS = (
    "profiler",  # a separate library, which includes only public headers
    "wire",
    "process",
    "device",
    "poll",
    "lane",
    "stats",
    "comm",
    "connect",
    "context",
    "abi",
    "tuner",
)
# Largest dependency cycle of files in a folder of the plugin.
CYCLE_FILES_MAX = 3
# Folders next to the layers, and what they may include besides their own files and
# dataplane/include.
SIDE_FOLDERS = {"host": ("base",), "xdp": ("base",), "dpdk": ("base",)}
# Single headers that SIDE_FOLDERS may include, and why.
EXTRA_HEADERS = {
    "nic/af_xdp_link.h": "properties of an interface: host and xdp read them before a NIC is open",
    "xdp/harp_xdp.h": "the interface of libharp-xdp.so, which host opens on demand",
    "dpdk/harp_dpdk.h": "the interface of libharp-dpdk.so, which host opens on demand",
    "xdp/steer.h": "the maps' layout, shared with the BPF program",
}
# Internal headers of dataplane/ that the plugin and the bindings may include, and why.
SHARED = {
    "dataplane/base/addr.h": "comparison of addresses",
    "dataplane/base/clock.h": "the monotonic clock",
    "dataplane/base/sockaddr.h": "conversion to the kernel's socket addresses",
    "dataplane/base/thread.h": "the only way to start a thread",
    "dataplane/base/trust.h": "which owners of files and programs are trusted",
    "dataplane/base/util.h": "container_of and ARRAY_SIZE",
}
# coll/ works over any ncclNet plugin: it may include what NCCL includes.
COLL_INCLUDES = ("plugin/abi/nccl_abi.h",)
# The public header of coll/, for the bindings.
COLL_PUBLIC = "coll/harp_coll.h"
# Other headers that single files of the bindings may include, and why.
BINDINGS = {
    ("harp/_host.pxd", "dataplane/xdp/harp_xdp.h"): "harpd loads the XDP program as host does",
    (
        "harp/native/dpdk/eal.c",
        "dataplane/dpdk/harp_dpdk.h",
    ): "harp.dpdk shares DPDK's environment with the stacks of its process",
    (
        "harp/_host.pxd",
        "dataplane/host/route_cache.h",
    ): "harpd reads an interface's addresses and routes as the job would",
    ("harp/_host.pxd", "dataplane/host/netlink_get.h"): "the same for the route to a destination",
    ("harp/_host.pxd", "dataplane/host/dpdk_take.h"): "harpd refuses a port as the job would",
}
# Public headers that LAYERS must not include: host, which is above the layers, implements them.
HOST_HEADERS = ("harp_host.h",)
C_SUFFIXES = (".c", ".h")
CYTHON_SUFFIXES = (".pyx", ".pxd", ".pxi", *C_SUFFIXES)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
EXTERN = re.compile(r"""^\s*cdef\s+extern\s+from\s+(?:"([^"]+)"|'([^']+)')""")


@dataclass(frozen=True)
class Violation:
    """An include that the rule forbids."""

    file: Path
    line: int
    header: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: includes {self.header}: {self.why}"


def headers(path: Path) -> Iterator[tuple[int, str]]:
    """The headers that a file includes, with line numbers."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line) or EXTERN.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def resolve(root: Path, file: Path, header: str) -> Path | None:
    """The path of an included header relative to root; None if it is not in the tree."""
    folders = (
        file.parent,
        root / "dataplane",
        root / "dataplane" / "include",
        root / "plugin",
        root / "coll",
    )
    for folder in folders:
        path = (folder / header).resolve()
        if path.is_file() and path.is_relative_to(root):
            return path.relative_to(root)
    return None


def check_dataplane(layer: str, target: tuple[str, ...]) -> str | None:
    """Why a file of this layer must not include target (the parts of a path); None if it may."""
    if target[0] != "dataplane":
        return "dataplane/ must not use what is built on it"
    folder, header = target[1], "/".join(target[1:])
    if folder == layer:
        return None
    if folder == "include":
        if layer in LAYERS and target[-1] in HOST_HEADERS:
            return f"{layer} must not use the host layer, which is built on it"
        return None
    if layer in SIDE_FOLDERS:
        if folder in SIDE_FOLDERS[layer] or header in EXTRA_HEADERS:
            return None
        allowed = ", ".join((*SIDE_FOLDERS[layer], *EXTRA_HEADERS))
        return f"{layer} may include only public headers, {allowed}"
    if folder not in LAYERS:
        return f"{layer} must not include {folder}, which is next to the layers"
    if LAYERS.index(folder) > LAYERS.index(layer):
        return f"{layer} is below {folder} and must not use it"
    return None


def check_plugin(layer: str, folder: str) -> str | None:
    """Why a folder of the plugin must not use another one; None if it may."""
    if PLUGIN_LAYERS.index(folder) > PLUGIN_LAYERS.index(layer):
        return f"plugin/{layer} is below plugin/{folder} and must not use it"
    return None


def check_include(root: Path, file: Path, header: str) -> str | None:
    """Why a file must not include a header; None if it may."""
    source = file.relative_to(root).parts
    target = resolve(root, file, header)
    if target is None:
        return None
    if source[0] == "dataplane":
        return check_dataplane(source[1], target.parts)
    if source[0] == target.parts[0] == "plugin":
        return check_plugin(source[1], target.parts[1])
    if ("/".join(source), "/".join(target.parts)) in BINDINGS:
        return None
    if source[0] == "coll":
        name = "/".join(target.parts)
        if target.parts[0] == "coll" or name in COLL_INCLUDES:
            return None
        return f"coll may include only {', '.join(COLL_INCLUDES)}"
    if source[0] == "harp" and "/".join(target.parts) == COLL_PUBLIC:
        return None
    own = source[: 2 if source[0] == "harp" else 1]
    if target.parts[: len(own)] == own or target.parts[:2] == ("dataplane", "include"):
        return None
    if "/".join(target.parts) in SHARED:
        return None
    allowed = ", ".join(("the public headers in dataplane/include", *SHARED))
    return f"{'/'.join(own)} may include only {allowed}"


def files(root: Path) -> Iterator[Path]:
    """Every file that the rule covers."""
    for folder, suffixes in (
        ("dataplane", C_SUFFIXES),
        ("plugin", C_SUFFIXES),
        ("coll", C_SUFFIXES),
        ("harp", CYTHON_SUFFIXES),
    ):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


# A function's definition at the beginning of a line; a prototype, which ends with ";", does not
# match.
DEFINITION = re.compile(
    r"^(?!extern\b|typedef\b)(static )?\w[\w \*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M
)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
NAME = re.compile(r"\b[a-z_]\w+\b")


def plugin_uses(root: Path) -> dict[Path, set[Path]]:
    """For each .c file of the plugin, the .c files whose functions it names."""
    texts = {
        path.relative_to(root): STRING.sub("", COMMENT.sub("", path.read_text(encoding="utf-8")))
        for path in sorted((root / "plugin").rglob("*.c"))
    }
    owner: dict[str, Path] = {}
    private: dict[Path, set[str]] = {path: set() for path in texts}
    for path, text in texts.items():
        for static, name in DEFINITION.findall(text):
            if static:
                private[path].add(name)
            else:
                owner[name] = path
    return {
        path: {owner[name] for name in names - private[path] if name in owner} - {path}
        for path, names in ((path, set(NAME.findall(text))) for path, text in texts.items())
    }


def cycles(uses: dict[Path, set[Path]]) -> Iterator[list[Path]]:
    """The dependency cycles: sets of files that all depend on each other."""
    reach: dict[Path, set[Path]] = {}
    for start in uses:
        visited: set[Path] = set()
        pending = [start]
        while pending:
            for path in uses[pending.pop()] & uses.keys():
                if path not in visited:
                    visited.add(path)
                    pending.append(path)
        reach[start] = visited
    reported: set[Path] = set()
    for start in uses:
        cycle = sorted(path for path in reach[start] if start in reach[path])
        if cycle and start not in reported:
            reported.update(cycle)
            yield cycle


def plugin_violations(root: Path) -> Iterator[str]:
    """Calls from a folder of the plugin to a higher one, and cycles that are too large."""
    uses = plugin_uses(root)
    for path, others in uses.items():
        if path.parts[1] not in PLUGIN_LAYERS:
            continue
        for other in sorted(others):
            why = other.parts[1] in PLUGIN_LAYERS and check_plugin(path.parts[1], other.parts[1])
            if why:
                yield f"{path}: uses functions of {other}: {why}"
    for folder in PLUGIN_LAYERS:
        own = {path: others for path, others in uses.items() if path.parts[1] == folder}
        for cycle in cycles(own):
            if len(cycle) > CYCLE_FILES_MAX:
                names = ", ".join(path.name for path in cycle)
                yield (
                    f"plugin/{folder}: a dependency cycle of {len(cycle)} files, more than"
                    f" {CYCLE_FILES_MAX}: {names}"
                )


def unknown_folders(root: Path) -> Iterator[str]:
    """Folders that the rule does not name."""
    for tree, known in (
        ("dataplane", {"include", *LAYERS, *SIDE_FOLDERS}),
        ("plugin", set(PLUGIN_LAYERS)),
    ):
        for path in sorted((root / tree).iterdir()):
            if path.is_dir() and path.name not in known:
                yield f"{tree}/{path.name}: not in the layer rule: add it to tools/check_layers.py"
            elif tree == "plugin" and path.suffix in C_SUFFIXES:
                yield f"{tree}/{path.name}: move it into the folder of its layer"


def check(root: Path) -> list[str]:
    """Every violation in the tree, as text."""
    root = root.resolve()
    violations = list(unknown_folders(root))
    violations += plugin_violations(root)
    known = {"dataplane": {"include", *LAYERS, *SIDE_FOLDERS}, "plugin": set(PLUGIN_LAYERS)}
    for file in files(root):
        tree, folder = file.relative_to(root).parts[:2]
        if folder not in known.get(tree, {folder}):
            continue  # reported above
        for line, header in headers(file):
            why = check_include(root, file, header)
            if why:
                violations.append(str(Violation(file.relative_to(root), line, header, why)))
    return violations


def main() -> int:
    """Checks the tree of the argument, or the tree that contains this file."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
