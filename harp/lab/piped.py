# SPDX-License-Identifier: Apache-2.0
"""Programs controlled by pipes: a command and its answer are a line each. They end with their
stdin.

Spreader and Dropper control BPF programs at the ports of the test hosts' switch.
"""

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harp import _paths
from harp.closing import Closing
from harp.errors import HarpError
from harp.waiting import readable

if TYPE_CHECKING:
    from harp.lab import Lab
    from harp.lab.netns import Namespace

_PPM = 1_000_000
_ANSWER_S = 20.0


class Piped(Closing):
    """A process that was started with pipes, and that close() ends. name: for messages."""

    limit_s = _ANSWER_S  # for an answer
    end_s = _ANSWER_S

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name, self.process = name, process

    def send(self, command: str) -> None:
        """Send a line without waiting for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def line(self, limit_s: float | None = None) -> str:
        """Return the next line; HarpError if there is none in time, or the process has ended."""
        limit_s = limit_s or self.limit_s
        stdout = self.process.stdout
        assert stdout is not None
        if not readable([stdout.fileno()], limit_s):
            raise self.late(limit_s)
        line = str(stdout.readline())
        if not line:
            raise self.ended()
        return line.rstrip("\n")

    def expect(self, expected: str) -> None:
        """Read a line; HarpError if it is another one."""
        line = self.line()
        if line != expected:
            raise HarpError(f"{self.name} printed {line!r} instead of {expected!r}")

    def late(self, limit_s: float) -> HarpError:
        return HarpError(f"{self.name}: no answer in {limit_s:.0f} s")

    def ended(self) -> HarpError:
        """Return the error of a process that has ended, with the last line of its stderr."""
        _, stderr = self.process.communicate(timeout=self.end_s)
        lines = str(stderr or "").strip().splitlines() or [f"exit status {self.process.returncode}"]
        return HarpError(f"{self.name} ended: {lines[-1]}")

    def end(self) -> None:
        """Close its stdin, which ends it. Does not wait."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        self.end()
        try:
            self.process.wait(self.end_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class PipedTool(Piped):
    """harp-switch at ports in a namespace; it prints "ready" first. Its end undoes its changes."""

    def __init__(self, namespace: "Namespace", function: str, ports: Sequence[str]) -> None:
        command: list[str | Path] = [_paths.find("harp-switch"), function, *ports]
        process = namespace.popen(command, stdin=subprocess.PIPE)
        super().__init__(f"harp-switch {function}", process)
        self.ports = tuple(ports)
        self.expect("ready")

    def ask(self, command: str) -> str:
        self.send(command)
        return self.line()

    def tell(self, command: str) -> None:
        """Send a line whose answer must be "ok"."""
        self.send(command)
        self.expect("ok")


class Spreader(PipedTool):
    """Chooses the receive queue of each host's NIC, at the switch's ports, with harp-switch.

    A rule is `toeplitz:KEY[:TABLE]` as for HARP_RSS, which HARP can compute; `hash:NUMBER`, which
    HARP can't compute; `zero`, queue 0 for all packets; or `keep`, the kernel's choice.
    """

    def __init__(self, switch: "Namespace", ports: Sequence[str], queues: int) -> None:
        super().__init__(switch, "rss", ports)
        self._queues = queues

    def rule(self, host: int, rule: str) -> None:
        """Set the rule for what the host receives. HarpError: no such rule."""
        if not rule or rule.split() != [rule]:
            raise HarpError(f"{rule!r} is not a rule of receive side scaling")
        self.tell(f"set {self.ports[host]} {self._queues} {rule}")

    def counts(self, host: int) -> list[int]:
        """Return the number of packets for each queue of the host; rule `keep` counts none."""
        counts: dict[str, list[int]] = json.loads(self.ask("counts"))
        return counts[self.ports[host]][: self._queues]


class Dropper(PipedTool):
    """Drops TCP packets that enter the switch, with harp-switch, until the end of the block.

    A drop at port i loses packets that host i sends. AF_XDP's packets bypass the qdisc and the tc
    egress hook of their own device, so only the switch can drop them like the kernel's. Offloads
    must be off, or one packet at the switch has many segments.
    """

    def __init__(self, lab: "Lab") -> None:
        if lab.switch is None:
            raise HarpError("a path with loss needs a switch: LabOptions(switch=True)")
        super().__init__(lab.switch, "drop", lab.switch.ports)

    def lose(self, host: int, share: float, seed: int = 1) -> None:
        """Drop this share of the host's packets from now on; a seed makes the drops repeatable."""
        port = self.ports[host]
        self.tell(f"set {port} {round(share * _PPM)} {seed}")

    def lose_both_ways(self, share: float, seed: int = 1) -> None:
        """Drop packets of all hosts, each with another seed."""
        for host in range(len(self.ports)):
            self.lose(host, share, seed + host)

    def counts(self, host: int) -> dict[str, int]:
        """Return the packets that the host sent, and the payload bytes that were dropped."""
        counts: dict[str, dict[str, int]] = json.loads(self.ask("counts"))
        return counts[self.ports[host]]
