# SPDX-License-Identifier: Apache-2.0
"""Find the objects that a test run left on the machine, and those that belong to others.

Several runs may share a machine. All processes of a run inherit RUN. Names of namespaces and
directories contain the process that made them. Other objects count as this run's.

A BPF program lives as long as a process, a pin or an interface holds it. Processes, pins and
namespaces are found themselves; what is left are programs on interfaces of this namespace.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from programs import finished

RUN = "TEST_RUN_OF_HARP"
# Namespaces made by the tree: harpctl's laboratory, and the tests' own.
NAMESPACES = re.compile(r"(?:harp|hx)-")
# The process in "harp-<pid>-<serial>-h0", "hx-bench-<pid>", "harp-test-<pid>-<anything>".
_MAKER = re.compile(r"(?:harp|hx)(?:-[a-z]\w*)?-(\d+)(?:-|/|$)")
_PROC = Path("/proc")


@dataclass
class Others:
    """Living processes that this run did not start."""

    pids: set[int] = field(default_factory=set)
    tests: bool = False  # another run of the tests is among them

    def made(self, name: str) -> bool:
        """Is it known by its name to be theirs?"""
        found = _MAKER.search(name)
        return found is not None and int(found[1]) in self.pids


# --------------------------------------------------------------------------------------------------
# Processes.
#
def is_of_this_run(pid: int) -> bool | None:
    """None: nothing says so; it is a process of no run, or one with an environment of its own."""
    words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    run = next((word for word in words if word.startswith(f"{RUN}=".encode())), None)
    return None if run is None else run == f"{RUN}={os.environ[RUN]}".encode()


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def _runs_what_is_built(pid: int, build: Path) -> bool:
    """Does it run our binaries, or has it our plugin mapped?"""
    mark = f"{build}/".encode()
    at = _PROC / str(pid)
    return mark in (at / "cmdline").read_bytes() or mark + b"plugin/" in (at / "maps").read_bytes()


def processes(build: Path) -> set[str]:
    """Living processes of this run, or that run what it tests, other than this one."""
    found = set()
    for pid in _pids():
        try:
            ours = is_of_this_run(pid)
            if ours is None:
                ours = _runs_what_is_built(pid, build)
            alive = (_PROC / str(pid) / "stat").read_bytes().rsplit(b") ", 1)[1][:1] not in b"ZX"
            command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").strip()
        except OSError:
            continue
        if ours and alive:
            found.add(f"{pid} {command.decode(errors='replace')}")
    return found


def others(build: Path) -> Others:
    them = Others()
    for pid in _pids():
        try:
            ours = is_of_this_run(pid)
            if ours or (ours is None and _runs_what_is_built(pid, build)):
                continue
        except OSError:
            continue
        them.pids.add(pid)
        them.tests |= ours is False
    return them


# --------------------------------------------------------------------------------------------------
# The rest.
#
def xdp_programs() -> set[str]:
    """Those on interfaces of this namespace, as "interface number"."""
    links = json.loads(finished(["ip", "-j", "link", "show"]).stdout or "[]")
    attached = {link["ifname"]: link.get("xdp", {}).get("prog") for link in links}
    return {f"{ifname} {program['id']}" for ifname, program in attached.items() if program}


def namespaces() -> set[str]:
    """Named network namespaces that this tree makes."""
    try:
        return {path.name for path in Path("/run/netns").iterdir() if NAMESPACES.match(path.name)}
    except FileNotFoundError:
        return set()


def bpf_mounts(ours: Path) -> set[str]:
    """Mounted bpffs: below ours, or with a maker in its name."""
    lines = (_PROC / "self/mounts").read_text().splitlines()
    places = {line.split()[1] for line in lines if line.split()[2] == "bpf"}
    return {at for at in places if at.startswith(f"{ours}/") or _MAKER.search(at)}


def huge_pages_used() -> int:
    """Huge pages in use or promised, on the whole machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("HugePages")}
    return (
        int(fields["HugePages_Total"])
        - int(fields["HugePages_Free"])
        + int(fields["HugePages_Rsvd"])
    )


def leftovers(build: Path, ours: Path) -> set[tuple[str, str]]:
    """Everything that a run must not leave behind, with its kind; pins are files under bpffs."""
    pins = Path("/sys/fs/bpf")
    found = {
        "namespace": namespaces(),
        "XDP program": xdp_programs(),
        "process": processes(build),
        "pin": {str(path) for path in pins.glob("harp*")} if pins.is_dir() else set(),
        "bpffs": bpf_mounts(ours),
    }
    return {(kind, name) for kind, names in found.items() for name in names}


def without(left: set[tuple[str, str]], them: Others) -> set[tuple[str, str]]:
    """What is left when theirs is taken out."""
    named = ("namespace", "bpffs")
    return {(kind, name) for kind, name in left if not (kind in named and them.made(name))}
