# SPDX-License-Identifier: Apache-2.0
"""Whatever stands where a file is named: one clear error, and nobody waits."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harp import failover, files, manual
from harp.daemon import __main__ as harpd
from harp.errors import HarpError

HANGS_S = 30  # whoever waits for the other end of a FIFO waits for ever


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


def test_a_log_that_can_not_be_turned_begins_anew(
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


@IN_THE_WAY
def test_pages_and_timelines(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    (tmp_path / "man1").mkdir()
    make(tmp_path / "man1" / "harpctl.1")
    with pytest.raises(OSError, match=said):
        list(manual.write_all(tmp_path))
    make(tmp_path / "timelines.csv")
    for given in ((tmp_path / "timelines.csv", None), (None, tmp_path / "timelines.csv")):
        with pytest.raises(HarpError, match=said):
            failover.check_output(*given)
    failover.check_output(tmp_path / "new.csv", None)
