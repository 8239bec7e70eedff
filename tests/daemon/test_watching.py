# SPDX-License-Identifier: Apache-2.0
"""The network state that harpd sends to jobs in other network namespaces, and the limits of such
requests."""

import contextlib
import errno
import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_rig import NOBODY, Running, greet, in_child
from fake_kernel import NETWORK_BYTES, ROUTED_BYTES, V4, FakeMonitor

from harp import _host
from harp._host import CONFIRMED, KNOWN, WANTED, Kind
from harp.closing import Closing
from harp.daemon import peer, watching
from harp.daemon.loop import close_all
from harp.daemon.messages import (
    LeaseId,
    Message,
    Neighbor,
    RouteQuery,
    pack,
    pack_neighbors,
    unpack,
)
from harp.daemon.netlink import Changes, parse_neighbor

MAC, OTHER = b"\2\0\0\0\0\x21", b"\2\0\0\0\0\x22"


def addr(number: int) -> bytes:
    return V4 + (0x0A000000 + number).to_bytes(4, "big")


class Watcher(Closing):
    def __init__(self, path: Path) -> None:
        self._sock = greet(path)

    def send(self, payload: bytes) -> None:
        self._sock.send(payload)

    def next(self) -> Message:
        return unpack(self._sock.recv(65536))

    def ask(self, payload: bytes) -> Message:
        self.send(payload)
        return self.next()

    def is_silent(self) -> bool:
        """Tell whether no message is pending; after an answer, none came before it."""
        return not select.select([self._sock], [], [], 0)[0]

    def is_closed(self) -> bool:
        return self._sock.recv(65536) == b""

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def lease(harpd: Running) -> Iterator[int]:
    with harpd.client() as client:
        leased, fds = client.lease("eth0")
        close_all(fds)
        yield leased.lease_id


@pytest.fixture
def watcher(harpd: Running, lease: int) -> Iterator[Watcher]:
    """A watch of the lease, which harpd has confirmed."""
    with Watcher(harpd.path) as client:
        answer = client.ask(pack(Kind.WATCH, 2, LeaseId(lease)))
        assert (answer.kind, answer.serial) == (Kind.NETWORK, 2)
        assert answer.rest == b"a" * NETWORK_BYTES
        yield client


def monitor(harpd: Running) -> FakeMonitor:
    return harpd.kernel.monitors[-1]


def pack_wanted(*addresses: bytes, flags: int = WANTED) -> bytes:
    return pack_neighbors(3, [Neighbor(address, b"", flags) for address in addresses])


def send_wanted(watcher: Watcher, *addresses: bytes, flags: int = WANTED) -> None:
    answer = watcher.ask(pack_wanted(*addresses, flags=flags))
    assert answer.kind is Kind.DONE


def test_each_network_change_is_sent_once(harpd: Running, watcher: Watcher) -> None:
    for changes in (Changes(interfaces={2}), Changes(routes=True), Changes(lost=True)):
        before = harpd.kernel.network_byte
        harpd.kernel.network_byte = bytes([before[0] + 1])
        monitor(harpd).announce(changes)
        received = watcher.next()
        assert (received.kind, received.serial) == (Kind.NETWORK, 0)
        assert received.rest[:1] == harpd.kernel.network_byte
    reads = len(harpd.kernel.reads)
    monitor(harpd).announce(Changes(interfaces={7}))
    monitor(harpd).announce(Changes(routes=True))
    harpd.until(lambda: len(harpd.kernel.reads) > reads, "another read of the routes")
    send_wanted(watcher)
    assert watcher.is_silent(), "nothing has changed"


def test_many_changes_cause_few_reads(harpd: Running, watcher: Watcher) -> None:
    """Containers can change the network this fast."""
    reads = len(harpd.kernel.reads)
    for _ in range(200):
        monitor(harpd).announce(Changes(routes=True))
        harpd.call(lambda: None)
    harpd.kernel.network_byte = b"z"
    monitor(harpd).announce(Changes(routes=True))
    assert watcher.next().rest[:1] == b"z"
    assert len(harpd.kernel.reads) - reads < 100


def test_a_network_that_changes_too_fast_is_read_again(harpd: Running, lease: int) -> None:
    harpd.kernel.network_error = OSError(errno.EINTR, "fake: interrupted")
    with Watcher(harpd.path) as watcher:
        watcher.send(pack(Kind.WATCH, 2, LeaseId(lease)))
        harpd.until(lambda: len(harpd.kernel.reads) > 1, "a second attempt")
        harpd.kernel.network_error = None
        assert watcher.next().kind is Kind.NETWORK


def test_a_wanted_neighbor_is_resolved_and_sent(harpd: Running, watcher: Watcher) -> None:
    send_wanted(watcher, addr(1))
    harpd.until(lambda: monitor(harpd).resolved == [(2, addr(1))], "a request to the kernel")
    monitor(harpd).announce(
        Changes(neighbors=[(2, addr(2), MAC), (3, addr(1), MAC), (2, addr(1), MAC)])
    )
    assert watcher.next().records == [Neighbor(addr(1), MAC, KNOWN)]
    monitor(harpd).announce(Changes(neighbors=[(2, addr(1), MAC)]))
    monitor(harpd).announce(Changes(neighbors=[(2, addr(1), OTHER)]))
    assert watcher.next().records == [Neighbor(addr(1), OTHER, KNOWN)]
    monitor(harpd).announce(Changes(neighbors=[(2, addr(1), b"")]))
    assert watcher.next().records == [Neighbor(addr(1), bytes(6), 0)]
    send_wanted(watcher, addr(1))
    harpd.until(lambda: len(monitor(harpd).resolved) == 2, "a second request to the kernel")
    monitor(harpd).announce(Changes(neighbors=[(2, addr(1), b"")]))
    assert watcher.next().records == [Neighbor(addr(1), bytes(6), 0)], (
        "sent again after another request"
    )


def test_only_known_neighbors_are_confirmed(harpd: Running, watcher: Watcher) -> None:
    send_wanted(watcher, addr(1), flags=CONFIRMED)
    send_wanted(watcher, addr(1))
    send_wanted(watcher, addr(1), flags=CONFIRMED)
    assert monitor(harpd).confirmed == []
    monitor(harpd).announce(Changes(neighbors=[(2, addr(1), MAC)]))
    assert watcher.next().kind is Kind.NEIGHBORS
    send_wanted(watcher, addr(1), addr(2), flags=CONFIRMED)
    assert monitor(harpd).confirmed == [(2, addr(1))]


@pytest.mark.parametrize(
    "text", ["224.0.0.1", "127.0.0.1", "0.0.0.0", "255.255.255.255", "ff02::1", "::1", "::"]
)
def test_an_address_that_cannot_be_a_neighbor_is_not_resolved(
    harpd: Running, watcher: Watcher, text: str
) -> None:
    v6 = ":" in text
    raw = socket.inet_pton(socket.AF_INET6, text) if v6 else V4 + socket.inet_aton(text)
    send_wanted(watcher, raw, addr(1))
    harpd.until(lambda: monitor(harpd).resolved != [], "a request to the kernel")
    assert monitor(harpd).resolved == [(2, addr(1))]


def test_a_lease_has_a_bounded_number_of_neighbors(
    harpd: Running, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's rate of new ones is limited, too: they use entries of the host's table."""
    monkeypatch.setattr(watching, "NEIGHBORS_PER_S", 0.001)
    limit = _host.NEIGHBORS_LEASE_MAX
    for first in range(0, 640, 64):
        send_wanted(watcher, *map(addr, range(first + 1, first + 65)))
    watches = harpd.daemon._watching
    (watch,) = watches._watches.values()
    assert harpd.call(lambda: len(watch.neighbors)) == limit
    assert harpd.call(lambda: len(watches._of_neighbor)) == limit
    harpd.until(
        lambda: not watches._resolving and not watches._resolve, "all requests to the kernel"
    )
    # The bucket's burst, and the tokens that it got during the test.
    assert len(set(monitor(harpd).resolved)) < watching.NEIGHBORS_BURST + 60


def test_changes_for_a_client_that_reads_nothing_are_merged(
    harpd: Running, watcher: Watcher
) -> None:
    """harpd keeps only the last change of each neighbor for it, and serves other clients."""
    addresses = list(map(addr, range(1, 65)))
    send_wanted(watcher, *addresses)
    for number in range(200):
        mac = number.to_bytes(6, "big")
        monitor(harpd).announce(Changes(neighbors=[(2, address, mac) for address in addresses]))
        harpd.call(lambda: None)
    (client,) = (client for client in harpd.daemon._server.clients if client.next_notification)
    assert harpd.call(lambda: client._notifying)
    (watch,) = harpd.daemon._watching._watches.values()
    assert harpd.call(lambda: len(watch.changed)) <= 64
    with harpd.client() as other:
        assert other.query("status")["leases"] == 1
    last = {}
    while not last or last[addresses[0]] != (199).to_bytes(6, "big"):
        last |= {address.addr: address.mac for address in watcher.next().records}
    assert set(last.values()) == {(199).to_bytes(6, "big")}


def test_lost_notifications_cause_a_new_read(harpd: Running, watcher: Watcher) -> None:
    send_wanted(watcher, addr(1))
    harpd.until(lambda: len(monitor(harpd).resolved) == 1, "a request to the kernel")
    harpd.kernel.network_byte = b"b"
    monitor(harpd).announce(Changes(lost=True))
    assert watcher.next().rest[:1] == b"b"
    harpd.until(lambda: len(monitor(harpd).resolved) == 2, "a second request to the kernel")


def test_a_monitor_that_fails_ends_the_watches(
    harpd: Running, lease: int, watcher: Watcher
) -> None:
    """Jobs reconnect as after the end of harpd, and the next watch opens another monitor."""
    first = monitor(harpd)
    first.failing = True
    first.announce(Changes())
    assert watcher.is_closed()
    harpd.until(lambda: first.closed, "the end of the monitor")
    with Watcher(harpd.path) as second:
        assert second.ask(pack(Kind.WATCH, 2, LeaseId(lease))).kind is Kind.NETWORK
        assert len(harpd.kernel.monitors) == 2
        harpd.kernel.network_byte = b"b"
        monitor(harpd).announce(Changes(routes=True))
        assert second.next().kind is Kind.NETWORK


@pytest.mark.parametrize("end", ["released", "hung up", "watched again", "watched by another"])
def test_the_end_of_a_watch_leaves_nothing(
    harpd: Running, lease: int, watcher: Watcher, end: str
) -> None:
    send_wanted(watcher, addr(1))
    watches = harpd.daemon._watching
    with contextlib.ExitStack() as stack:
        if end == "released":
            with harpd.client() as client:
                client.release(lease)
            assert watcher.ask(pack_wanted(addr(1))).kind is Kind.REFUSED
        elif end == "hung up":
            watcher.close()
            harpd.until(lambda: harpd.kernel.monitors[-1].closed, "the end of the monitor")
        else:
            other = watcher if end == "watched again" else Watcher(harpd.path)
            stack.callback(other.close)
            assert other.ask(pack(Kind.WATCH, 5, LeaseId(lease))).kind is Kind.NETWORK
            if other is not watcher:
                assert watcher.is_closed()
            harpd.call(lambda: None)
            assert not monitor(harpd).closed
            assert len(watches._watches) == len(watches._of_client) == len(watches._networks) == 1
            assert watches._of_neighbor == {}
            return
        harpd.until(lambda: not watches._of_client, "the end of the watch")
        assert not watches._watches
        assert watches._networks == watches._of_neighbor == {}


def test_a_client_that_another_closed_gets_no_watch(harpd: Running, lease: int) -> None:
    """Two clients watch one lease in the same iteration of the loop: each would close the other."""
    with Watcher(harpd.path) as one, Watcher(harpd.path) as two:
        one.ask(pack(Kind.WATCH, 2, LeaseId(lease)))

        def both() -> None:
            for watcher in (two, one):
                watcher.send(pack(Kind.WATCH, 3, LeaseId(lease)))

        harpd.call(both)  # the loop finds both readable when it selects next
        harpd.until(lambda: len(harpd.daemon._watching._of_client) == 1, "one watch")
        harpd.until(
            lambda: all(c.open for c in harpd.daemon._watching._of_client), "an open client"
        )
    harpd.until(lambda: not harpd.daemon._watching._watches, "the end of the watch")
    harpd.until(lambda: not harpd.daemon._watching._of_client, "the end of the client")


def refusal(path: Path, make: Callable[[], bytes]) -> Any:
    with Watcher(path) as watcher:
        answer = watcher.ask(make())
        return answer.kind.name, answer.body.error


def test_the_lease_of_another_user_cannot_be_watched(harpd: Running, lease: int) -> None:
    requests: list[Callable[[], bytes]] = [
        lambda: pack(Kind.WATCH, 2, LeaseId(lease)),
        lambda: pack(Kind.ROUTE, 2, RouteQuery(lease, addr(1))),
        lambda: pack_wanted(addr(1)),
    ]
    for make in requests:
        for uid in (None, NOBODY):
            answer = in_child(lambda make=make: refusal(harpd.path, make), uid)  # type: ignore[misc]
            assert answer == ("REFUSED", errno.ENOENT)
    assert harpd.kernel.reads == harpd.kernel.routes == []


def test_a_route_comes_from_the_kernel(harpd: Running, lease: int) -> None:
    with Watcher(harpd.path) as watcher:
        answer = watcher.ask(pack(Kind.ROUTE, 2, RouteQuery(lease, addr(5))))
        assert (answer.kind, answer.rest) == (Kind.ROUTED, bytes(ROUTED_BYTES))
    assert harpd.kernel.routes == [(2, addr(5))]


# --------------------------------------------------------------------------------------------------
# Units.
#
def neighbor(
    kind: int, state: int, raw: bytes, mac: bytes, family: int = socket.AF_INET
) -> tuple[int, bytes, bytes] | None:
    body = struct.pack("=BxHiHBB", family, 0, 7, state, 0, 0)
    for number, value in ((1, raw), (2, mac)):
        if value:
            body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return parse_neighbor(kind, struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body)


def test_invalid_neighbor_messages_are_ignored() -> None:
    new, gone, raw = 28, 29, bytes([10, 0, 0, 1])
    assert neighbor(new, 2, raw, MAC) == (7, addr(1), MAC)
    assert neighbor(new, 0x20, raw, b"") == (7, addr(1), b"")
    assert neighbor(gone, 2, raw, MAC) == (7, addr(1), b"")
    assert neighbor(new, 1, raw, MAC) is None, "not resolved yet"
    assert neighbor(new, 2, raw, b"\1\2\3") is None
    assert neighbor(new, 2, raw, bytes(20)) is None, "an InfiniBand address"
    assert neighbor(new, 2, b"", MAC) is None
    assert neighbor(new, 2, raw, MAC, family=7) is None


PROCESSES = {
    # Network, user and PID namespace of a process, and the bounding sets of its threads. Namespaces
    # of its parent and of an unrelated process; both have CAP_NET_ADMIN. May the process lease?
    # harpd is in n0 u0 p0.
    "harpd's network": ("n0 u0 p0", ["1000"], "n0 u0 p0", "n0 u0 p0", True),
    "another network, without it": ("n1 u0 p0", ["0"], "n0 u0 p0", "n0 u0 p0", True),
    "another network, with it": ("n1 u0 p0", ["1000"], "n0 u0 p0", "n0 u0 p0", False),
    "a thread with it": ("n1 u0 p0", ["0", "1000"], "n0 u0 p0", "n0 u0 p0", False),
    "a parent with it": ("n1 u0 p1", ["0"], "n2 u0 p1", "n0 u0 p0", False),
    "a parent with it, in its network": ("n1 u0 p0", ["0"], "n1 u0 p0", "n0 u0 p0", False),
    "a parent with it, outside of its container": ("n1 u0 p1", ["0"], "n0 u0 p0", "n0 u0 p0", True),
    "another with it in its network": ("n1 u0 p1", ["0"], "n0 u0 p0", "n1 u0 p2", False),
    "another with it in its PID namespace": (
        "n1 u0 p1",
        ["0"],
        "n0 u0 p0",
        "n2 u0 p1",
        False,
    ),
    "another container with it": ("n1 u0 p1", ["0"], "n0 u0 p0", "n2 u0 p2", True),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_with_net_admin_over_this_network_are_found(tmp_path: Path, name: str) -> None:
    namespaces, threads, of_parent, of_other, allowed = PROCESSES[name]

    def join(folder: Path, spaces: str) -> None:
        (folder / "ns").mkdir(parents=True)
        for kind, space in zip(("net", "user", "pid"), spaces.split(), strict=True):
            (tmp_path / space).touch()
            (folder / "ns" / kind).hardlink_to(tmp_path / space)

    def process(pid: str, spaces: str, sets: list[str], parent: int) -> None:
        join(tmp_path / pid, spaces)
        for number, bounding in enumerate(sets):
            task = str(int(pid) + number) if pid != "self" else "0"
            join(tmp_path / pid / "task" / task, spaces)
            status = f"PPid:\t{parent}\nCapInh:\t0\nCapPrm:\t0\nCapBnd:\t{bounding}\n"
            (tmp_path / task).mkdir(exist_ok=True)
            (tmp_path / task / "status").write_text(status)

    process("self", "n0 u0 p0", ["0"], 0)
    process("10", namespaces, threads, 20)
    process("20", of_parent, ["1000"], 0)
    process("30", of_other, ["1000"], 0)
    why = peer.network_admin_elsewhere(10, tmp_path)
    assert (why == "") is allowed, why


def test_an_ended_main_thread_hides_no_other_thread(tmp_path: Path) -> None:
    """The kernel shows no network namespace of such a thread, and thus none of its process."""
    for pid, net in (("self", "n0"), ("10", "n1"), ("30", ""), ("30/task/31", "n1")):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "task" / pid).mkdir(parents=True)
        for kind, space in (("net", net), ("user", "u0"), ("pid", "p0")):
            if space:
                (tmp_path / space).touch()
                (tmp_path / pid / "ns" / kind).hardlink_to(tmp_path / space)
    for pid, bounding in (("10", "0"), ("30", "0"), ("31", "1000")):
        (tmp_path / pid).mkdir(exist_ok=True)
        status = f"PPid:\t0\nCapInh:\t0\nCapPrm:\t0\nCapBnd:\t{bounding}\n"
        (tmp_path / pid / "status").write_text(status)
    assert "process 30 has CAP_NET_ADMIN" in peer.network_admin_elsewhere(10, tmp_path)


def test_an_unreadable_proc_counts_as_the_capability(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/net").touch()
    assert "can't be read" in peer.network_admin_elsewhere(10, tmp_path)
