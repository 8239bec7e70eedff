# SPDX-License-Identifier: Apache-2.0
"""A path with loss: a switch between two hosts that drops packets.

AF_XDP's packets bypass the qdisc and the tc egress hook of their own device. Only the switch can
drop and delay them like the kernel's packets. Offloads must be off, or the switch sees packets of
many segments.
"""

import json
import subprocess
from pathlib import Path

from harp import _paths
from harp.closing import Closing
from harp.errors import HarpError
from harp.lab import Lab, Switch
from harp.lab.piped import PipedTool

PPM = 1_000_000


def _switch(lab: Lab) -> Switch:
    if lab.switch is None:
        raise HarpError("a bad path needs a switch in the middle: LabOptions(switch=True)")
    return lab.switch


class Dropper(Closing):
    """Drops TCP packets that enter the switch, with harp-drop, until the end of the block.

    Packets of host i enter through port i, so a drop there loses what host i sends.
    """

    def __init__(self, lab: Lab) -> None:
        self._switch = _switch(lab)
        command: list[str | Path] = [_paths.find("harp-drop"), *self._switch.ports]
        process = self._switch.popen(command, stdin=subprocess.PIPE)
        self._tool = PipedTool("harp-drop", process)

    def close(self) -> None:
        """Detach the program. May be called twice."""
        self._tool.close()

    def lose(self, host: int, share: float, seed: int = 1) -> None:
        """Drop this share of the host's packets from now on; a seed repeats the same drops."""
        port = self._switch.ports[host]
        self._tool.tell(f"loss {port} {round(share * PPM)} {seed}")

    def lose_both_ways(self, share: float, seed: int = 1) -> None:
        """Drop packets of each host with a different seed, so that data and its ACKs are lost
        independently.
        """
        for host in range(len(self._switch.ports)):
            self.lose(host, share, seed + host)

    def counts(self, host: int) -> dict[str, int]:
        """Return the numbers of packets that the host sent, and that were dropped."""
        found: dict[str, dict[str, int]] = json.loads(self._tool.ask("counts"))
        return found[self._switch.ports[host]]
