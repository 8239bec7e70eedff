# SPDX-License-Identifier: Apache-2.0
"""The plugin's dynamic symbols: seven exports, and libc as the only dependency."""

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def plugin(build_dir: Path) -> Path:
    path = build_dir / "plugin" / "libnccl-net-harp.so"
    assert path.is_file(), f"{path} is not there: run `make build`"
    return path


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_exports_the_seven_tables_only(plugin: Path) -> None:
    lines = output("nm", "-D", "--defined-only", plugin).splitlines()
    assert {line.split()[-1] for line in lines} == {f"ncclNetPlugin_v{n}" for n in range(6, 13)}
    # Data symbols of struct type, as dlsym's callers expect.
    assert all(line.split()[-2] in "DRBV" for line in lines)


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
