#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts instructions with callgrind: tools/instructions.py [BUILD_DIR] [lanes].

Prints the instructions that the stack executes for each kind of poll of tools/cost/sim_bench.c,
with 1, 100 and 10,000 flows; then the same for a stack that publishes its statistics (harp_page.h)
and is polled every microsecond. The instructions and copies of the wire are not counted.

With `lanes`, prints the instructions of a small message (tools/driver/cost.c) through the plugin
over kernel lanes, and through the reference plugin: both ends together, without the kernel. The
numbers depend on compiler and options, not on the load. valgrind does not support AVX-512.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FLOWS = (1, 100, 10_000)
PACKETS = 2000
ROWS = (
    ("rx", "data received, in order"),
    ("ack-rx", "pure ACK received"),
    ("tx", "data sent"),
    ("ack-tx", "pure ACK sent"),
    ("idle", "poll with nothing to do"),
)
PAGE_ROWS = (*ROWS, ("publish", "poll with nothing to do but to publish"))
NOT_THE_STACK = re.compile(r"^(wire_|mem(cpy|move|set)|__mem(cpy|move|set))")
NOT_THE_PLUGIN = re.compile(r"^(net_|send_messages|poll_receive|measured|check|finish|post_|main)")
COST_MESSAGES = 1000
COST_PLUGINS = {
    "1 lane": ("plugin/libnccl-net-harp.so", {"HARP_KERNEL_LANES": "1"}),
    "2 lanes": ("plugin/libnccl-net-harp.so", {"HARP_KERNEL_LANES": "2"}),
    "1 socket": ("tools/driver/libnccl-net-sock.so", {}),
}
COST_ROWS = (
    ("poll without a message", "polls", "1"),
    ("8 B, one at a time", "messages", "1"),
    ("8 B, 8 in flight", "messages", "8"),
)
NO_PACKET = ("idle", "publish")  # in these polls, all copies are those of the stack


def exclusive_costs(profile: str, excluded: re.Pattern[str]) -> int:
    """Sum of the exclusive costs of a callgrind profile, without the excluded functions."""
    names: dict[str, str] = {}
    total = 0
    counts = skip = False
    for line in profile.splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            if name:
                names[number] = name
            counts = not excluded.match(names[number])
        elif line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names[number] = name
        elif line.startswith("calls="):
            skip = True  # the next line is the callee's cost
        elif re.match(r"^[+\-*\d]", line):
            if counts and not skip:
                total += int(line.split()[1])
            skip = False
    return total


def callgrind(
    excluded: re.Pattern[str], *command: str, environment: dict[str, str] | None = None
) -> int:
    """Instructions of the command in its function measured()."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        options = ("--toggle-collect=measured", f"--callgrind-out-file={profile}")
        # Fair scheduling: threads that wait must not block the others.
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--fair-sched=yes", *options, *command],
            check=True,
            capture_output=True,
            env=os.environ | (environment or {}),
        )
        return exclusive_costs(profile.read_text(), excluded)


def instructions(sim_bench: Path, what: str, flows: int, *page: str) -> int:
    excluded = re.compile("^wire_") if what in NO_PACKET else NOT_THE_STACK
    command = (str(sim_bench), what, str(flows), str(PACKETS), *page)
    return round(callgrind(excluded, *command) / PACKETS)


def lanes(build: Path) -> None:
    print(f"{'instructions of a message':30}" + "".join(f"{name:>10}" for name in COST_PLUGINS))
    for text, what, in_flight in COST_ROWS:
        counts = []
        for plugin, variables in COST_PLUGINS.values():
            environment = {
                "HARP_PATH": "kernel",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_NET_PLUGIN": str((build / plugin).resolve()),
            } | variables
            harp_cost = str(build / "tools/driver/harp-cost")
            command = (harp_cost, what, "8", str(COST_MESSAGES), in_flight)
            count = callgrind(NOT_THE_PLUGIN, *command, environment=environment)
            counts.append(count / COST_MESSAGES)
        print(f"{text:30}" + "".join(f"{count:>10.0f}" for count in counts), flush=True)


def main() -> int:
    args = [arg for arg in sys.argv[1:] if arg != "lanes"]
    build = Path(args[0] if args else "build")
    if "lanes" in sys.argv[1:]:
        lanes(build)
        return 0
    sim_bench = build / "tools/cost/sim_bench"
    if not sim_bench.exists():
        print(f"instructions.py: {sim_bench} is missing: run `make build`", file=sys.stderr)
        return 2
    for title, rows, page in (("without a page", ROWS, ()), ("with a page", PAGE_ROWS, ("page",))):
        print(
            f"{'instructions ' + title:40}"
            + "".join(f"{flows:>8} flow{'s' * (flows > 1):1}" for flows in FLOWS)
        )
        for what, text in rows:
            counts = [instructions(sim_bench, what, flows, *page) for flows in FLOWS]
            print(f"{text:40}" + "".join(f"{count:>14}" for count in counts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
