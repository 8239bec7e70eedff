# SPDX-License-Identifier: Apache-2.0
"""A bad path: a switch between two hosts that loses packets, or has less bandwidth than they.

AF_XDP's packets bypass the qdisc and the tc egress of their own device: only the middle can lose
and delay them as it does the kernel's. Offloads must be off, or it sees packets of many segments.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from harp import _paths
from harp.closing import Closing
from harp.errors import HarpError
from harp.lab import Lab, Switch, require_programs
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


def make_bottleneck(lab: Lab, host: int, mbit_per_s: float, queue_bytes: int) -> None:
    """Shapes what leaves the switch towards a host: tbf with a queue of so many bytes."""
    require_programs("tc")
    switch = _switch(lab)
    # A millisecond of credit: tbf sends what the timer's grain withheld, and no long bursts.
    burst = max(int(mbit_per_s * 1e6 / 8 / 1000), 2 * (lab.options.mtu_bytes + 18))
    switch.run(
        *("tc", "qdisc", "replace", "dev", switch.ports[host], "root", "tbf"),
        *("rate", f"{round(mbit_per_s * 1000)}kbit", "burst", str(burst)),
        *("limit", str(queue_bytes)),
    )


def bottleneck_drops(lab: Lab, host: int) -> int:
    """Packets that the bottleneck's queue had no room for."""
    switch = _switch(lab)
    shown = json.loads(switch.run("tc", "-s", "-j", "qdisc", "show", "dev", switch.ports[host]))
    found: list[dict[str, Any]] = [entry for entry in shown if entry["kind"] == "tbf"]
    if not found:
        raise HarpError(f"{switch.ports[host]} has no bottleneck")
    return int(found[0]["drops"])
