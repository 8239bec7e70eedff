#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions, counted by callgrind: tools/instructions.py [BUILD_DIR] [sealed|bulk|lanes].

For each kind of poll that tools/cost/sim_bench.c measures, and for 1, 100 and 10,000 flows: the
instructions the stack executes; then the same for a stack that publishes its statistics
(harp_page.h) and is polled every microsecond. The wire's own (its functions, and the libc's copies
that it asks for) are not counted. With `bulk`: of a segment in the middle of a stream, where
polls find 64 of them (tools/cost/sim_bulk.c), the card's functions left out. With `sealed`: of a
message on an encrypted lane instead, without the lane beneath (tests/unit/lane/encryption_bench.c).
With `lanes`: of a small message over kernel lanes through the plugin, both ends together, and over
the reference plugin's socket (tools/driver/cost.c); what the kernel executes is not seen. The
numbers depend on compiler and options, not on the load; valgrind has no AVX-512.
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
SEALED_BYTES = (40, 1024, 16_384, 65_536, 1 << 20)
SEALED_MESSAGES = 50
NOT_THE_LANE = re.compile(r"^(pipe_|mem(cpy|move|set)|__mem(cpy|move|set))")
NOT_THE_STACK = re.compile(r"^(wire_|mem(cpy|move|set)|__mem(cpy|move|set))")
NOT_BULK = re.compile(r"^(pair_|bulk_|step_|sender|receiver)")
BULK_PACKETS = 20_000
NOT_THE_PLUGIN = re.compile(r"^(net_|messages|polls|measured|check|finish|post_|report|main)")
COST_MESSAGES = 1000
COST_LANES = {
    "1 lane": ("plugin/libnccl-net-harp.so", {"HARP_KERNEL_LANES": "1"}),
    "2 lanes": ("plugin/libnccl-net-harp.so", {"HARP_KERNEL_LANES": "2"}),
    "16 lanes": ("plugin/libnccl-net-harp.so", {"HARP_KERNEL_LANES": "16"}),
    "1 socket": ("tools/driver/libnccl-net-sock.so", {}),
}
# How often harp-cost does it: some are warmed up.
COST_ROWS = (
    ("a poll in vain", "polls", 5, "1"),
    ("8 B, one at a time", "messages", 6, "1"),
    ("8 B, 8 in flight", "messages", 6, "8"),
)
NO_PACKET = ("idle", "publish")  # of these polls all copies are the stack's own


def own_costs(profile: str, left_out: re.Pattern[str]) -> int:
    """Sum of the exclusive costs of the functions that count, from a callgrind profile."""
    names: dict[str, str] = {}
    total = 0
    counts = skip = False
    for line in profile.splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            if name:
                names[number] = name
            counts = not left_out.match(names[number])
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
    left_out: re.Pattern[str],
    *command: str,
    inside: str = "measured",
    environment: dict[str, str] | None = None,
) -> int:
    """Instructions of the command inside of a function of it."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                f"--toggle-collect={inside}",
                f"--callgrind-out-file={profile}",
                *command,
            ],
            check=True,
            capture_output=True,
            env=os.environ | (environment or {}),
        )
        return own_costs(profile.read_text(), left_out)


def instructions(sim_bench: Path, what: str, flows: int, *page: str) -> int:
    left_out = re.compile("^wire_") if what in NO_PACKET else NOT_THE_STACK
    command = (str(sim_bench), what, str(flows), str(PACKETS), *page)
    return round(callgrind(left_out, *command) / PACKETS)


def sealed(encryption_bench: Path) -> None:
    print(f"{'instructions of a sealed message':36}" + "".join(f"{n:>10} B" for n in SEALED_BYTES))
    for what in ("send", "receive"):
        counts = []
        for size in SEALED_BYTES:
            command = (str(encryption_bench), what, str(size), str(SEALED_MESSAGES))
            counts.append(callgrind(NOT_THE_LANE, *command) / SEALED_MESSAGES)
        print(f"{what:36}" + "".join(f"{count:>12.0f}" for count in counts), flush=True)
        each = [count / size for count, size in zip(counts, SEALED_BYTES, strict=True)]
        print(f"{'  a byte':36}" + "".join(f"{count:>12.3f}" for count in each), flush=True)


def bulk(sim_bulk: Path) -> None:
    cases = [(mtu, flows) for mtu in (1500, 9000) for flows in (1, 16)]
    print(
        f"{'instructions of a segment':30}"
        + "".join(f"{f'{mtu}, {flows} flow' + 's' * (flows > 1):>16}" for mtu, flows in cases)
    )
    for copy, text in ((0, "frames"), (1, "copied")):
        for side in ("sender", "receiver"):
            counts = []
            for mtu, flows in cases:
                args = (f"mtu={mtu}", f"conns={flows}", f"copy={copy}", f"packets={BULK_PACKETS}")
                counts.append(callgrind(NOT_BULK, str(sim_bulk), *args, inside=side) / BULK_PACKETS)
            print(f"{f'{text}, {side}':30}" + "".join(f"{n:>16.0f}" for n in counts), flush=True)


def lanes(build: Path) -> None:
    print(f"{'instructions of a message':30}" + "".join(f"{name:>10}" for name in COST_LANES))
    for text, inside, times, in_flight in COST_ROWS:
        counts = []
        for plugin, shape in COST_LANES.values():
            environment = {
                "HARP_PATH": "kernel",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_NET_PLUGIN": str((build / plugin).resolve()),
            }
            command = (str(build / "tools/driver/harp-cost"), "8", str(COST_MESSAGES), in_flight)
            counts.append(
                callgrind(NOT_THE_PLUGIN, *command, inside=inside, environment=environment | shape)
                / (times * COST_MESSAGES)
            )
        print(f"{text:30}" + "".join(f"{count:>10.0f}" for count in counts), flush=True)


def main() -> int:
    words = sys.argv[1:]
    part = next((word for word in words if word in ("sealed", "bulk", "lanes")), None)
    words = [word for word in words if word != part]
    build = Path(words[0] if words else "build")
    if part == "sealed":
        sealed(build / "tests/unit/encryption_bench")
        return 0
    if part == "lanes":
        lanes(build)
        return 0
    if part == "bulk":
        bulk(build / "tools/cost/sim_bulk")
        return 0
    sim_bench = build / "tools/cost/sim_bench"
    if not sim_bench.exists():
        print(f"instructions.py: no {sim_bench}: run `make build`", file=sys.stderr)
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
