# SPDX-License-Identifier: Apache-2.0
"""Ranks of NVIDIA's NCCL on test hosts, one process each: harp-nccl-rank.

Each rank reads a command from each line, and answers with a document (tools/nccl/rank.c).
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harp import _paths
from harp.closing import Closing
from harp.errors import HarpError
from harp.lab import Host
from harp.lab.piped import Piped
from harp.lab.team import Team, job_environment
from harp.nccl import wheels

ANSWER_S = 90.0  # seconds after which a hanging rank ends
_EMULATION_EXIT = 70  # tools/nccl/emulation.h
HARP, SOCKETS = "HARP", "Socket"  # NCCL_NET
Answer = dict[str, Any]
_COMPLAINT = re.compile(r"harp-nccl-rank: |NCCL WARN ")

# The emulated GPU supports rings, Simple or LL; it does not emulate virtual memory management.
_EMULATION = {
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
}


def environment(
    host: Host, net: str, more: Mapping[str, str] | None = None, plugin: Path | None = None
) -> dict[str, str]:
    """Return a rank's environment: net carries the traffic, or NCCL fails. `more` overrides it."""
    variables = _EMULATION | {
        "NCCL_HOSTID": host.netns,  # a namespace counts as a host
        "NCCL_SOCKET_IFNAME": ",".join(nic.ifname for nic in host.nics),
        "NCCL_NET": net,
    }
    if ":" in host.address:
        variables["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    if net == HARP:
        folder = (plugin or _paths.plugin()).parent
        paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        variables |= {"NCCL_NET_PLUGIN": "harp", "LD_LIBRARY_PATH": ":".join(paths)}
    else:
        variables["NCCL_NET_PLUGIN"] = "none"
    variables |= more or {}
    return job_environment(variables, foreign=("NCCL_", "HARP_"), kept=("HARP_BUILD",))


class RankError(HarpError):
    """An error of a rank: NCCL reported it, or the process has ended."""

    def __init__(self, message: str, answer: Answer | None = None) -> None:
        super().__init__(message)
        self.answer = answer or {}


class EmulationError(HarpError):
    """NCCL uses a feature that harp-nccl-rank does not emulate, with any transport."""


class Rank(Piped):
    """A process that waits for commands."""

    limit_s = end_s = ANSWER_S

    def __init__(self, team: Team, index: int) -> None:
        super().__init__(f"rank {index}", team.processes[index])
        self.index, self._team = index, team
        self.version = int(self.receive()["version"])

    @property
    def log(self) -> list[str]:
        return self._team.log(self.index)

    def receive(self, limit_s: float = ANSWER_S) -> Answer:
        """Return the answer; RankError if it is an error, or there is none."""
        answer: Answer = json.loads(self.line(limit_s))
        if not answer["ok"]:
            text = f"{answer['error']} ({answer['last_error']})".replace(" ()", "")
            raise RankError(f"{self.name}: {text}", answer)
        return answer

    def ask(self, command: str, limit_s: float = ANSWER_S) -> Answer:
        self.send(command)
        return self.receive(limit_s)

    def _last_warning(self) -> str:
        warnings = [line for line in self.log if _COMPLAINT.search(line)]
        return f": {warnings[-1]}" if warnings else ""

    def late(self, limit_s: float) -> HarpError:
        return RankError(f"{self.name}: no answer in {limit_s:.0f} s{self._last_warning()}")

    def ended(self) -> HarpError:
        status = self.process.wait(ANSWER_S)
        text = f"{self.name} ended with status {status}{self._last_warning()}"
        return EmulationError(text) if status == _EMULATION_EXIT else RankError(text)


class Ranks(Closing):
    """One rank on each host; close() ends them."""

    def __init__(
        self,
        hosts: Sequence[Host],
        version: str,
        environments: Sequence[Mapping[str, str]],
        *,
        commands: Sequence[Sequence[str | Path]] | None = None,
        pinned: bool = False,
    ) -> None:
        """Start the ranks. commands: for each rank, a prefix of its command line. pinned: each has
        a processor.
        """
        library = wheels.library(version)
        program = [_paths.find("harp-nccl-rank"), library, wheels.layout_file(library)]
        self._team = Team("harp-nccl")
        self.ranks: list[Rank] = []
        try:
            for index, host in enumerate(hosts):
                command = [*(commands[index] if commands else ()), *program]
                cpu = index if pinned else None
                env = environments[index]
                self._team.start(host, command, cpu=cpu, env=env, stdin=subprocess.PIPE)
            self.ranks += [Rank(self._team, index) for index in range(len(hosts))]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> Rank:
        return self.ranks[index]

    def ask(self, command: str, limit_s: float = ANSWER_S) -> list[Answer]:
        """Send a command to all ranks; return the answers. {rank} and {ranks} are replaced."""
        for rank in self.ranks:
            rank.send(command.format(rank=rank.index, ranks=len(self.ranks)))
        deadline = time.monotonic() + limit_s
        return [rank.receive(max(deadline - time.monotonic(), 0.1)) for rank in self.ranks]

    def init(self, comm: int = 0) -> list[Answer]:
        unique = self.ranks[0].ask("id")["id"]
        return self.ask(f"init {comm} {unique} {{ranks}} {{rank}}")

    def run(self, operation: str, size_bytes: int, comm: int = 0) -> int:
        """Run one operation; return the number of wrong bytes on all ranks."""
        self.ask(f"start {comm} {operation} {size_bytes}")
        return sum(answer["wrong"] for answer in self.ask(f"finish {comm}"))

    def close(self) -> None:
        for rank in self.ranks:
            rank.end()
        for rank in self.ranks:
            rank.close()
        self._team.close()
