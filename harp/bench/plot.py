# SPDX-License-Identifier: Apache-2.0
"""Plots of benches, by matplotlib, without a display."""

import tempfile
from pathlib import Path
from typing import Any

from harp import files
from harp.errors import Exit, HarpError


def figure(**options: Any) -> Any:
    """Return a new figure; HarpError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HarpError("--plot needs matplotlib: pip install matplotlib", Exit.MISSING) from None
    return Figure(layout="constrained", **options)


def check(file: Path | None) -> None:
    """Raise HarpError before minutes of measuring if a plot cannot be written there."""
    if file is None:
        return
    formats = figure().canvas.get_supported_filetypes()
    if file.suffix.lstrip(".") not in formats:
        raise HarpError(f"{file}: end the name in .png or .svg", Exit.USAGE)
    with files.writing(file), tempfile.TemporaryFile(dir=file.parent):
        pass


def save(made: Any, file: Path) -> None:
    """Write the figure in the format that the file's name ends in."""
    with files.writing(file):
        made.savefig(file, dpi=90)
