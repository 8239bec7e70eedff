# SPDX-License-Identifier: Apache-2.0
"""What the dynamic linker sees of the plugin: NCCL's tables, libc, and nothing left to resolve."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NET_TABLES = {f"ncclNetPlugin_v{n}" for n in range(6, 13)}
TUNER_TABLES = {f"ncclTunerPlugin_v{n}" for n in range(2, 7)}


@pytest.fixture(scope="module")
def plugin(build_dir: Path) -> Path:
    path = build_dir / "plugin" / "libnccl-net-harp.so"
    assert path.is_file(), f"{path} is not there: run `make build`"
    return path


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_exports_the_tables_only(plugin: Path) -> None:
    lines = output("nm", "-D", "--defined-only", plugin).splitlines()
    assert {line.split()[-1] for line in lines} == NET_TABLES | TUNER_TABLES
    # Data symbols of struct type, as dlsym's callers expect.
    assert all(line.split()[-2] in "DRBV" for line in lines)


def test_rccl_finds_the_plugin_by_its_own_name(plugin: Path, build_dir: Path) -> None:
    """AMD's RCCL opens librccl-net-NAME.so, and takes the same tables."""
    rccl = plugin.with_name("librccl-net-harp.so")
    load = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL('librccl-net-harp.so')\n"
        "for name in sys.argv[1:]:\n"
        "    print(ctypes.c_char_p.in_dll(lib, name).value.decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", load, *sorted(NET_TABLES | TUNER_TABLES)],
        env=os.environ | {"LD_LIBRARY_PATH": str(plugin.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["HARP"] * 12
    conform = build_dir / "tests" / "plugin" / "conform"
    for version in ("6", "12"):
        output(conform, rccl, version, "fifo", "lifecycle")


def test_the_profiler_exports_its_tables_and_needs_libc_only(plugin: Path) -> None:
    profiler = plugin.with_name("libnccl-profiler-harp.so")
    lines = output("nm", "-D", "--defined-only", profiler).splitlines()
    assert {line.split()[-1] for line in lines} == {f"ncclProfiler_v{n}" for n in range(3, 8)}
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", profiler))
    assert [name for name in needed if not name.startswith(("libc.so", "libpthread.so"))] == []


def test_needs_libc_only(plugin: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", plugin))
    # ld-linux for thread-local storage; libpthread is a part of libc since glibc 2.34.
    allowed = re.compile(r"libc\.so|ld-linux|libpthread\.so")
    assert needed
    assert [name for name in needed if not allowed.match(name)] == []


def test_ldd_lists_libc_only(plugin: Path) -> None:
    allowed = re.compile(r"\s*(linux-vdso|libc\.so|libpthread\.so|/lib.*/ld-linux)")
    assert [line for line in output("ldd", plugin).splitlines() if not allowed.match(line)] == []


def test_has_no_soname_version_and_resolves_at_load(plugin: Path) -> None:
    dynamic = output("readelf", "-d", plugin)
    soname = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)
    assert soname in ([], ["libnccl-net-harp.so"])
    assert re.search(r"FLAGS.*\b(BIND_NOW|NOW)\b", dynamic)
    assert "TEXTREL" not in dynamic
    # Nothing may run from the stack, and the tables are read-only after relocation.
    segments = output("readelf", "-lW", plugin)
    assert re.search(r"GNU_STACK.* RW ", segments)
    assert "GNU_RELRO" in segments
