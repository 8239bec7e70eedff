# SPDX-License-Identifier: Apache-2.0
"""A job checks the descriptors and numbers of its lease. If one is wrong, it prints one line and
gives the lease back.

tests/unit/host/test_daemon_lease.c has the messages that are wrong by themselves, and
tests/unit/nic/test_queue.c the queues.
"""

import contextlib
import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crash_rig import NOBODY
from harpd_rig import HostDaemon
from netns_tools import Tools, wait_until

from harp._host import Kind
from harp.closing import Closing
from harp.lab import Lab

XSK, FRAMES, PAGE = range(3)
# Offsets in struct harp_lease_leased.
QUEUE_AT, MAC_AT, PAGE_BYTES_AT = 52, 90, 96
Change = Callable[[bytearray, list[int]], None]


class Relay(Closing):
    """Between jobs and a real harpd: it changes LEASED on its way."""

    def __init__(self, harpd: HostDaemon) -> None:
        self.harpd, self.path = harpd, harpd.folder / "relay.sock"
        self.requests: list[Kind] = []
        self.change: Change = lambda message, fds: None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                job, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(job,), daemon=True).start()

    def _serve(self, job: socket.socket) -> None:
        with job, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as harpd:
            harpd.connect(str(self.harpd.socket))
            while True:
                (sender, *_), _, _ = select.select([job, harpd], [], [])
                raw, fds, _, _ = socket.recv_fds(sender, 65536, 8)
                if not raw:
                    return
                message, kind = bytearray(raw), Kind(struct.unpack_from("=H", raw, 6)[0])
                if sender is job:
                    self.requests.append(kind)
                if kind is Kind.LEASED:
                    self.change(message, fds)
                socket.send_fds(harpd if sender is job else job, [message], fds)
                for fd in fds:
                    os.close(fd)


@pytest.fixture(scope="module")
def relay(shared_lab: Lab) -> Iterator[Relay]:
    with (
        contextlib.closing(HostDaemon(shared_lab.hosts[0])) as harpd,
        Relay(harpd.start()) as made,
    ):
        yield made


def refused(tools: Tools, relay: Relay, *args: str) -> str:
    """The one line of a job that fails."""
    words = [tools.tcp, *args, "--ifname", relay.harpd.host.ifname, "--daemon", relay.path]
    done = subprocess.run(
        ["unshare", "--net", "--", *NOBODY, *words],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_a_port_outside_the_lease_is_refused(tools: Tools, relay: Relay) -> None:
    relay.change = lambda message, fds: None
    line = refused(tools, relay, "serve", relay.harpd.host.address, "61256")
    assert "Address already in use" in line


def set_u32(at: int, value: int) -> Change:
    return lambda message, _: struct.pack_into("=I", message, at, value)


def replace(which: int, make: Callable[[], int]) -> Change:
    """Another descriptor."""

    def change(_: bytearray, fds: list[int]) -> None:
        os.close(fds[which])
        fds[which] = make()

    return change


def unsealed() -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, 1 << 20)
    return fd


def udp() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()


def swap(_: bytearray, fds: list[int]) -> None:
    fds[XSK], fds[FRAMES] = fds[FRAMES], fds[XSK]


CHANGES: dict[str, tuple[Any, str]] = {
    "XSK and memory swapped": (swap, "its socket is not an AF_XDP socket"),
    "page no memfd": (replace(PAGE, udp), "statistics page is not a sealed memfd"),
    "page unsealed": (replace(PAGE, unsealed), "statistics page is not a sealed memfd"),
    "page of no bytes": (set_u32(PAGE_BYTES_AT, 0), "statistics page has"),
    "page of too many bytes": (set_u32(PAGE_BYTES_AT, 0xFFFFFFFF), "statistics page has"),
    "another MAC": (set_u32(MAC_AT, 0x01020304), "harpd's interface has two MAC addresses"),
    "another queue": (set_u32(QUEUE_AT, 7), "harpd leases queue 7 instead"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_invalid_lease_is_refused_and_given_back(tools: Tools, relay: Relay, name: str) -> None:
    relay.change, words = CHANGES[name]
    relay.requests.clear()
    assert words in refused(tools, relay, "send", "10.77.0.2", "7000")
    wait_until(lambda: Kind.RELEASE in relay.requests, "the lease is given back")
    wait_until(lambda: not relay.harpd.query("instances")["instances"], "no lease")
