#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what is generated: conf/harp.toml and docs/configuration.md of the list of settings,
docs/check.md of the list of checks, docs/metrics.md of the lists of statistics.

Run it by the environment's Python after a change of those lists; with --check it
writes nothing and exits 1 when a file is out of date, as tests/python/test_config_docs.py does.
"""

import sys
from pathlib import Path

from harp.config import reference
from harp.doctor import document
from harp.stats import reference as metrics

ROOT = Path(__file__).resolve().parent.parent


def generated() -> dict[Path, str]:
    """Path in the tree -> what it must contain."""
    return {
        ROOT / "conf" / "harp.toml": reference.to_toml(),
        ROOT / "docs" / "configuration.md": reference.to_markdown(),
        ROOT / "docs" / "check.md": document.table(),
        ROOT / "docs" / "metrics.md": "\n".join(metrics.document()) + "\n",
    }


def stale() -> list[Path]:
    """The files that are not what they must be."""
    return [
        path
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Writes, or checks."""
    late = stale()
    if "--check" in sys.argv[1:]:
        for path in late:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if late else 0
    for path in late:
        path.parent.mkdir(exist_ok=True)
        path.write_text(generated()[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
