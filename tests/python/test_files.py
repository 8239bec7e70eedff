# SPDX-License-Identifier: Apache-2.0
"""If a named file is something else, there is one clear error, and no program blocks."""

import fcntl
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harp import files
from harp.cli import manual
from harp.daemon import __main__ as harpd
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
    done = subprocess.run(
        [sys.executable, "-m", "harp.daemon", "--config", toml, "--log", tmp_path / "log"],
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"harpd: {tmp_path}/log: {said}; choose another file with --log\n"
    assert not (tmp_path / "run").exists()


def test_a_log_that_cannot_be_rotated_is_truncated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else no line would be written any more."""
    monkeypatch.setattr(harpd, "LOG_BYTES_MAX", 1000)
    (tmp_path / "log.1" / "x").mkdir(parents=True)
    handler = harpd._BoundedFile(tmp_path / "log")
    for number in range(100):
        handler.emit(logging.LogRecord("", 0, "", 0, f"line {number:030}", (), None))
        text = (tmp_path / "log").read_text()
        assert text.endswith(f"{number:030}\n")
        assert len(text) <= 1000
    handler.close()


@pytest.mark.parametrize(("make", "said"), list(INSTEAD.values())[:3], ids=list(INSTEAD)[:3])
def test_pages(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    (tmp_path / "man1").mkdir()
    make(tmp_path / "man1" / "harpctl.1")
    with pytest.raises(HarpError, match=said):
        list(manual.write_all(tmp_path))


@pytest.mark.parametrize(
    ("room", "line", "begun"), [(0, 1, ""), (4096, 10000, "harpd: ERROR: xxx")]
)
def test_an_unread_log_blocks_nothing(room: int, line: int, begun: str) -> None:
    """stderr is a full pipe, or one with less room than a line (a traceback) takes: what is said
    meanwhile is counted, and harpd goes on."""
    reading, writing = os.pipe()
    full = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) - room
    os.write(writing, b"x" * full)
    code = (
        "import logging, sys; from harp.daemon import __main__ as harpd; harpd._log_to(None)\n"
        "log = logging.getLogger('harpd')\n"
        "for _ in range(100): log.error('x' * int(sys.argv[1]))\n"
        "print('went on', flush=True); input(); log.error('again %d', 7)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(line)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True,
    ) as process:  # fmt: skip
        os.close(writing)
        assert process.stdout is not None
        goes_on = select.select([process.stdout], [], [], HANGS_S)[0]
        if not goes_on:
            process.kill()
        os.set_blocking(reading, False)
        before = os.read(reading, 1 << 20)[full:].decode()
        process.communicate("\n", HANGS_S)
        said = os.read(reading, 1 << 20).decode()
    os.close(reading)
    assert goes_on
    assert before.startswith(begun)
    assert bool(begun) == said.startswith("\n")
    assert said.lstrip("\n") == (
        "harpd: ERROR: again 7 (100 earlier lines were dropped: the output was not read)\n"
    )


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    """harpd was started in it, with a path that is relative to it."""
    code = (
        "import os, sys; os.rmdir(os.getcwd()); sys.argv[1:] = ['--config', 'x']; "
        "from harp.daemon.__main__ import main; main()"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "gone", capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.stderr == "harpd: the current directory: No such file or directory\n"
    assert done.returncode == 1
