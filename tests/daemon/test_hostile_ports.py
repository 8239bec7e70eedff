# SPDX-License-Identifier: Apache-2.0
"""A user that binds ports of the range and requests leases without a pause delays no other user."""

import contextlib
import errno
import os
import socket
import threading

import pytest
from daemon_rig import Running, refusal

from harp._host import Kind
from harp.daemon import limits, server, sockets
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.daemon.messages import Request, pack, unpack
from harp.daemon.ports import Block
from harp.daemon.sockets import ports_in_use

CONNECTIONS = 8
LAST_OF_EACH_BLOCK = frozenset(range(61255, 65536, 256))  # 17 blocks of 256, and a rest of none


class Looking:
    """Blocks readings of the fake kernel until the test lets them end."""

    def __init__(self, harpd: Running) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: list[str] = []
        self.kernel = harpd.kernel
        harpd.kernel.ports_in_use = self.look  # type: ignore[method-assign]

    def look(self, _span: Block) -> frozenset[int]:
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self.may_end.acquire(timeout=20)
        return LAST_OF_EACH_BLOCK


def waiting(harpd: Running) -> int:
    return sum(client.busy for client in harpd.daemon._server.clients)


def test_a_port_search_reads_the_socket_tables_once(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ports and blocks are in use; no port is tried."""
    bound: list[object] = []
    monkeypatch.setattr(socket.socket, "bind", lambda _self, address: bound.append(address))
    harpd.kernel.ports = LAST_OF_EACH_BLOCK
    with harpd.client() as client:
        error = refusal(client.lease, "eth0")
        assert error.error == errno.EBUSY
        assert "no free block of 256 ports in 61000-65535" in error.why
        harpd.kernel.ports = LAST_OF_EACH_BLOCK - {61511}
        lease, fds = client.lease("eth0")
        assert (lease.port_min, lease.port_max) == (61256, 61511)
        close_all(fds)
    assert harpd.kernel.readings == 2
    assert bound == []


def test_other_requests_are_served_during_a_read_and_share_the_next(harpd: Running) -> None:
    looking = Looking(harpd)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(harpd.client()) for _ in range(CONNECTIONS)]
        clients[0]._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        assert looking.begun.acquire(timeout=20)
        for client in clients[1:]:
            client._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        harpd.until(lambda: waiting(harpd) == CONNECTIONS, "all requests")
        # The loop has read all of them, and is free.
        other = stack.enter_context(harpd.client())
        assert other.query("status")["leases"] == 0
        looking.may_end.release()
        assert looking.begun.acquire(timeout=20)
        looking.may_end.release()
        for client in clients:
            raw = client._sock.recv(65536)
            assert unpack(raw).body.error == errno.EBUSY
    assert len(looking.threads) == 2
    assert all(name.startswith("harpd-work") for name in looking.threads)


def test_a_request_that_waits_for_a_read_is_answered_when_harpd_ends(harpd: Running) -> None:
    """Also a request that arrived during the reading, for which no other one begins."""
    looking = Looking(harpd)
    with harpd.client() as one, harpd.client() as other:
        one._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        assert looking.begun.acquire(timeout=20)
        other._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        harpd.until(lambda: waiting(harpd) == 2, "both requests")
        harpd.daemon.loop.call_soon_threadsafe(lambda: harpd.daemon._end(remove=True))
        looking.may_end.release(2)  # the second one if it began before the end
        harpd.join()
        for client in (one, other):
            raw = client._sock.recv(65536)
            assert unpack(raw).body.error == errno.ESHUTDOWN


def test_a_refused_request_costs_its_sender(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection's tokens and its user's: the next request of either waits for them."""
    served = harpd.daemon._server
    now_s = harpd.daemon.loop.time()
    with harpd.client() as client:
        (connection,) = served.clients
        user = served.buckets._of(os.geteuid(), now_s)
        monkeypatch.setattr(limits.Bucket, "_refill", lambda _self, _now_s: None)
        connection._bucket.tokens, user.tokens = 50, 60
        client.query("status")
        assert (connection._bucket.tokens, user.tokens) == (49, 59)
        with pytest.raises(RefusedByDaemonError):
            client.lease("eth7")
        spent = 1 + server.REFUSED_TOKENS
        assert (connection._bucket.tokens, user.tokens) == (49 - spent, 59 - spent)


# --------------------------------------------------------------------------------------------------
# The kernel's tables.
#
@pytest.fixture
def port() -> int:
    """An unused port."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        number: int = sock.getsockname()[1]
    return number


FAMILIES = {"v4": socket.AF_INET, "v6": socket.AF_INET6}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["listening", "connected", "udp", "udp-connected"])
def test_a_socket_s_port_is_seen(port: int, family: str, kind: str) -> None:
    number, here = FAMILIES[family], {"v4": "127.0.0.1", "v6": "::1"}[family]
    assert ports_in_use(Block(port, port)) == frozenset()
    transport = socket.SOCK_DGRAM if kind.startswith("udp") else socket.SOCK_STREAM
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(number, transport))
        if kind == "connected":
            server = stack.enter_context(socket.create_server((here, 0), family=number))
            sock.bind((here, port))
            sock.connect(server.getsockname())
        else:
            sock.bind((here, port))
        if kind == "listening":
            sock.listen()
        if kind == "udp-connected":
            sock.connect((here, 9))
        assert ports_in_use(Block(port, port)) == {port}
        assert port in ports_in_use(Block(1, 65535))
        if port > 1:
            assert port not in ports_in_use(Block(1, port - 1))


def test_a_port_that_is_only_bound_is_seen(port: int) -> None:
    release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
    if release < (6, 8):
        pytest.skip("Linux 6.8 is the first that lists TCP sockets which are only bound")
    for family in FAMILIES.values():
        with socket.socket(family) as sock:
            sock.bind(("", port))
            assert ports_in_use(Block(port, port)) == {port}


def test_a_crowd_of_sockets_is_an_error_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SOCKETS_MAX", 10)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="more than 10 sockets have ports of 1-65535") as caught:
            ports_in_use(Block(1, 65535))
    assert caught.value.errno == errno.EBUSY
