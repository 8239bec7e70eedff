#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an idle stack costs a core, with a statistics page and without: tools/idle.py [SECONDS].

tools/cost/sim_idle.c measures by getrusage, over a minute by default, with 0 and 100 idle
connections; both kinds at the same time, so that a busy machine treats them alike.
"""

import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"


def main() -> int:
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    program = BUILD / "tools/cost/sim_idle"
    if not program.exists():
        print(f"idle.py: no {program}: run `make build`", file=sys.stderr)
        return 2
    runs = [
        (conns, page, subprocess.Popen([program, seconds, conns, *page], stdout=subprocess.PIPE))
        for conns in ("0", "100")
        for page in ([], ["page"])
    ]
    failed = False
    for conns, page, run in runs:
        said = run.communicate()[0].decode().strip()
        words = f"{conns} connections, {'with a page' if page else 'without a page'}"
        print(f"{words:34}{said}")
        failed |= run.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
