#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions, counted by callgrind: tools/instructions.py [BUILD_DIR] [encrypted].

For each kind of poll that tools/cost/sim_bench.c measures, and for 1, 100 and 10,000 flows: the
instructions the stack executes; then the same for a stack that publishes its statistics
(harp_page.h) and is polled every microsecond. The wire's own instructions are not counted, nor the
copies that it makes. With `encrypted`: of a message on an encrypted lane instead, without the lane
beneath (tests/unit/lane/encryption_bench.c). The numbers depend on compiler and options, not on the
load; valgrind has no AVX-512.
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
ENCRYPTED_BYTES = (40, 1024, 16_384, 65_536, 1 << 20)
ENCRYPTED_MESSAGES = 50
NOT_THE_LANE = re.compile(r"^(pipe_|mem(cpy|move|set)|__mem(cpy|move|set))")
NOT_THE_STACK = re.compile(r"^(wire_|mem(cpy|move|set)|__mem(cpy|move|set))")
NO_PACKET = ("idle", "publish")  # in these polls all copies are the stack's own


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


def callgrind(left_out: re.Pattern[str], *command: str) -> int:
    """Instructions of the command inside its function measured()."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        options = ("--toggle-collect=measured", f"--callgrind-out-file={profile}")
        subprocess.run(
            ["valgrind", "--tool=callgrind", *options, *command], check=True, capture_output=True
        )
        return own_costs(profile.read_text(), left_out)


def instructions(sim_bench: Path, what: str, flows: int, *page: str) -> int:
    left_out = re.compile("^wire_") if what in NO_PACKET else NOT_THE_STACK
    command = (str(sim_bench), what, str(flows), str(PACKETS), *page)
    return round(callgrind(left_out, *command) / PACKETS)


def encrypted(encryption_bench: Path) -> None:
    title = "instructions of an encrypted message"
    print(f"{title:36}" + "".join(f"{n:>10} B" for n in ENCRYPTED_BYTES))
    for what in ("send", "receive"):
        counts = []
        for size in ENCRYPTED_BYTES:
            command = (str(encryption_bench), what, str(size), str(ENCRYPTED_MESSAGES))
            counts.append(callgrind(NOT_THE_LANE, *command) / ENCRYPTED_MESSAGES)
        print(f"{what:36}" + "".join(f"{count:>12.0f}" for count in counts), flush=True)
        each = [count / size for count, size in zip(counts, ENCRYPTED_BYTES, strict=True)]
        print(f"{'  a byte':36}" + "".join(f"{count:>12.3f}" for count in each), flush=True)


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "encrypted"]
    build = Path(words[0] if words else "build")
    if "encrypted" in sys.argv[1:]:
        encrypted(build / "tests/unit/encryption_bench")
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
