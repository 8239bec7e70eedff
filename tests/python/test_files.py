# SPDX-License-Identifier: Apache-2.0
"""A FIFO, socket, directory or link loop instead of a file is one error, and no program blocks."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import finished

from harp import files
from harp.cli import manual
from harp.errors import HarpError

HANGS_S = 30  # opening a FIFO without a peer would block forever


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def make_loop(path: Path) -> None:
    path.symlink_to(path)


# How to make it, and the error when a program opens it for writing.
NON_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a FIFO": (make_fifo, "No such device or address"),
    "a socket": (make_socket, "No such device or address"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a loop of links": (make_loop, "Too many levels of symbolic links"),
}
every_non_file = pytest.mark.parametrize(("make", "error"), NON_FILES.values(), ids=NON_FILES)


@every_non_file
def test_only_regular_files_are_opened_for_writing(
    make: Callable[[Path], None], error: str, tmp_path: Path
) -> None:
    make(tmp_path / "it")
    with pytest.raises(OSError, match=error):
        files.open_output(tmp_path / "it", 0)


def test_a_fifo_with_a_reader_is_refused(tmp_path: Path) -> None:
    """The reader may stop reading at any time."""
    make_fifo(tmp_path / "it")
    reader = os.open(tmp_path / "it", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(files.NotRegularError, match="is not a regular file"):
        files.open_output(tmp_path / "it", 0)
    os.close(reader)


def test_dev_null_is_accepted() -> None:
    fd = files.open_output(Path("/dev/null"), os.O_APPEND)
    assert os.get_blocking(fd)
    os.close(fd)


@every_non_file
def test_harpd_refuses_such_a_log(make: Callable[[Path], None], error: str, tmp_path: Path) -> None:
    make(tmp_path / "log")
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[daemon]\nrun_dir = "{tmp_path}/run"\n')
    done = finished(
        [sys.executable, "-m", "harp.daemon", "--config", toml, "--log", tmp_path / "log"],
        timeout=HANGS_S,
    )
    assert done.returncode == 1
    assert done.stderr == f"harpd: {tmp_path}/log: {error}; choose another file with --log\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("make", "error"), list(NON_FILES.values())[:3], ids=list(NON_FILES)[:3])
def test_such_a_manual_page_is_an_error(
    make: Callable[[Path], None], error: str, tmp_path: Path
) -> None:
    (tmp_path / "man1").mkdir()
    make(tmp_path / "man1" / "harpctl.1")
    with pytest.raises(HarpError, match=error):
        list(manual.write_all(tmp_path))


def test_a_removed_current_directory_is_an_error(tmp_path: Path) -> None:
    """harpd is started in it, with a relative path."""
    code = (
        "import os, sys; os.rmdir(os.getcwd()); sys.argv[1:] = ['--config', 'x']; "
        "from harp.daemon.__main__ import main; main()"
    )
    (tmp_path / "gone").mkdir()
    done = finished([sys.executable, "-c", code], cwd=tmp_path / "gone", timeout=HANGS_S)
    assert done.stderr == "harpd: the current directory: No such file or directory\n"
    assert done.returncode == 1
