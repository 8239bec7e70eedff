#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layer rule: which folder may include which, checked file by file.

dataplane/ is a stack of layers; each sees itself and those below it. Next to the stack, host, xdp
and dpdk see public headers, base, and the doors listed below. coll/ sees NCCL's ABI and nothing
else, so that it works over any plugin. The plugin and the Python bindings see the public headers,
and those under SHARED.

plugin/ is a pile of its own. A folder may include, and call functions of, itself and those beneath
it. Within a folder at most three files may depend on each other in a circle; a file depends on the
files whose functions it names, so that a common header hides nothing. Run it from anywhere; it
prints each offense and exits 1 when there is one.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Lowest first: a layer may include itself and all before it.
PILE = ("base", "memory", "nic", "link", "network", "transport", "socket", "stack")
# The plugin's folders, lowest first, by the same rule.
PLUGIN_PILE = (
    "profiler",  # a library of its own, which sees public headers only
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
# Files of one folder of the plugin that may depend on each other in a circle.
CIRCLE_FILES_MAX = 3
# Folders next to the layers: what they may include besides their own files and dataplane/include.
BESIDE = {"host": ("base",), "xdp": ("base",), "dpdk": ("base",)}
# Single headers that folders next to the layers may include, and why.
DOORS = {
    "nic/af_xdp_link.h": "what an interface is: asked by host and xdp before there is a NIC",
    "xdp/harp_xdp.h": "the interface of libharp-xdp.so, which host opens on demand",
    "dpdk/harp_dpdk.h": "the interface of libharp-dpdk.so, which host opens on demand",
    "xdp/steer.h": "the maps' layout, shared with the BPF program",
}
# Headers of the pile that programs above it may include, and why.
SHARED = {
    "dataplane/base/addr.h": "comparison of addresses",
    "dataplane/base/sockaddr.h": "an address as the kernel's",
    "dataplane/base/thread.h": "the one way to start a thread",
    "dataplane/base/trust.h": "whose files and programs are believed",
    "dataplane/base/util.h": "container_of and ARRAY_SIZE",
}
# coll/ works over any ncclNet plugin: it sees what NCCL sees.
COLL_SEES = ("plugin/abi/nccl_abi.h",)
# Its public header: for the bindings.
COLL_PUBLIC = "coll/harp_coll.h"
# What single files of the bindings may include besides, and why.
BINDINGS = {
    ("harp/_host.pxd", "dataplane/xdp/harp_xdp.h"): "harpd loads the XDP program as host does",
    (
        "harp/native/dpdk/eal.c",
        "dataplane/dpdk/harp_dpdk.h",
    ): "harp.dpdk shares DPDK's environment with the stacks of its process",
    (
        "harp/_host.pxd",
        "dataplane/host/route_cache.h",
    ): "harpd reads an interface's addresses and routes for a job as the job would",
    ("harp/_host.pxd", "dataplane/host/netlink_get.h"): "the same of the route to a destination",
    ("harp/_host.pxd", "dataplane/host/dpdk_take.h"): "harpd refuses a port as its opener would",
}
# Public headers that the pile itself must not know: they are built on top of it.
ABOVE_THE_PILE = ("harp_host.h",)
C_SUFFIXES = (".c", ".h")
CYTHON_SUFFIXES = (".pyx", ".pxd", ".pxi", *C_SUFFIXES)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
EXTERN = re.compile(r"""^\s*cdef\s+extern\s+from\s+(?:"([^"]+)"|'([^']+)')""")


@dataclass(frozen=True)
class Offence:
    """One include that the rule forbids."""

    file: Path
    line: int
    header: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: includes {self.header}: {self.why}"


def headers(path: Path) -> Iterator[tuple[int, str]]:
    """The headers a file names, with line numbers."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line) or EXTERN.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def resolve(root: Path, file: Path, header: str) -> Path | None:
    """The file of the tree that an include means, relative to root; None when it is not ours."""
    places = (
        file.parent,
        root / "dataplane",
        root / "dataplane" / "include",
        root / "plugin",
        root / "coll",
    )
    for place in places:
        found = (place / header).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found.relative_to(root)
    return None


def judge_dataplane(layer: str, target: tuple[str, ...]) -> str | None:
    """Why a file of this layer must not include target (a path in parts); None when it may."""
    if target[0] != "dataplane":
        return "dataplane/ knows nothing of what is built on it"
    folder, header = target[1], "/".join(target[1:])
    if folder == layer:
        return None
    if folder == "include":
        if layer in PILE and target[-1] in ABOVE_THE_PILE:
            return f"{layer} must not know the host layer, which is built on it"
        return None
    if layer in BESIDE:
        if folder in BESIDE[layer] or header in DOORS:
            return None
        return (
            f"{layer} sees public headers, {', '.join(BESIDE[layer])} and {', '.join(DOORS)} only"
        )
    if folder not in PILE:
        return f"{layer} must not include {folder}, which is next to the layers"
    if PILE.index(folder) > PILE.index(layer):
        return f"{layer} lies beneath {folder} and must not know it"
    return None


def judge_plugin(layer: str, folder: str) -> str | None:
    """Why a folder of the plugin must not use another one; None when it may."""
    if PLUGIN_PILE.index(folder) > PLUGIN_PILE.index(layer):
        return f"plugin/{layer} lies beneath plugin/{folder} and must not know it"
    return None


def judge(root: Path, file: Path, header: str) -> str | None:
    """Why this file must not include this header; None when it may."""
    where = file.relative_to(root).parts
    target = resolve(root, file, header)
    if target is None:
        return None
    if where[0] == "dataplane":
        return judge_dataplane(where[1], target.parts)
    if where[0] == target.parts[0] == "plugin":
        return judge_plugin(where[1], target.parts[1])
    if ("/".join(where), "/".join(target.parts)) in BINDINGS:
        return None
    if where[0] == "coll":
        name = "/".join(target.parts)
        if target.parts[0] == "coll" or name in COLL_SEES:
            return None
        return f"coll sees {', '.join(COLL_SEES)} only"
    if where[0] == "harp" and "/".join(target.parts) == COLL_PUBLIC:
        return None
    own = where[: 2 if where[0] == "harp" else 1]
    if target.parts[: len(own)] == own or target.parts[:2] == ("dataplane", "include"):
        return None
    if "/".join(target.parts) in SHARED:
        return None
    seen = ", ".join(("the public headers in dataplane/include", *SHARED))
    return f"{'/'.join(own)} sees {seen} only"


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


# A function's definition at the beginning of a line; a prototype ends with ";" and is none.
DEFINITION = re.compile(
    r"^(?!extern\b|typedef\b)(static )?\w[\w \*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M
)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
NAME = re.compile(r"\b[a-z_]\w+\b")


def plugin_uses(root: Path) -> dict[Path, set[Path]]:
    """The .c files whose functions each .c file of the plugin names."""
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


def circles(uses: dict[Path, set[Path]]) -> Iterator[list[Path]]:
    """Files that all depend on each other, by each of the other ones."""
    reach: dict[Path, set[Path]] = {}
    for start in uses:
        seen: set[Path] = set()
        left = [start]
        while left:
            for path in uses[left.pop()] & uses.keys():
                if path not in seen:
                    seen.add(path)
                    left.append(path)
        reach[start] = seen
    reported: set[Path] = set()
    for start in uses:
        circle = sorted(path for path in reach[start] if start in reach[path])
        if circle and start not in reported:
            reported.update(circle)
            yield circle


def plugin_offences(root: Path) -> Iterator[str]:
    """Functions of the plugin that are used from beneath, and circles that are too large."""
    uses = plugin_uses(root)
    for path, others in uses.items():
        if path.parts[1] not in PLUGIN_PILE:
            continue
        for other in sorted(others):
            why = other.parts[1] in PLUGIN_PILE and judge_plugin(path.parts[1], other.parts[1])
            if why:
                yield f"{path}: uses functions of {other}: {why}"
    for folder in PLUGIN_PILE:
        own = {path: others for path, others in uses.items() if path.parts[1] == folder}
        for circle in circles(own):
            if len(circle) > CIRCLE_FILES_MAX:
                names = ", ".join(path.name for path in circle)
                yield (
                    f"plugin/{folder}: {len(circle)} files depend on each other in a circle, more"
                    f" than {CIRCLE_FILES_MAX}: {names}"
                )


def unknown_folders(root: Path) -> Iterator[str]:
    """Folders that the rule does not name."""
    for tree, known in (
        ("dataplane", {"include", *PILE, *BESIDE}),
        ("plugin", set(PLUGIN_PILE)),
    ):
        for path in sorted((root / tree).iterdir()):
            if path.is_dir() and path.name not in known:
                yield f"{tree}/{path.name}: not in the layer rule: add it to tools/check_layers.py"
            elif tree == "plugin" and path.suffix in C_SUFFIXES:
                yield f"{tree}/{path.name}: files of the plugin lie in the folder of their layer"


def check(root: Path) -> list[str]:
    """Every offence in the tree, as text."""
    root = root.resolve()
    found = list(unknown_folders(root))
    found += plugin_offences(root)
    known = {"dataplane": {"include", *PILE, *BESIDE}, "plugin": set(PLUGIN_PILE)}
    for file in files(root):
        tree, folder = file.relative_to(root).parts[:2]
        if folder not in known.get(tree, {folder}):
            continue  # reported above
        for line, header in headers(file):
            why = judge(root, file, header)
            if why:
                found.append(str(Offence(file.relative_to(root), line, header, why)))
    return found


def main() -> int:
    """Checks the tree named by the argument, or the one this file lies in."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    offences = check(root)
    for offence in offences:
        print(offence)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
