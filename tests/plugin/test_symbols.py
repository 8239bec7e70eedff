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


@pytest.mark.parametrize(
    ("library", "tables"),
    [
        ("libnccl-net-harp.so", NET_TABLES | TUNER_TABLES),
        ("libnccl-profiler-harp.so", {f"ncclProfiler_v{n}" for n in range(3, 8)}),
    ],
)
def test_a_library_exports_its_tables_only_and_needs_libc_only(
    plugin: Path, library: str, tables: set[str]
) -> None:
    path = plugin.with_name(library)
    lines = output("nm", "-D", "--defined-only", path).splitlines()
    assert {line.split()[-1] for line in lines} == tables
    # Data symbols of struct type, as dlsym's callers expect.
    assert all(line.split()[-2] in "DRBV" for line in lines)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", path))
    # ld-linux for thread-local storage; libpthread is a part of libc since glibc 2.34.
    allowed = ("libc.so", "ld-linux", "libpthread.so")
    assert needed
    assert [name for name in needed if not name.startswith(allowed)] == []


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


def test_the_plugin_has_no_soname_version_and_resolves_at_load(plugin: Path) -> None:
    dynamic = output("readelf", "-d", plugin)
    soname = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)
    assert soname in ([], ["libnccl-net-harp.so"])
    assert re.search(r"FLAGS.*\b(BIND_NOW|NOW)\b", dynamic)
    assert "TEXTREL" not in dynamic
    # Nothing may run from the stack, and the tables are read-only after relocation.
    segments = output("readelf", "-lW", plugin)
    assert re.search(r"GNU_STACK.* RW ", segments)
    assert "GNU_RELRO" in segments
