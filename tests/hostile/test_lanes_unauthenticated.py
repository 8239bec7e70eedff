# SPDX-License-Identifier: Apache-2.0
"""Port scanners, half-open floods and slow-loris peers at every listener, while a healthy host
connects repeatedly and a comm of several lanes transfers data. No connect fails, is retried or
logs a warning, and every byte is correct."""

import base64
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator

import pytest
from actor import Actor, actors
from attack import KINDS, Attack

from harp.lab import Lab, LabOptions
from harp.lab.netns import in_namespace

CONNECTS = 30
BURST = 400
ENV = {"NCCL_SOCKET_IFNAME": "=eth0", "HARP_LANES": "2", "HARP_KERNEL_LANES": "2"}


@pytest.fixture(scope="module", params=[False, True], ids=["IPv4", "IPv6"])
def lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    """Three hosts: the victim, a healthy host, and the attacker."""
    with Lab(LabOptions(hosts=3, ipv6=request.param)) as processes:
        yield processes


def ports_of(handle: str) -> list[int]:
    """The ports of a handle: HARP's, and the kernel's for either family."""
    raw = base64.b64decode(handle)
    ports = (*struct.unpack_from("<HH", raw, 84), *struct.unpack_from("<H", raw, 92))
    return [port for port in ports if port]


@pytest.mark.sample(
    "IPv6-loris-kernel",
    "IPv4-syn-auto",
    "IPv4-scan-kernel",
    "IPv6-silent-auto",
    "IPv4-silent-kernel",
    "IPv6-scan-auto",
)
@pytest.mark.parametrize("path", ["auto", "kernel"])
@pytest.mark.parametrize("kind", KINDS)
def test_unauthenticated_peers_delay_no_connect(lab: Lab, kind: str, path: str) -> None:
    processes = [Actor(host.netns, {"HARP_PATH": path, **ENV}) for host in lab.hosts[:2]]
    with actors(*processes) as (victim, healthy):
        for rank in (victim, healthy):
            rank.load()
        handle, listen = victim.call("listen")
        later = victim.call("listen_many", count=CONNECTS)
        victim.start("accept", listen=listen)
        sends, receives = healthy.call("connect", handle=handle), victim.result()
        with Attack(lab.hosts[2], kind, lab.hosts[0].address, ports_of(handle)):
            victim.start("join", handles=[], listens=[comm for _, comm in later])
            comms = healthy.call("connect_each", handles=[handle for handle, _ in later])
            victim.result()
            healthy.start("pump", sends=[sends], receives=[], size=100_000, seconds=1)
            pumped = victim.call("pump", sends=[], receives=[receives], size=100_000, seconds=1)
            assert healthy.result() == pumped
        assert pumped[0][0] > 0
        assert pumped[0][1] == "ncclSuccess"
        assert len(comms) == CONNECTS
        for rank in (victim, healthy):
            assert rank.call("warnings") == []
        log = "\n".join(healthy.call("log"))
        assert "tried again" not in log


def test_a_burst_waits_for_a_stopped_control_thread(lab: Lab) -> None:
    """All connections wait in the kernel's accept queue. With a full queue, the kernel would drop
    SYNs, which are retransmitted after a second."""
    with contextlib.ExitStack() as stack:
        (victim,) = stack.enter_context(
            actors(Actor(lab.hosts[0].netns, {"HARP_PATH": "kernel", **ENV}))
        )
        victim.load()
        address = lab.hosts[0].address, ports_of(victim.call("listen")[0])[0]
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        burst: list[socket.socket] = []
        in_namespace(
            lab.hosts[2].netns, lambda _: burst.extend(socket.socket(family) for _ in range(BURST))
        )
        os.kill(victim.pid, signal.SIGSTOP)
        stack.callback(os.kill, victim.pid, signal.SIGCONT)
        poll = select.poll()
        for sock in burst:
            stack.enter_context(sock).setblocking(False)
            sock.connect_ex(address)
            poll.register(sock, select.POLLOUT)
        waiting = {sock.fileno() for sock in burst}
        while waiting and (ready := poll.poll(20_000)):
            for fd, _ in ready:
                poll.unregister(fd)
                waiting.discard(fd)
        assert not waiting, f"{len(waiting)} of {BURST} did not connect"
