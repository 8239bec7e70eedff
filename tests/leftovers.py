# SPDX-License-Identifier: Apache-2.0
"""Find objects that a test run left on the machine, as opposed to those of other runs.

Several runs may share a machine. All processes of a run inherit RUN. Names of namespaces and
directories contain the pid of their creator. All other objects count as this run's.

A BPF program lives as long as a process, a pin or an interface holds it. Processes, pins and
namespaces are checked separately, so only programs on interfaces of this namespace are searched.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from programs import finished

RUN = "TEST_RUN_OF_HARP"
# Namespaces of harpctl's lab and of the tests.
NAMESPACES = re.compile(r"(?:harp|hx)-")
# The pid in "harp-<pid>-<serial>-h0", "hx-bench-<pid>", "harp-test-<pid>-<anything>".
_CREATOR = re.compile(r"(?:harp|hx)(?:-[a-z]\w*)?-(\d+)(?:-|/|$)")
_PROC = Path("/proc")


@dataclass
class OtherProcesses:
    """Running processes that this test run did not start."""

    pids: set[int] = field(default_factory=set)
    has_test_run: bool = False  # one of them belongs to another test run

    def is_creator(self, name: str) -> bool:
        """Does the object's name contain the pid of one of these processes?"""
        match = _CREATOR.search(name)
        return match is not None and int(match[1]) in self.pids


# --------------------------------------------------------------------------------------------------
# Processes.
#
def is_of_this_run(pid: int) -> bool | None:
    """Return None for a process without RUN in its environment."""
    variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    run = next((item for item in variables if item.startswith(f"{RUN}=".encode())), None)
    return None if run is None else run == f"{RUN}={os.environ[RUN]}".encode()


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def _uses_build(pid: int, build: Path) -> bool:
    """Does the process run a program of the build, or has it mapped its plugin?"""
    mark = f"{build}/".encode()
    at = _PROC / str(pid)
    return mark in (at / "cmdline").read_bytes() or mark + b"plugin/" in (at / "maps").read_bytes()


def processes(build: Path) -> set[str]:
    """Return the running processes of this run, and those that use the build, except this one."""
    result = set()
    for pid in _pids():
        try:
            is_ours = is_of_this_run(pid)
            if is_ours is None:
                is_ours = _uses_build(pid, build)
            is_alive = (_PROC / str(pid) / "stat").read_bytes().rsplit(b") ", 1)[1][:1] not in b"ZX"
            command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").strip()
        except OSError:
            continue
        if is_ours and is_alive:
            result.add(f"{pid} {command.decode(errors='replace')}")
    return result


def other_processes(build: Path) -> OtherProcesses:
    others = OtherProcesses()
    for pid in _pids():
        try:
            is_ours = is_of_this_run(pid)
            if is_ours or (is_ours is None and _uses_build(pid, build)):
                continue
        except OSError:
            continue
        others.pids.add(pid)
        others.has_test_run |= is_ours is False
    return others


# --------------------------------------------------------------------------------------------------
# Other objects.
#
def xdp_programs() -> set[str]:
    """Return "interface id" for each XDP program on interfaces of this namespace."""
    links = json.loads(finished(["ip", "-j", "link", "show"]).stdout or "[]")
    attached = {link["ifname"]: link.get("xdp", {}).get("prog") for link in links}
    return {f"{ifname} {program['id']}" for ifname, program in attached.items() if program}


def namespaces() -> set[str]:
    try:
        return {path.name for path in Path("/run/netns").iterdir() if NAMESPACES.match(path.name)}
    except FileNotFoundError:
        return set()


def bpf_mounts(ours: Path) -> set[str]:
    """Return the mount points of bpffs below `ours`, or with the pid of a creator."""
    lines = (_PROC / "self/mounts").read_text().splitlines()
    paths = {line.split()[1] for line in lines if line.split()[2] == "bpf"}
    return {path for path in paths if path.startswith(f"{ours}/") or _CREATOR.search(path)}


def huge_pages_used() -> int:
    """Return how many huge pages of the machine are in use or reserved."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("HugePages")}
    return (
        int(fields["HugePages_Total"])
        - int(fields["HugePages_Free"])
        + int(fields["HugePages_Rsvd"])
    )


def leftovers(build: Path, ours: Path) -> set[tuple[str, str]]:
    """Return kind and name of all objects that a run must not leave behind."""
    pins = Path("/sys/fs/bpf")
    objects = {
        "namespace": namespaces(),
        "XDP program": xdp_programs(),
        "process": processes(build),
        "pin": {str(path) for path in pins.glob("harp*")} if pins.is_dir() else set(),
        "bpffs": bpf_mounts(ours),
    }
    return {(kind, name) for kind, names in objects.items() for name in names}


def without_others(left: set[tuple[str, str]], others: OtherProcesses) -> set[tuple[str, str]]:
    """Remove the objects that other processes created."""
    kinds = ("namespace", "bpffs")
    return {(kind, name) for kind, name in left if not (kind in kinds and others.is_creator(name))}
