# SPDX-License-Identifier: Apache-2.0
"""Benchmarks between hosts on this machine; harp-bench and harp-wire measure in C."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp import _paths
from harp.errors import HarpError
from harp.lab import Host, Lab, LabOptions, memif
from harp.lab.team import Team
from harp.plugin_log import path_in_use

ROOT_PORT = 7000
_WRONG, _PEER_LOST = 1, 5
_EXIT_TEXTS = {_WRONG: "data arrived wrong", 3: "hang", 4: "plugin error", _PEER_LOST: "peer lost"}


def alternate(names: Sequence[str], rounds: int, say: Callable[[str], None]) -> Iterator[str]:
    """Yield all names in each round; a round begins with another one than the round before, because
    the machine's speed changes within minutes.
    """
    for index in range(rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            say(f"round {index + 1}: {name}")
            yield name


@dataclass(frozen=True)
class BenchOptions:
    """Options of harp-bench; None selects its default."""

    mode: str = "lat"
    plugin: str | Path | None = None
    path: str = "auto"
    sizes: str | None = None  # harp-bench's --sizes; idle has none
    channels: int = 1
    datacheck: bool = True
    seconds: float | None = None  # idle: seconds of each phase
    timeout_s: float = 60
    environment: Mapping[str, str] = field(default_factory=dict)  # set for every rank
    nic: str = "veth"  # or memif.NIC

    def arguments(self) -> list[str]:
        """Return harp-bench's command line, without rank and root."""
        words = [self.mode, "--plugin", str(_paths.plugin(self.plugin))]
        words += ["--channels", str(self.channels), "--timeout", str(self.timeout_s)]
        words += ["--datacheck", str(int(self.datacheck))]
        for name, value in (("--sizes", self.sizes), ("--seconds", self.seconds)):
            if value is not None:
                words += [name, str(value)]
        return words


def _environment(lab: LabOptions, options: BenchOptions, rank: int, folder: Path) -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    mine = {"HARP_PATH": options.path, **options.environment}
    if options.nic == memif.NIC:
        mine |= memif.environment(lab, rank, folder)
    return keep | mine


def _start_rank(team: Team, lab: Lab, host: Host, options: BenchOptions) -> None:
    command: list[str | Path] = [_paths.find("harp-bench"), *options.arguments()]
    command += ["--rank", str(host.index), "--ranks", str(len(lab.hosts))]
    command += ["--root", lab.hosts[0].endpoint(ROOT_PORT), "--ifname", f"={host.ifname}"]
    env = _environment(lab.options, options, host.index, team.folder)
    team.start(host, command, cpu=host.index, env=env)


def run_bench(lab: Lab, options: BenchOptions) -> dict[str, Any]:
    """Run one harp-bench per host; return rank 0's report. HarpError quotes the failed rank."""
    with Team("harp-bench") as team:
        for host in lab.hosts:
            _start_rank(team, lab, host, options)
        # Wrong data is a result, and its table is useful; every other failure is an error.
        printed, *_ = team.finish(good=(0, _WRONG), late=(_PEER_LOST,), texts=_EXIT_TEXTS)
        is_good = not any(process.returncode for process in team.processes)
    try:
        report: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise HarpError(f"harp-bench printed no JSON: {printed[:200]!r}") from None
    report["ok"] = report["ok"] and is_good
    return report


def path(report: dict[str, Any]) -> str:
    """Return the plugin's log line about its path; empty for another plugin."""
    return path_in_use([str(entry["text"]) for entry in report["log"]])


# --------------------------------------------------------------------------------------------------
# Raw frames.
#
@dataclass(frozen=True)
class WireOptions:
    """Options of harp-wire."""

    seconds: int = 3
    xdp: str = "auto"
    frame_bytes: int | None = None


def run_wire(lab: Lab, test: str, options: WireOptions) -> dict[str, Any]:
    """Run one harp-wire test (send, pingpong) from host 0 to host 1."""
    tool = _paths.find("harp-wire")
    library = _paths.find(_paths.XDP_LIBRARY).parent
    shared: list[str | Path] = ["--seconds", str(options.seconds), "--xdp", options.xdp]
    shared += ["--lib-dir", library]
    if options.frame_bytes is not None:
        shared += ["--size", str(options.frame_bytes)]
    client, server = lab.hosts[:2]
    with Team("harp-wire") as team:
        team.start(server, [tool, "serve", server.ifname, server.address, *shared], cpu=1)
        team.ready()
        team.start(client, [tool, test, client.ifname, server.address, *shared], cpu=0)
        report: dict[str, Any] = json.loads(team.finish()[1])
    return report
