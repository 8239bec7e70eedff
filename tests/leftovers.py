# SPDX-License-Identifier: Apache-2.0
"""Find the objects that a test run left on the machine, and those that belong to others.

Several runs may share a machine. All processes of a run inherit RUN. Names of namespaces and
directories contain the process that made them. A BPF program belongs to the process that holds it,
or to the interface that it is attached to. Other objects count as this run's.
"""

import ctypes
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RUN = "TEST_RUN_OF_HARP"
# Namespaces made by the tree: harpctl's laboratory, and the tests' own.
NAMESPACES = re.compile(r"(?:harp|hx)-")
# The process in "harp-<pid>-<serial>-h0", "hx-bench-<pid>", "harp-test-<pid>-<anything>".
_MAKER = re.compile(r"(?:harp|hx)(?:-[a-z]\w*)?-(\d+)(?:-|/|$)")
_PROC = Path("/proc")

_SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_BPF_PROG_GET_NEXT_ID = 11
_BPF_PROG_GET_FD_BY_ID = 13
_BPF_OBJ_GET_INFO_BY_FD = 15
_BPF_PROG_TYPES = (3, 6)  # SCHED_CLS, XDP


@dataclass
class Others:
    """Living processes that this run did not start, and the programs that they hold."""

    pids: set[int] = field(default_factory=set)
    programs: set[int] = field(default_factory=set)
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
    """Everybody else, and what they hold or have on the interfaces of their namespaces."""
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
        them.programs |= _programs_held(pid)
    for name in namespaces():
        if them.made(name):
            them.programs |= _programs_attached(name)
    return them


def _programs_held(pid: int) -> set[int]:
    """The programs of whose descriptors, or of whose links' descriptors, it has one."""
    held = set()
    try:
        for fd in (_PROC / str(pid) / "fd").iterdir():
            if "bpf" in str(fd.readlink()):
                text = (_PROC / str(pid) / "fdinfo" / fd.name).read_text()
                held |= {int(n) for n in re.findall(r"^prog_id:\s*(\d+)", text, re.MULTILINE)}
    except OSError:
        pass  # it ended, or is none of our business
    return held


def _programs_attached(netns: str) -> set[int]:
    shown = subprocess.run(
        ["ip", "-n", netns, "-j", "link", "show"], capture_output=True, text=True, check=False
    )
    links = json.loads(shown.stdout or "[]")
    return {link["xdp"]["prog"]["id"] for link in links if link.get("xdp", {}).get("prog")}


# --------------------------------------------------------------------------------------------------
# XDP programs.
#
def _bpf(command: int, attr: ctypes.Array[ctypes.c_char]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_SYS_BPF, command, ctypes.byref(attr), len(attr)))


def _prog_info(prog_id: int) -> tuple[int, str]:
    """Type and name of a loaded BPF program (struct bpf_prog_info: type at 0, name at 64)."""
    attr = ctypes.create_string_buffer(prog_id.to_bytes(4, "little"), 128)
    fd = _bpf(_BPF_PROG_GET_FD_BY_ID, attr)
    if fd < 0:
        return 0, ""
    try:
        info = ctypes.create_string_buffer(256)
        packed = fd.to_bytes(4, "little") + len(info).to_bytes(4, "little")
        packed += ctypes.addressof(info).to_bytes(8, "little")
        if _bpf(_BPF_OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(packed, 128)) < 0:
            return 0, ""
        name = info.raw[64:80].split(b"\0")[0].decode(errors="replace")
        return int.from_bytes(info.raw[0:4], "little"), name
    finally:
        os.close(fd)


def xdp_programs() -> set[str]:
    """Loaded steering programs of HARP's, as "id name"."""
    if _SYS_BPF is None or os.geteuid() != 0:
        return set()
    found, prog_id = set(), 0
    while True:
        attr = ctypes.create_string_buffer(prog_id.to_bytes(4, "little"), 128)
        if _bpf(_BPF_PROG_GET_NEXT_ID, attr) < 0:
            return found
        prog_id = int.from_bytes(attr.raw[4:8], "little")
        kind, name = _prog_info(prog_id)
        if kind in _BPF_PROG_TYPES and name.startswith("harp"):
            found.add(f"{prog_id} {name}")


# --------------------------------------------------------------------------------------------------
# The rest.
#
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

    def theirs(kind: str, name: str) -> bool:
        if kind == "XDP program":
            return int(name.split()[0]) in them.programs
        return kind in ("namespace", "bpffs") and them.made(name)

    return {(kind, name) for kind, name in left if not theirs(kind, name)}
