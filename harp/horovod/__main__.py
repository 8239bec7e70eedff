# SPDX-License-Identifier: Apache-2.0
"""python -m harp.horovod SCRIPT [ARGUMENTS]: runs a script in which horovod.torch is harp.horovod.

Example: torchrun --nproc-per-node 2 -m harp.horovod train.py --epochs 3
"""

import runpy
import sys
import types
from pathlib import Path


def alias() -> None:
    """Make `import horovod.torch` import harp.horovod, whether Horovod is installed or not."""
    import harp.horovod

    package = types.ModuleType("horovod", "harp.horovod under Horovod's name")
    package.__path__ = []
    package.torch = harp.horovod  # type: ignore[attr-defined]
    sys.modules["horovod"] = package
    sys.modules["horovod.torch"] = harp.horovod


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print("usage: python -m harp.horovod SCRIPT [ARGUMENTS]", file=sys.stderr)
        return 2
    script = sys.argv[1]
    if not Path(script).is_file():
        print(f"harp: error: there is no script {script}", file=sys.stderr)
        return 2
    alias()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
