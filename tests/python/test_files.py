# SPDX-License-Identifier: Apache-2.0
"""If a named file is something else, there is one clear error, and no program blocks."""

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

HANGS_S = 30  # a program that waits for the other end of a FIFO never ends


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def loop(path: Path) -> None:
    path.symlink_to(path)


# What makes it, and what is said of it when it is to be written.
INSTEAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a FIFO": (fifo, "No such device or address"),
    "a socket": (a_socket, "No such device or address"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a loop of links": (loop, "Too many levels of symbolic links"),
}
IN_THE_WAY = pytest.mark.parametrize(("make", "said"), INSTEAD.values(), ids=INSTEAD)


@IN_THE_WAY
def test_what_is_no_file_is_not_written_to(
    make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "it")
    with pytest.raises(OSError, match=said):
        files.open_output(tmp_path / "it", 0)


def test_a_fifo_with_a_reader_is_none_either(tmp_path: Path) -> None:
    """He may stop reading at any time."""
    fifo(tmp_path / "it")
    reader = os.open(tmp_path / "it", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(files.NotRegularError, match="is no regular file"):
        files.open_output(tmp_path / "it", 0)
    os.close(reader)


def test_what_takes_everything_is_good() -> None:
    fd = files.open_output(Path("/dev/null"), os.O_APPEND)
    assert os.get_blocking(fd)
    os.close(fd)


@IN_THE_WAY
def test_harpd_has_no_log_there(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path / "log")
    toml = tmp_path / "harp.toml"
    toml.write_text(f'[daemon]\nrun_dir = "{tmp_path}/run"\n')
    done = finished(
        [sys.executable, "-m", "harp.daemon", "--config", toml, "--log", tmp_path / "log"],
        timeout=HANGS_S,
    )
    assert done.returncode == 1
    assert done.stderr == f"harpd: {tmp_path}/log: {said}; choose another file with --log\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("make", "said"), list(INSTEAD.values())[:3], ids=list(INSTEAD)[:3])
def test_pages(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    (tmp_path / "man1").mkdir()
    make(tmp_path / "man1" / "harpctl.1")
    with pytest.raises(HarpError, match=said):
        list(manual.write_all(tmp_path))


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    """harpd was started in it, with a path that is relative to it."""
    code = (
        "import os, sys; os.rmdir(os.getcwd()); sys.argv[1:] = ['--config', 'x']; "
        "from harp.daemon.__main__ import main; main()"
    )
    (tmp_path / "gone").mkdir()
    done = finished([sys.executable, "-c", code], cwd=tmp_path / "gone", timeout=HANGS_S)
    assert done.stderr == "harpd: the current directory: No such file or directory\n"
    assert done.returncode == 1
