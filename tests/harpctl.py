# SPDX-License-Identifier: Apache-2.0
"""harpctl in a process, with only those HARP_ variables that a test sets."""

import os
import sys

from programs import Done, finished

MAIN = "from harp.cli import main; main()"
COMMAND = [sys.executable, "-c", MAIN]
# Runs as a user without other processes, whose statistics harpctl could read otherwise. This user
# can't read the modules, so they are imported before.
_WITHOUT_ROOT = """
import os, difflib, importlib
from harp.cli import COMMANDS, main
for module in COMMANDS.values():
    importlib.import_module(f'harp.cli.{module}')
import harp._core, harp._host, harp.demo.run, harp.daemon.takeover, harp.daemon.client
os.setgroups([])
os.setgid(64873)
os.setuid(64873)
main()
"""


def _run(code: str, arguments: tuple[str, ...], environ: dict[str, str]) -> Done:
    base = {name: value for name, value in os.environ.items() if not name.startswith("HARP_")}
    if "HARP_BUILD" in os.environ:
        base["HARP_BUILD"] = os.environ["HARP_BUILD"]
    return finished([sys.executable, "-c", code, *arguments], env=base | environ, timeout=120)


def harpctl(*arguments: str, **environ: str) -> Done:
    return _run(MAIN, arguments, environ)


def harpctl_without_root(*arguments: str, **environ: str) -> Done:
    return _run(_WITHOUT_ROOT, arguments, environ)
