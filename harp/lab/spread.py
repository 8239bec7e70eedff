# SPDX-License-Identifier: Apache-2.0
"""NICs that choose receive queues by a rule: harp-rss in the lab's switch.

A rule is HARP_RSS's `toeplitz:KEY[:TABLE]`, which HARP can compute too; `hash:NUMBER`, which it
cannot; `zero`, everything to queue 0; or `keep`, the kernel's choice.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harp import _paths
from harp.errors import HarpError
from harp.lab.piped import PipedTool

if TYPE_CHECKING:
    from harp.lab.netns import Namespace


class Spreader:
    """Chooses the receive queue of each host's NIC, at the switch's ports."""

    def __init__(self, switch: "Namespace", ports: Sequence[str], queues: int) -> None:
        command: list[str | Path] = [_paths.find("harp-rss"), *ports]
        self._tool = PipedTool("harp-rss", switch.popen(command, stdin=subprocess.PIPE))
        self._ports, self._queues = tuple(ports), queues

    def rule(self, host: int, rule: str) -> None:
        """Set the rule for what the host receives. HarpError: no such rule."""
        if not rule or rule.split() != [rule]:
            raise HarpError(f"{rule!r} is no rule of receive side scaling")
        self._tool.tell(f"rss {self._ports[host]} {self._queues} {rule}")

    def counts(self, host: int) -> list[int]:
        """Return the packets for each queue of the host, except those under `keep`."""
        counts: dict[str, list[int]] = json.loads(self._tool.ask("counts"))
        return counts[self._ports[host]][: self._queues]

    def close(self) -> None:
        """Detach the program. May be called twice."""
        self._tool.close()
