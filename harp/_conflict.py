# SPDX-License-Identifier: Apache-2.0
"""Detects PyPI's other project named `harp`, which installs the same import package as harp-nccl.

Installing both into one environment mixes the files of two unrelated packages in one folder.
"""

from pathlib import Path


def other_distribution(site: Path | None = None) -> str:
    """Return an installed distribution `harp`, as "harp 1.2"; empty without one. site: folder to
    search; default: the one that contains this package.
    """
    folder = site or Path(__file__).resolve().parent.parent
    for pattern in ("harp-*.dist-info", "harp-*.egg-info"):
        for path in sorted(folder.glob(pattern)):
            return f"harp {path.stem.removeprefix('harp-')}"
    return ""


def problem(site: Path | None = None) -> str:
    """One line that names the conflict and its remedy; empty without a conflict."""
    other = other_distribution(site)
    if not other:
        return ""
    return (
        f"the unrelated PyPI package {other} is installed over harp-nccl's files; remove it with "
        "`pip uninstall harp`, then install harp-nccl with --force-reinstall"
    )
