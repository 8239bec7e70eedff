#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions per packet, counted by callgrind: tools/instructions.py [BUILD_DIR].

For each kind of poll that tests/sim/sim_bench.c measures, and for 1, 100 and 10,000 flows: how many
instructions the stack executes; then the same for a stack that publishes its statistics
(harp_page.h) and is polled every microsecond. The wire's own (its functions, and the libc's copies
that it asks for) are not counted. The numbers depend on compiler and options, not on the load.
"""

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


def instructions(sim_bench: Path, what: str, flows: int, *page: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--toggle-collect=measured",
                f"--callgrind-out-file={profile}",
                str(sim_bench),
                what,
                str(flows),
                str(PACKETS),
                *page,
            ],
            check=True,
            capture_output=True,
        )
        left_out = re.compile("^wire_") if what in NO_PACKET else NOT_THE_STACK
        return round(own_costs(profile.read_text(), left_out) / PACKETS)


def main() -> int:
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    sim_bench = build / "tests/sim/sim_bench"
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
