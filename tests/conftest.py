# SPDX-License-Identifier: Apache-2.0
"""What every test may rely on: the built tree, root where needed, and a clean machine after."""

import ctypes
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harp import _paths

ROOT = Path(__file__).resolve().parent.parent
# Namespaces made by the tree: harpctl's laboratory, and the tests' own.
OURS = ("harp-",)


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The build tree that harp was installed from."""
    build = _paths.build_dir()
    if build is None:
        pytest.fail("no build/: run `make build`")
    return build


@pytest.fixture(scope="session")
def need_root() -> None:
    """Skips where there is no root (CI has it: .ci/run)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")


# --------------------------------------------------------------------------------------------------
# Nothing left behind.
#
_SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_BPF_PROG_GET_NEXT_ID = 11
_BPF_PROG_GET_FD_BY_ID = 13
_BPF_OBJ_GET_INFO_BY_FD = 15
_BPF_PROG_TYPE_XDP = 6


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
    """Loaded XDP programs of HARP's, as "id name"."""
    if _SYS_BPF is None or os.geteuid() != 0:
        return set()
    found, prog_id = set(), 0
    while True:
        attr = ctypes.create_string_buffer(prog_id.to_bytes(4, "little"), 128)
        if _bpf(_BPF_PROG_GET_NEXT_ID, attr) < 0:
            return found
        prog_id = int.from_bytes(attr.raw[4:8], "little")
        kind, name = _prog_info(prog_id)
        if kind == _BPF_PROG_TYPE_XDP and name.startswith("harp"):
            found.add(f"{prog_id} {name}")


def namespaces() -> set[str]:
    """Named network namespaces that this tree makes."""
    try:
        return {path.name for path in Path("/run/netns").iterdir() if path.name.startswith(OURS)}
    except FileNotFoundError:
        return set()


def processes(build: Path) -> set[str]:
    """Living processes that run our binaries or have our plugin mapped, other than this one."""
    mark = f"{build}/".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
            alive = (entry / "stat").read_bytes().rsplit(b") ", 1)[1][:1] not in b"ZX"
            ours = mark in command or mark + b"plugin/" in (entry / "maps").read_bytes()
        except OSError:
            continue
        if ours and alive:
            found.add(f"{entry.name} {command.decode(errors='replace')}")
    return found


def huge_pages_used() -> int:
    """Huge pages in use or promised, on the whole machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("HugePages")}
    return (
        int(fields["HugePages_Total"])
        - int(fields["HugePages_Free"])
        + int(fields["HugePages_Rsvd"])
    )


def leftovers(build: Path) -> dict[str, set[str]]:
    """Everything that a run must not leave behind; pins are files under bpffs."""
    pins = Path("/sys/fs/bpf")
    return {
        "namespace": namespaces(),
        "XDP program": xdp_programs(),
        "process": processes(build),
        "pin": {str(path) for path in pins.glob("harp*")} if pins.is_dir() else set(),
        "directory": set(map(str, Path("/run/harp-lab").glob("*"))),
    }


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the run when it leaves a namespace, XDP program, pin, process or huge page."""
    build = _paths.build_dir() or ROOT / "build"
    before, pages_before = leftovers(build), huge_pages_used()
    yield
    # The kernel frees namespaces, programs and pages in its own time: some tens of milliseconds.
    # What is new after this first look is somebody else's.
    found = leftovers(build)
    left = {(kind, name) for kind in found for name in found[kind] - before[kind]}
    deadline = time.monotonic() + 15
    while True:
        pages = huge_pages_used() - pages_before
        if not left and pages <= 0:
            return
        if time.monotonic() > deadline:
            words = sorted(f"{kind} {name}" for kind, name in left)
            words += [f"{pages} huge pages"] if pages > 0 else []
            pytest.fail("the tests left behind: " + "; ".join(words))
        time.sleep(0.05)
        found = leftovers(build)
        left = {(kind, name) for kind, name in left if name in found[kind]}
