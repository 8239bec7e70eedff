# SPDX-License-Identifier: Apache-2.0
"""A bad path: a switch between two hosts that loses packets, or has less bandwidth than they.

AF_XDP's packets bypass the qdisc and the tc egress of their own device: only the middle can lose
and delay them as it does the kernel's. Offloads must be off, or it sees packets of many segments.
"""

import json
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harp import _paths
from harp.errors import HarpError
from harp.lab import Lab, Switch, require_programs

_ANSWER_S = 20
PPM = 1_000_000


def _switch(lab: Lab) -> Switch:
    if lab.switch is None:
        raise HarpError("a bad path needs a switch in the middle: LabOptions(switch=True)")
    return lab.switch


class Dropper:
    """Loses TCP packets that enter the switch, by harp-drop; ends with its block.

    Port i is where host i's packets enter: losing there is losing what host i sends.
    """

    def __init__(self, lab: Lab) -> None:
        self._switch = _switch(lab)
        command: list[str | Path] = [_paths.find("harp-drop"), *self._switch.ports]
        self._process = self._switch.popen(command, stdin=subprocess.PIPE)
        self._answer("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detaches. Safe to call twice."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(_ANSWER_S)

    def lose(self, host: int, share: float, seed: int = 1) -> None:
        """From now on this share of what the host sends is lost, the same again for a seed."""
        port = self._switch.ports[host]
        self._command(f"loss {port} {round(share * PPM)} {seed}")
        self._answer("ok")

    def lose_both_ways(self, share: float, seed: int = 1) -> None:
        """Loses what each host sends; data and its ACKs do not share a fate."""
        for host in range(len(self._switch.ports)):
            self.lose(host, share, seed + host)

    def counts(self, host: int) -> dict[str, int]:
        """What the host sent since the beginning, and what of it was lost."""
        self._command("counts")
        found: dict[str, dict[str, int]] = json.loads(self._line())
        return found[self._switch.ports[host]]

    # ----------------------------------------------------------------------------------------------

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise HarpError(f"harp-drop is gone: {self._complaint()}") from None

    def _line(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _ANSWER_S)[0]:
            raise HarpError(f"harp-drop: no answer in {_ANSWER_S} s")
        line = str(stdout.readline()).rstrip("\n")
        if not line:
            raise HarpError(f"harp-drop ended: {self._complaint()}")
        return line

    def _answer(self, wanted: str) -> None:
        if (line := self._line()) != wanted:
            raise HarpError(f"harp-drop said {line!r} instead of {wanted!r}")

    def _complaint(self) -> str:
        _, words = self._process.communicate(timeout=_ANSWER_S)
        return str(words).strip() or f"exit status {self._process.returncode}"


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
