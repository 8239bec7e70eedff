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
LAST_OF_EACH_BLOCK = frozenset(range(61255, 65536, 256))  # all 17 blocks of 256 ports


class BlockedReads:
    """Blocks each read of the fake kernel's ports until the test releases may_end."""

    def __init__(self, harpd: Running) -> None:
        self.started, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.threads: list[str] = []
        self.kernel = harpd.kernel
        harpd.kernel.ports_in_use = self.read  # type: ignore[method-assign]

    def read(self, _span: Block) -> frozenset[int]:
        self.threads.append(threading.current_thread().name)
        self.started.release()
        assert self.may_end.acquire(timeout=20)
        return LAST_OF_EACH_BLOCK


def count_waiting(harpd: Running) -> int:
    return sum(client.busy for client in harpd.daemon._server.clients)


def test_a_port_search_reads_the_socket_tables_once(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used ports and blocks cause no further read, and no port is bound."""
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
    assert harpd.kernel.port_reads == 2
    assert bound == []


def test_other_requests_are_served_during_a_read_and_share_the_next(harpd: Running) -> None:
    reads = BlockedReads(harpd)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(harpd.client()) for _ in range(CONNECTIONS)]
        clients[0]._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        assert reads.started.acquire(timeout=20)
        for client in clients[1:]:
            client._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        harpd.until(lambda: count_waiting(harpd) == CONNECTIONS, "all requests")
        # The event loop has read all of them and is idle.
        other = stack.enter_context(harpd.client())
        assert other.query("status")["leases"] == 0
        reads.may_end.release()
        assert reads.started.acquire(timeout=20)
        reads.may_end.release()
        for client in clients:
            raw = client._sock.recv(65536)
            assert unpack(raw).body.error == errno.EBUSY
    assert len(reads.threads) == 2
    assert all(name.startswith("harpd-work") for name in reads.threads)


def test_a_request_that_waits_for_a_read_is_answered_when_harpd_ends(harpd: Running) -> None:
    """So is a request that arrived during the read, although no other read starts."""
    reads = BlockedReads(harpd)
    with harpd.client() as one, harpd.client() as other:
        one._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        assert reads.started.acquire(timeout=20)
        other._sock.send(pack(Kind.LEASE, 2, Request("eth0")))
        harpd.until(lambda: count_waiting(harpd) == 2, "both requests")
        harpd.daemon.loop.call_soon_threadsafe(lambda: harpd.daemon._end(remove=True))
        reads.may_end.release(2)  # also the second read, if it started before the end
        harpd.join()
        for client in (one, other):
            raw = client._sock.recv(65536)
            assert unpack(raw).body.error == errno.ESHUTDOWN


def test_a_refused_request_costs_its_sender(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes tokens of the connection and of the user, so that their next requests wait."""
    listening = harpd.daemon._server
    now_s = harpd.daemon.loop.time()
    with harpd.client() as client:
        (connection,) = listening.clients
        user = listening.buckets._of(os.geteuid(), now_s)
        monkeypatch.setattr(limits.Bucket, "_refill", lambda _self, _now_s: None)
        connection._bucket.tokens, user.tokens = 50, 60
        client.query("status")
        assert (connection._bucket.tokens, user.tokens) == (49, 59)
        with pytest.raises(RefusedByDaemonError):
            client.lease("eth7")
        cost = 1 + server.REFUSED_TOKENS
        assert (connection._bucket.tokens, user.tokens) == (49 - cost, 59 - cost)


# --------------------------------------------------------------------------------------------------
# The kernel's socket tables.
#
@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        number: int = sock.getsockname()[1]
    return number


FAMILIES = {"v4": socket.AF_INET, "v6": socket.AF_INET6}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["listening", "connected", "udp", "udp-connected"])
def test_the_port_of_a_socket_is_found(port: int, family: str, kind: str) -> None:
    family_number, address = FAMILIES[family], {"v4": "127.0.0.1", "v6": "::1"}[family]
    assert ports_in_use(Block(port, port)) == frozenset()
    transport = socket.SOCK_DGRAM if kind.startswith("udp") else socket.SOCK_STREAM
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(family_number, transport))
        if kind == "connected":
            server = stack.enter_context(socket.create_server((address, 0), family=family_number))
            sock.bind((address, port))
            sock.connect(server.getsockname())
        else:
            sock.bind((address, port))
        if kind == "listening":
            sock.listen()
        if kind == "udp-connected":
            sock.connect((address, 9))
        assert ports_in_use(Block(port, port)) == {port}
        assert port in ports_in_use(Block(1, 65535))
        if port > 1:
            assert port not in ports_in_use(Block(1, port - 1))


def test_a_bound_tcp_port_is_found(port: int) -> None:
    release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
    if release < (6, 8):
        pytest.skip("needs Linux 6.8, which lists TCP sockets that are only bound")
    for family in FAMILIES.values():
        with socket.socket(family) as sock:
            sock.bind(("", port))
            assert ports_in_use(Block(port, port)) == {port}


def test_too_many_sockets_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SOCKETS_MAX", 10)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="more than 10 sockets have ports of 1-65535") as caught:
            ports_in_use(Block(1, 65535))
    assert caught.value.errno == errno.EBUSY
