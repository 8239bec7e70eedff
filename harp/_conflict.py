# SPDX-License-Identifier: Apache-2.0
"""Detects PyPI's other project named `harp`, which installs the same import package as harp-nccl.

Installing both into one environment mixes the files of two unrelated packages in one folder.
"""

from pathlib import Path


def problem(site: Path | None = None) -> str:
    """Return the conflict and its remedy; "" if site (default: this one) has no package `harp`."""
    folder = site or Path(__file__).resolve().parent.parent
    for pattern in ("harp-*.dist-info", "harp-*.egg-info"):
        for path in sorted(folder.glob(pattern)):
            other = f"harp {path.stem.removeprefix('harp-')}"
            return (
                f"the unrelated PyPI package {other} is installed over harp-nccl's files; remove it"
                " with `pip uninstall harp`, then install harp-nccl with --force-reinstall"
            )
    return ""
