# SPDX-License-Identifier: Apache-2.0
"""A user that exceeds its share: queues held by children of dead jobs, quarantined ports, and
unread answers."""

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from daemon_rig import NOBODY, Running, in_child
from fake_kernel import FakeKernel
from lease_client import LeaseClient

from harp.daemon import leasing
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.server import ROOT_RESERVE
from harp.daemon.settings import Settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays two users")


class Released(FakeKernel):
    """A kernel that releases queues at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = type("Never", (set,), {"__contains__": lambda *_: False})()


def lease_and_die(harpd: Running, again: int = 1) -> list[int]:
    """Lease as user nobody until the process ends; return the errors of refused requests."""
    path = harpd.path

    def enemy() -> list[int]:
        errors = []
        with LeaseClient(path, "enemy") as client:
            for _ in range(again):
                try:
                    lease, fds = client.lease("eth0")
                    client.release(lease.lease_id)
                    for fd in fds:
                        os.close(fd)
                except RefusedByDaemonError as error:
                    errors.append(error.error)
        return errors

    errors: list[int] = in_child(enemy, NOBODY)
    return errors


def test_queues_that_children_hold_count(
    start: Callable[..., Running], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(leasing.WAITS_S, errno.EDQUOT, 0.15)
    # The fake kernel never releases a queue: another process holds the socket.
    harpd = start(given=replace(settings, leases_per_uid=2))
    assert lease_and_die(harpd, 5) == [errno.EDQUOT] * 3
    assert len(harpd.kernel.held) == 2
    with harpd.client() as client:
        assert client.query("status")["nics"][0]["queues_free"] == 2
        client.lease("eth0")  # another user's


def test_a_queue_returned_just_now_does_not_count(
    start: Callable[..., Running], settings: Settings
) -> None:
    harpd = start(Released(), given=replace(settings, leases_per_uid=1))
    assert lease_and_die(harpd, 5) == []


def test_quarantined_ports_are_shared_between_users(
    start: Callable[..., Running], settings: Settings
) -> None:
    harpd = start(Released(), given=replace(settings, leases_per_uid=4))
    errors = lease_and_die(harpd, 40)
    assert set(errors) == {errno.EBUSY}
    with harpd.client() as client:  # another user still gets a block for each queue
        ports = [client.lease("eth0", queue=queue)[0].port_min for queue in range(4)]
    assert len(set(ports)) == 4


@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_client_without_hello_is_dropped_first(harpd: Running, uid: int) -> None:
    """More silent connections than a user, or root, may have: a client that sends HELLO is
    served, of either user."""
    path, places = harpd.path, harpd.daemon._server
    count = places.total_max + ROOT_RESERVE if uid == 0 else places.per_uid_max

    def enemy() -> list[bool]:
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count + 20)]
        served = []
        for sock in held:
            sock.connect(str(path))
        for each in {uid, NOBODY}:
            os.seteuid(each)
            with LeaseClient(path, "one that speaks") as client:
                served.append(client.query("status")["connections"] >= places.per_uid_max)
        return served

    assert in_child(enemy, uid) == [True] * (1 if uid else 2)


def test_a_large_welcome_still_fits(start: Callable[..., Running], settings: Settings) -> None:
    harpd = start(given=replace(settings, job="HARP_X=" + "x" * 50_000 + "\n"))
    with harpd.client() as client:
        assert len(client.settings) > 50_000
        client.query("status")
