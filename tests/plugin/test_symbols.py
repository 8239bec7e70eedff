# SPDX-License-Identifier: Apache-2.0
"""The shared object: it exports only NCCL's tables, needs only libc, and is bound at load."""

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
    assert path.is_file(), f"{path} does not exist: run `make build`"
    return path


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("library", "tables"),
    [
        ("libnccl-net-harp.so", NET_TABLES | TUNER_TABLES),
        ("libnccl-profiler-harp.so", {f"ncclProfiler_v{n}" for n in range(3, 8)}),
    ],
)
def test_a_library_exports_only_its_tables_and_needs_only_libc(
    plugin: Path, library: str, tables: set[str]
) -> None:
    path = plugin.with_name(library)
    lines = run("nm", "-D", "--defined-only", path).splitlines()
    assert {line.split()[-1] for line in lines} == tables
    # NCCL expects data symbols.
    assert all(line.split()[-2] in "DRBV" for line in lines)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", path))
    # Thread-local storage needs ld-linux; libpthread is part of libc since glibc 2.34.
    allowed = ("libc.so", "ld-linux", "libpthread.so")
    assert needed
    assert [name for name in needed if not name.startswith(allowed)] == []


def test_rccl_loads_the_plugin_by_the_name_it_expects(plugin: Path, build_dir: Path) -> None:
    """AMD's RCCL opens librccl-net-NAME.so and uses the same tables."""
    rccl = plugin.with_name("librccl-net-harp.so")
    load = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL('librccl-net-harp.so')\n"
        "for name in sys.argv[1:]:\n"
        "    print(ctypes.c_char_p.in_dll(lib, name).value.decode())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", load, *sorted(NET_TABLES | TUNER_TABLES)],
        env=os.environ | {"LD_LIBRARY_PATH": str(plugin.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["HARP"] * 12
    conform = build_dir / "tests" / "plugin" / "conform"
    for version in ("6", "12"):
        run(conform, rccl, version, "fifo", "lifecycle")


def test_the_plugin_has_no_soname_version_and_resolves_at_load(plugin: Path) -> None:
    dynamic = run("readelf", "-d", plugin)
    soname = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)
    assert soname in ([], ["libnccl-net-harp.so"])
    assert re.search(r"FLAGS.*\b(BIND_NOW|NOW)\b", dynamic)
    assert "TEXTREL" not in dynamic
    # The stack is not executable, and the tables are read-only after relocation.
    segments = run("readelf", "-lW", plugin)
    assert re.search(r"GNU_STACK.* RW ", segments)
    assert "GNU_RELRO" in segments
