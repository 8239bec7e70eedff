# SPDX-License-Identifier: Apache-2.0
"""harpd's answers: the missing, late and long ones."""

import functools
import json
import os
import resource
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest_stats import make_owner, owner
from daemon_rig import Running, count_descriptors

from harp._host import Kind
from harp.cli import cli
from harp.daemon.client import DaemonClient
from harp.daemon.limits import connections_possible
from harp.daemon.messages import REST_MAX, pack, pack_welcome
from harp.errors import Exit, HarpError

__all__ = ["make_owner", "owner"]
STATUS = b'{"command": "status"}'


@pytest.mark.parametrize("command", ["status", "start", "stop", "restart"])
def test_a_harpd_that_does_not_answer_is_reported(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """harpctl must not treat it as ended: start and stop would take over its files."""
    short_timeout = functools.partial(DaemonClient, timeout_s=0.05)
    monkeypatch.setattr("harp.cli.daemon.DaemonClient", short_timeout)
    path = tmp_path / "s"
    file = tmp_path / "harp.toml"
    file.write_text(f'[daemon]\nsocket = "{path}"\nrun_dir = "{tmp_path}"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen()
        done = CliRunner().invoke(cli, [command, "--file", str(file)])
    assert isinstance(done.exception, HarpError)
    assert done.exception.code == Exit.NOT_RUNNING
    line = f"harpd at {path} (process {os.getpid()}) does not answer; `kill -9 {os.getpid()}` ends"
    assert line in str(done.exception)


def test_an_answer_to_an_earlier_request_is_skipped() -> None:
    """The earlier request timed out. The descriptor of its answer is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(pack_welcome(1, "harpd", [], ""))
        with DaemonClient(Path("here"), sock=ours) as client:
            before = count_descriptors()
            for serial in (client.next_serial(), 3):
                document = json.dumps({"serial": serial}).encode()
                socket.send_fds(theirs, [pack(Kind.ANSWER, serial, rest=document)], [0])
            assert client.query("status") == {"serial": 3}
            assert count_descriptors() == before


def test_connections_leave_descriptors_for_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (512, 512))
    assert connections_possible(1024) * 3 <= 512 - 48


@pytest.mark.parametrize("more_bytes", [-1, 0, 1, 3 * REST_MAX])
def test_a_long_answer_takes_several_messages(
    harpd: Running, monkeypatch: pytest.MonkeyPatch, more_bytes: int
) -> None:
    document = {"text": "x" * (REST_MAX + more_bytes - len('{"text": ""}'))}
    monkeypatch.setattr(harpd.daemon, "status", lambda: document)
    with harpd.client() as client:
        assert client.query("status") == document
        assert client.query("instances") == {"instances": []}, "the next answer follows"
