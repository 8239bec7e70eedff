# SPDX-License-Identifier: Apache-2.0
"""harpctl with a closed, full or broken stdout, and with another program on harpd's socket."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harpctl import COMMAND, harpctl
from programs import finished

from harp import output
from harp._host import Kind
from harp.daemon.messages import pack, pack_welcome


@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [
        (">&-", 0, ""),
        (">&- <&-", 0, ""),
        (">/dev/full", 1, "harpctl: standard output: No space left on device\n"),
        (">/dev/full 2>&-", 1, ""),
    ],
)
def test_harpctl_survives_every_kind_of_stdout(shell: str, code: int, message: str) -> None:
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, "config", "show"]
    done = finished(command, timeout=60)
    assert (done.returncode, done.stderr) == (code, message)


def test_a_closed_pipe_causes_no_message() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    command, pipe = [*COMMAND, "man"], subprocess.PIPE
    done = subprocess.run(command, stdout=write_fd, stderr=pipe, check=False, timeout=60)
    os.close(write_fd)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that starts a program on harpd's socket, which answers each query with one
    document. It returns the harp.toml."""
    path = tmp_path / "harpd.sock"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen()
    threads = []

    def serve(document: str) -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as sock:
            sock.recv(65536)
            sock.send(pack_welcome(1, "harpd 9", [], ""))
            while sock.recv(65536):
                sock.send(pack(Kind.ANSWER, 2, rest=document.encode()))

    def start(document: str) -> Path:
        threads.append(threading.Thread(target=serve, args=(document,)))
        threads[-1].start()
        toml = tmp_path / "harp.toml"
        toml.write_text(f'[daemon]\nsocket = "{path}"\n')
        return toml

    yield start
    listening.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)
    listening.close()


@pytest.mark.parametrize(
    ("command", "document"),
    [
        ("status", "[]"),
        ("status", '{"pid": 1e999, "instances": 7, "nics": {}}'),
        ("instances", "{}"),
        ("stop", ""),
    ],
)
def test_an_invalid_answer_is_reported_in_one_line(
    impostor: Callable[[str], Path], command: str, document: str
) -> None:
    done = harpctl(command, "--file", str(impostor(document)))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("harpctl: harpd")


def test_job_labels_are_not_markup(
    impostor: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    label = "[/no] [red]such tag"
    instance = {
        "ifname": "eth0", "queue": 0, "ports": [1, 2], "pid": 1, "uid": 2,
        "age_s": 1.0, "label": label, "marks": [],
    }  # fmt: skip
    done = harpctl("instances", "--file", str(impostor(json.dumps({"instances": [instance]}))))
    assert (done.returncode, done.stderr) == (0, "")
    assert label in done.stdout
    output.out.print(output.table("", ["job"], [[label]]))
    assert label in capsys.readouterr().out


def test_the_c_locale_and_a_narrow_terminal() -> None:
    done = harpctl("config", "show", LC_ALL="C", PYTHONIOENCODING="ascii", COLUMNS="20", HOME="/")
    assert (done.returncode, done.stderr) == (0, "")
