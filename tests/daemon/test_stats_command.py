# SPDX-License-Identifier: Apache-2.0
"""harpd sends the statistics of the host's instances to users that may lease, and to harpctl
stats."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest_stats import Owner, make_owner, owner
from daemon_rig import NOBODY, Running, in_child
from lease_client import LeaseClient

from harp._host import Kind
from harp.daemon import documents
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.documents import Document
from harp.daemon.messages import pack
from harp.daemon.settings import Settings
from harp.stats.view import name_of

__all__ = ["make_owner", "owner"]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes nobody")


def test_harpd_sends_the_statistics_of_instances(harpd: Running, owner: Owner) -> None:
    with harpd.client() as client:
        document = client.query("stats")
        brief = client.query("stats", flows=False)
    mine = [each for each in document["instances"] if each["pid"] == owner.process.pid]
    assert [name_of(each) for each in mine] == ["harp7/0", "harp7/1"]
    assert len(mine[0]["flows"]) == 3
    assert not any(each["flows"] for each in brief["instances"])


@ROOT_ONLY
def test_harpctl_of_user_nobody_asks_harpd(harpd: Running, owner: Owner) -> None:
    """harpd opens pages that this user may not open."""
    code = (
        "import difflib, harp.cli, harp.cli.stats, harp.daemon.client, os;"
        f"os.setgroups([]); os.setgid({NOBODY});"
        f"os.setuid({NOBODY}); from harp.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "stats", "-o", "json"],
        env=os.environ | {"HARP_SOCKET": str(harpd.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pids = {each["pid"] for each in json.loads(done.stdout)["instances"]}
    assert owner.process.pid in pids


@ROOT_ONLY
def test_users_that_may_not_lease_see_no_statistics(
    start: Callable[..., Running], settings: Settings
) -> None:
    harpd = start(given=replace(settings, users=("root",), groups=()))

    def ask() -> Any:
        with LeaseClient(harpd.path, "test", 10) as client:
            try:
                client.query("stats")
            except RefusedByDaemonError as refused:
                return refused.why
        return "answered"

    assert in_child(ask, NOBODY) == (
        f"user {NOBODY} may not have leases, nor see others' instances"
    )


def ask(*clients: LeaseClient) -> None:
    for client in clients:
        client._sock.send(pack(Kind.QUERY, 9, rest=b'{"command": "stats"}'))


def both_ask(harpd: Running, *clients: LeaseClient) -> None:
    """Two questions, of which harpd has both: for a look that lasts."""
    ask(*clients)
    harpd.until(lambda: sum(c.busy for c in harpd.daemon._server.clients) == 2, "two wait")


def test_other_requests_are_served_during_a_scan(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes; requests that arrive meanwhile get its result."""
    looked, seen = [], threading.Event()

    def look(_alive: socket.socket, _flows: bool) -> Document:
        assert seen.wait(60)
        looked.append(threading.current_thread().name[:10])
        return Document(b"{}")

    monkeypatch.setattr(documents, "read_statistics", look)
    with harpd.client() as one, harpd.client() as other:
        both_ask(harpd, one, other)
        with harpd.client() as third:
            assert third.query("status")["leases"] == 0
        seen.set()
        for client in (one, other):
            fds = socket.recv_fds(client._sock, 65536, 4)[1]
            assert os.read(fds[0], 9) == b"{}"
            os.close(fds[0])
    assert looked == ["harpd-work"]


def test_all_clients_get_one_document(harpd: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of up to 128 MiB, which a worker writes. None moves another's offset."""
    monkeypatch.setattr(documents, "AGE_S", 60)
    with harpd.client() as one, harpd.client() as other:
        ask(one, other)
        fds = [socket.recv_fds(client._sock, 65536, 4)[1][0] for client in (one, other)]
        ask(one)  # a look that is young
        fds += socket.recv_fds(one._sock, 65536, 4)[1]
    assert [os.read(fd, 10) for fd in fds] == [b'{"format":'] * 3
    inodes = {os.fstat(fd).st_ino for fd in fds}
    for fd in fds:
        os.close(fd)
    assert len(inodes) == 1
