#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a connect takes, with and without attackers at the ports. Needs root.

Two actors play NCCL's service thread: one listens and accepts, the other connects, one comm after
the other. A third host attacks (attack.py). After each connect, kernel sockets connect at a port
that is not attacked and exchange as many messages as HARP's preamble has: their tail is the
machine's.
"""

import base64
import contextlib
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter

import click
from actor import Actor, actors
from attack import KINDS, Attack

from harp import _paths
from harp import output as console
from harp.cli.lab_options import ipv6_option, path_option
from harp.cli.options import FiniteRange
from harp.lab import Host, Lab, LabOptions
from harp.lab.netns import in_namespace

QUIET = "none"
DELAY_GOAL_MS = 5.0  # by which attackers may delay a healthy connect
_MESSAGES = (64, 64, 32, 32)  # bytes, of the connector, the acceptor, the connector ...


class Plain:
    """Kernel sockets in the namespaces of two hosts."""

    def __init__(self, server: Host, client: Host) -> None:
        self._client = client
        self._family = socket.AF_INET6 if ":" in server.address else socket.AF_INET
        self._listener = self._made(server)
        self._listener.bind((server.address, 0))
        self._listener.listen()

    def _made(self, host: Host) -> socket.socket:
        found: list[socket.socket] = []
        in_namespace(host.netns, lambda _: found.append(socket.socket(self._family)))
        return found[0]

    def connect_ms(self) -> float:
        server = threading.Thread(target=self._accept)
        server.start()
        with self._made(self._client) as peer:
            begin = time.monotonic()
            peer.connect(self._listener.getsockname())
            self._talk(peer, 0)
            taken = time.monotonic() - begin
        server.join()
        return taken * 1000

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            self._talk(peer, 1)

    @staticmethod
    def _talk(peer: socket.socket, turn: int) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n, count in enumerate(_MESSAGES):
            if n % 2 == turn:
                peer.sendall(bytes(count))
            else:
                peer.recv(count, socket.MSG_WAITALL)

    def close(self) -> None:
        self._listener.close()


def connect_ms(victim: Actor, healthy: Actor) -> float:
    handle, listen = victim.call("listen")
    victim.start("accept", listen=listen)
    (send,), (seconds,) = healthy.call("connect_each", handles=[handle])
    receive = victim.result()
    healthy.call("close_send", comm=send)
    victim.call("close_recv", comm=receive)
    victim.call("close_listen", comm=listen)
    return float(seconds) * 1000


def row(words: str, came: int, found: list[float]) -> tuple[str, ...]:
    ordered = sorted(found)
    tail = (ordered[len(ordered) * percent // 100] for percent in (90, 99))
    times = (statistics.median(ordered), *tail, ordered[-1])
    return (words, str(came), str(len(ordered)), *(f"{ms:.2f}" for ms in times))


def delay_ms(times: dict[str, list[float]]) -> float:
    """The largest difference to the quiet host, of medians and 99th percentiles."""
    judged = {
        kind: (statistics.median(found), sorted(found)[len(found) * 99 // 100])
        for kind, found in times.items()
    }
    quiet = judged[QUIET]
    return max(max(p50 - quiet[0], p99 - quiet[1]) for p50, p99 in judged.values())


@click.command()
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option("--seconds", type=FiniteRange(0.1, 60), default=2, show_default=True)
@ipv6_option
@path_option
def main(rounds: int, seconds: float, ipv6: bool, path: str) -> None:
    """Connects with and without attackers, alternately.

    syn: 2000 SYNs a second to the ports that the handle names, half of them from addresses that no
    host has. scan: to all ports. silent, loris: 100 connections to each of those ports that send
    nothing, or a byte of a preamble now and then. Goal: medians and 99th percentiles at most 5 ms
    later. Exit code 1 when it is missed.
    """
    times: dict[str, list[float]] = {kind: [] for kind in (QUIET, *KINDS)}
    plain: dict[str, list[float]] = {kind: [] for kind in times}
    came: Counter[str] = Counter()
    env = {"HARP_PATH": path, "HARP_XDP_BYTES_MAX": "3000", "NCCL_SOCKET_IFNAME": "=eth0"}
    with Lab(LabOptions(hosts=3, ipv6=ipv6)) as lab, contextlib.ExitStack() as stack:
        made = (Actor(host.netns, env) for host in lab.hosts[:2])
        victim, healthy = stack.enter_context(actors(*made))
        for rank in (victim, healthy):
            rank.call("load", path=str(_paths.plugin()))
        sockets = stack.enter_context(contextlib.closing(Plain(*lab.hosts[:2])))
        handle = base64.b64decode(victim.call("listen_with_harp")[0])
        ports = [port for port in struct.unpack_from("<HHH", handle, 12) if port]
        for index in range(rounds):
            console.err.print(f"round {index + 1} of {rounds}")
            for kind, found in times.items():
                with contextlib.ExitStack() as attacked:
                    if kind != QUIET:
                        attack = Attack(lab.hosts[2], kind, lab.hosts[0].address, ports)
                        attacked.enter_context(attack)
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        found.append(connect_ms(victim, healthy))
                        plain[kind].append(sockets.connect_ms())
                if kind != QUIET:
                    came[kind] += attack.count
    columns = ("attack", "came", "connects", "p50 ms", "p90 ms", "p99 ms", "max ms")
    rows = [row(kind, came[kind], found) for kind, found in times.items()]
    rows += [
        row(f"{kind}, plain kernel socket", came[kind], found) for kind, found in plain.items()
    ]
    console.print_table(columns, rows)
    delay = delay_ms(times)
    met = delay <= DELAY_GOAL_MS
    console.out.print(
        f"delay: {delay:.2f} ms (goal: at most {DELAY_GOAL_MS:.0f}): {'met' if met else 'MISSED'}"
    )
    sys.exit(not met)


if __name__ == "__main__":
    main()
