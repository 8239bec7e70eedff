#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a connect takes, with and without attackers at the ports. Needs root.

Two processes play NCCL's service thread: one listens and accepts, the other connects, one comm
after the other. A third host attacks (attack.py). Alternately with each attack the same two connect
by a plain kernel socket, with as many messages as HARP's preamble has and at a port that is not
attacked: its tail is the machine's.
"""

import base64
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from attack import KINDS, Attack
from ncclnet import NcclError, Net

from harp import _paths
from harp import output as console
from harp.cli.lab_options import ipv6_option, path_option
from harp.cli.options import FiniteRange, output_option
from harp.errors import HarpError
from harp.lab import Host, Lab, LabOptions

_ANSWER_S = 60
QUIET = "none"
_JUDGED = ("p50_ms", "p99_ms")
_MESSAGES = (64, 64, 32, 32)  # bytes, of the connector, the acceptor, the connector ...
DELAY_GOAL_MS = 5.0  # by which attackers may delay a healthy connect
Say = Callable[[str], None]


@dataclass(frozen=True)
class ConnectOptions:
    """What the bench does: connects for so long with each kind of attack, in each round."""

    path: str = "auto"
    kinds: tuple[str, ...] = KINDS
    rounds: int = 5
    seconds: float = 2
    ipv6: bool = False


class _Side:
    """One of the two processes: a command's answer is one JSON line."""

    def __init__(self, host: Host, options: ConnectOptions) -> None:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
        env = keep | {"HARP_PATH": options.path, "HARP_XDP_BYTES_MAX": "3000"}
        env |= {"NCCL_SOCKET_IFNAME": f"={host.ifname}"}
        words: list[str | Path] = [sys.executable, __file__, "rank", _paths.plugin()]
        self._process = host.popen(words, stdin=subprocess.PIPE, env=env)
        self.collect()

    def start(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def collect(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise HarpError(self._process.communicate()[1].strip() or "a rank has ended")
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        self.start(*command)
        return self.collect()


def run_connects(options: ConnectOptions, say: Say) -> dict[str, Any]:
    """Connects without and under each attack, alternately; their times."""
    times: dict[str, list[float]] = {kind: [] for kind in (QUIET, *options.kinds)}
    plain: dict[str, list[float]] = {kind: [] for kind in times}
    came: dict[str, int] = {}
    with Lab(LabOptions(hosts=3, ipv6=options.ipv6)) as lab:
        victim, healthy = (_Side(host, options) for host in lab.hosts[:2])
        ports = _doors(victim)
        at = (lab.hosts[0].address, victim.ask("plain_listen", lab.hosts[0].address))
        for index in range(options.rounds):
            say(f"round {index + 1} of {options.rounds}")
            for kind, found in times.items():
                with contextlib.ExitStack() as stack:
                    if kind != QUIET:
                        attack = Attack(lab.hosts[2], kind, lab.hosts[0].address, ports)
                        stack.enter_context(attack)
                    end = time.monotonic() + options.seconds
                    while time.monotonic() < end:
                        found.append(_connect_ms(victim, healthy))
                        victim.start("plain_accept")
                        plain[kind].append(float(healthy.ask("plain_connect", *at)))
                        victim.collect()
                if kind != QUIET:
                    came[kind] = came.get(kind, 0) + attack.count
    results = {kind: _summary(found) for kind, found in times.items()}
    delay = max(result[key] - results[QUIET][key] for result in results.values() for key in _JUDGED)
    return {
        "options": asdict(options),
        "doors": ports,
        "came": came,
        "results": results,
        "plain": {kind: _summary(found) for kind, found in plain.items()},
        "samples_ms": times,
        "delay_ms": delay,
        "goals": {"delay_ms": DELAY_GOAL_MS},
        "ok": delay <= DELAY_GOAL_MS,
    }


def _doors(victim: _Side) -> list[int]:
    """The ports that a handle names: HARP's, and the kernel's for either family."""
    handle = base64.b64decode(victim.ask("listen"))
    victim.ask("unlisten")
    return [port for port in struct.unpack_from("<HHH", handle, 12) if port]


def _connect_ms(victim: _Side, healthy: _Side) -> float:
    handle = victim.ask("listen")
    victim.start("accept")
    ms = float(healthy.ask("connect", handle))
    victim.collect()
    healthy.ask("close")
    victim.ask("close")
    return ms


def _summary(found: Sequence[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {
        "count": len(ordered),
        "p50_ms": statistics.median(ordered),
        "p90_ms": ordered[len(ordered) * 9 // 10],
        "p99_ms": ordered[len(ordered) * 99 // 100],
        "max_ms": ordered[-1],
    }


# ---- one side's process --------------------------------------------------------------------------


def _tried(call: Callable[[], Any]) -> Any:
    """What it returns; None when it would have had to wait."""
    try:
        return call()
    except BlockingIOError:
        return None


class _Commands:
    """Each method is a command; None is a good answer too."""

    def __init__(self, plugin: str) -> None:
        self._net = Net(plugin)
        self._listen = self._comm = 0
        self._close: Callable[[int], None] = self._net.close_recv

    def listen(self) -> str:
        handle, self._listen = self._net.listen()
        return base64.b64encode(handle).decode()

    def unlisten(self) -> None:
        self._net.close_listen(self._listen)

    def accept(self) -> None:
        self._comm = self._poll(lambda: self._net.accept_step(self._listen))[0]
        self._close = self._net.close_recv
        self.unlisten()

    def connect(self, handle: str) -> float:
        """Milliseconds from the first call to the comm."""
        step = self._net.connect_start(base64.b64decode(handle))
        self._comm, seconds = self._poll(step)
        self._close = self._net.close_send
        return seconds * 1000

    def close(self) -> None:
        self._close(self._comm)

    def plain_listen(self, address: str) -> int:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._plain = socket.create_server((address, 0), family=family)
        self._plain.setblocking(False)
        return int(self._plain.getsockname()[1])

    def plain_accept(self) -> None:
        made, _ = self._poll(partial(_tried, self._plain.accept))
        with made[0] as peer:
            self._talk(peer, 1)

    def plain_connect(self, address: str, port: int) -> float:
        """Milliseconds, as connect()."""
        begin = time.monotonic()
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as peer:
            peer.setblocking(False)
            peer.connect_ex((address, port))
            self._talk(peer, 0)
            return (time.monotonic() - begin) * 1000

    def _talk(self, peer: socket.socket, turn: int) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n, count in enumerate(_MESSAGES):
            if n % 2 == turn:
                self._poll(partial(_tried, partial(peer.send, bytes(count))))
            else:
                self._poll(partial(_tried, partial(peer.recv, count)))

    @staticmethod
    def _poll(step: Callable[[], Any]) -> tuple[Any, float]:
        begin = time.monotonic()
        while (comm := step()) is None:
            if time.monotonic() > begin + _ANSWER_S:
                raise TimeoutError(f"no connection in {_ANSWER_S} s")
            time.sleep(0)
        return comm, time.monotonic() - begin


def play_rank(plugin: str) -> int:
    """One of the two processes: commands on stdin, answers on stdout."""
    try:
        commands = _Commands(plugin)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            name, *values = json.loads(line)
            print(json.dumps(getattr(commands, name)(*values)), flush=True)
    except (NcclError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


# ---- the command line ----------------------------------------------------------------------------


def _print(report: dict[str, Any]) -> None:
    columns = ("attack", "came", "connects", "p50 ms", "p90 ms", "p99 ms", "max ms")
    keys = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
    both = [("", report["results"]), (", plain kernel socket", report["plain"])]
    rows = [
        (
            kind + words,
            str(report["came"].get(kind, 0)),
            str(found["count"]),
            *(f"{found[key]:.2f}" for key in keys),
        )
        for words, results in both
        for kind, found in results.items()
    ]
    console.print_table(columns, rows)
    console.out.print(
        f"delay: {report['delay_ms']:.2f} ms (goal: at most {DELAY_GOAL_MS:.0f}):"
        f" {'met' if report['ok'] else 'MISSED'}"
    )


@click.command()
@click.option(
    "--attack",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    show_default=True,
    help="May be given again.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option("--seconds", type=FiniteRange(0.1, 60), default=2, show_default=True)
@ipv6_option
@path_option
@output_option
def main(output: str, **given: Any) -> None:
    """Connects with and without attackers, alternately.

    syn: 2000 SYNs a second to the ports that the handle names, half of them from addresses that no
    host has. scan: to all ports. silent, loris: 100 connections to each of those ports that send
    nothing, or a byte of a preamble now and then. Goal: medians and 99th percentiles at most 5 ms
    later. Exit code 1 when it is missed.
    """
    report = run_connects(ConnectOptions(**given), console.err.print)
    if output == "json":
        console.print_json(report)
    else:
        _print(report)
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        sys.exit(play_rank(sys.argv[2]))
    main()
