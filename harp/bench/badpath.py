# SPDX-License-Identifier: Apache-2.0
"""A bad path: a switch between two hosts that loses packets.

AF_XDP's packets bypass the qdisc and the tc egress of their own device: only the middle can lose
and delay them as it does the kernel's. Offloads must be off, or it sees packets of many segments.
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
    """Loses TCP packets that enter the switch, by harp-drop; ends with its block.

    Port i is where host i's packets enter: losing there is losing what host i sends.
    """

    def __init__(self, lab: Lab) -> None:
        self._switch = _switch(lab)
        command: list[str | Path] = [_paths.find("harp-drop"), *self._switch.ports]
        process = self._switch.popen(command, stdin=subprocess.PIPE)
        self._tool = PipedTool("harp-drop", process)

    def close(self) -> None:
        """Detaches. Safe to call twice."""
        self._tool.close()

    def lose(self, host: int, share: float, seed: int = 1) -> None:
        """From now on this share of what the host sends is lost, the same again for a seed."""
        port = self._switch.ports[host]
        self._tool.tell(f"loss {port} {round(share * PPM)} {seed}")

    def lose_both_ways(self, share: float, seed: int = 1) -> None:
        """Loses what each host sends; data and its ACKs do not share a fate."""
        for host in range(len(self._switch.ports)):
            self.lose(host, share, seed + host)

    def counts(self, host: int) -> dict[str, int]:
        """What the host sent since the beginning, and what of it was lost."""
        found: dict[str, dict[str, int]] = json.loads(self._tool.ask("counts"))
        return found[self._switch.ports[host]]
