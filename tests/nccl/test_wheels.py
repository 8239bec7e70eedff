# SPDX-License-Identifier: Apache-2.0
"""What is no good for the emulated GPU, and one clear line for each."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harp import _paths
from harp.errors import HarpError
from harp.nccl import layout, wheels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return wheels.cache_dir()


def compiled(tmp_path: Path, *options: str) -> Path:
    """A library with symbols of its own, which is not NCCL."""
    source, library = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text("int a(void) { return 1; }\n")
    subprocess.run(["gcc", "-g", "-shared", *options, "-o", library, source], check=True)
    return library


def test_a_stripped_library(tmp_path: Path) -> None:
    with pytest.raises(HarpError, match="were stripped; take NVIDIA's own wheel"):
        layout.read(compiled(tmp_path, "-s"))


def test_a_library_that_is_not_nccl(tmp_path: Path) -> None:
    with pytest.raises(HarpError, match="does not describe NCCL's structs"):
        layout.read(compiled(tmp_path))


def test_a_library_for_another_machine(tmp_path: Path) -> None:
    library = compiled(tmp_path)
    image = bytearray(library.read_bytes())
    image[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    library.write_bytes(image)
    with pytest.raises(HarpError, match=r"for AArch64, on .*only x86-64"):
        layout.read(library)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HarpError, match="not an ELF file"):
        layout.read(tmp_path / "text")


def test_no_pyelftools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(HarpError, match="pip install pyelftools"):
        layout.read(compiled(tmp_path))


def test_no_network(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HarpError, match=r"could not be downloaded: .*is there a network"):
        wheels.fetch("2.0.1")
    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_library(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia_nccl_cu12-2.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(HarpError, match="no nvidia/nccl/lib/libnccl"):
        wheels._extract(wheel, tmp_path)


@pytest.mark.parametrize("version", ["", "newest", "../2.1.1", "2.1.1; x"])
def test_what_is_no_version(version: str) -> None:
    with pytest.raises(HarpError, match="is no version of NCCL"):
        wheels.fetch(version)


def test_a_version_that_is_not_in_the_cache() -> None:
    with pytest.raises(HarpError, match=r"--nccl 2\.0\.1 --download"):
        wheels.library("2.0.1")


def test_a_stripped_library_is_refused_by_the_rank_too(tmp_path: Path) -> None:
    layout_file = tmp_path / "layout"
    layout_file.write_text("")
    done = subprocess.run(
        [_paths.find("harp-nccl-rank"), compiled(tmp_path, "-s"), layout_file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "it was stripped; take NVIDIA's own wheel" in done.stderr
