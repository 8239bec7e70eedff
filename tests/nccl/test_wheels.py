# SPDX-License-Identifier: Apache-2.0
"""Libraries and wheels that the emulation cannot use: a one-line error, and an empty cache."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli_config import harpctl

from harp.errors import HarpError
from harp.nccl import layout, wheels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return wheels.cache_dir()


def compile_library(tmp_path: Path, *options: str) -> Path:
    """Compile a library that is not NCCL."""
    source, library = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text("int a(void) { return 1; }\n")
    subprocess.run(["gcc", "-g", "-shared", *options, "-o", library, source], check=True)
    return library


def offer_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """Make pip find only a wheel of NCCL 2.0.1 that contains this library."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "nvidia_nccl_cu12-2.0.1.dist-info"
    with zipfile.ZipFile(folder / "nvidia_nccl_cu12-2.0.1-py3-none-any.whl", "w") as archive:
        archive.write(library, f"nvidia/nccl/lib/{wheels.LIBRARY}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.0.1\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def change_machine(library: Path) -> Path:
    """Change the library's machine to AArch64."""
    image = bytearray(library.read_bytes())
    image[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    library.write_bytes(image)
    return library


Make = Callable[[Path], Path]
BAD_LIBRARIES = [
    pytest.param(
        lambda folder: compile_library(folder, "-s"), "take NVIDIA's own wheel", id="stripped"
    ),
    pytest.param(
        lambda folder: change_machine(compile_library(folder)),
        "only x86-64 is emulated; take NVIDIA's wheel for x86-64",
        id="aarch64",
    ),
    pytest.param(compile_library, "does not describe NCCL's structs", id="other"),
]


@pytest.mark.parametrize(("make", "text"), BAD_LIBRARIES)
def test_a_bad_wheel_fails_in_one_line_and_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, make: Make, text: str
) -> None:
    offer_wheel(tmp_path, monkeypatch, make(tmp_path))
    result = harpctl("bench", "nccl-real", "--nccl", "2.0.1", "--download")
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1
    assert text in result.stderr
    assert result.stdout == ""
    assert list(cache.iterdir()) == []


def test_no_network_fails_in_one_line(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    # Nothing listens at this proxy. Without retries, pip fails at once.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.invalid/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    result = harpctl("bench", "nccl-real", "--nccl", "2.0.1", "--download")
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1
    assert "nvidia-nccl-cu12==2.0.1 could not be downloaded" in result.stderr
    assert "is there a network?" in result.stderr
    assert list(cache.iterdir()) == []


def test_a_file_that_is_not_a_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HarpError, match="not an ELF file"):
        layout.read(tmp_path / "text")


def test_no_pyelftools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(HarpError, match="pip install pyelftools"):
        layout.read(compile_library(tmp_path))


def test_a_wheel_without_the_library(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia_nccl_cu12-2.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(HarpError, match="no nvidia/nccl/lib/libnccl"):
        wheels._extract(wheel, tmp_path)


@pytest.mark.parametrize("version", ["", "newest", "../2.1.1", "2.1.1; x"])
def test_an_invalid_version_is_rejected(version: str) -> None:
    with pytest.raises(HarpError, match="is not a version of NCCL"):
        wheels.fetch(version)


def test_a_version_that_is_not_in_the_cache() -> None:
    with pytest.raises(HarpError, match=r"--nccl 2\.0\.1 --download"):
        wheels.library("2.0.1")
