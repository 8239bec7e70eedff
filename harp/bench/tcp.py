# SPDX-License-Identifier: Apache-2.0
"""Messages over TCP from one harp-tcp to another, each on a processor of its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harp import _paths
from harp.lab import Host
from harp.lab.team import Team

MESSAGE_BYTES = 65536
_FINISH_S = 60


@dataclass(frozen=True)
class End:
    """One end: its host (None: this one), and harp-tcp's options for its stack."""

    host: Host | None
    options: Sequence[str | Path]


@dataclass(frozen=True)
class Load:
    """Connections, and messages in flight on each; seconds, of which the first do not count."""

    flows: int = 1
    depth: int = 16
    skip_s: float = 0.5
    seconds: float = 2
    verify: bool = False
    realtime: int = 0  # SCHED_FIFO's priority; 0: normal scheduling

    @property
    def times(self) -> list[str]:
        """harp-tcp's options for the time."""
        return ["--skip", str(self.skip_s), "--seconds", str(self.seconds), "-o", "json"]


def run_tcp(
    receiver: End, sender: End, address: str, port: int, load: Load
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the sender's report, and the receiver's of each connection. HarpError quotes the end
    that failed.
    """
    tool = _paths.find("harp-tcp")
    both: list[str | Path] = [address, str(port)]
    sink = [tool, "sink", *both, *receiver.options, "--count", str(load.flows), *load.times]
    message = [tool, "message", *both, *sender.options, *load.times, "--flows", str(load.flows)]
    message += ["--size", str(MESSAGE_BYTES), "--depth", str(load.depth)]
    realtime = {"realtime": load.realtime} if load.realtime else {}
    with Team("harp-tcp") as team:
        team.start(
            receiver.host, [*sink, *(["--verify"] if load.verify else [])], cpu=-1, **realtime
        )
        team.ready()
        team.start(sender.host, message, cpu=0, **realtime)
        received, sent = team.finish(load.seconds + _FINISH_S)
    report: dict[str, Any] = json.loads(sent)
    return report, [json.loads(line) for line in received.splitlines()]
