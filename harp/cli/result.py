# SPDX-License-Identifier: Apache-2.0
"""How a bench ends: its report, and exit code 1 when it says so."""

from collections.abc import Callable
from typing import Any

import click

from harp import output as console
from harp.errors import Exit

VERDICT = {True: "met", False: "MISSED"}  # of a goal


def show(report: Any, output: str, print_table: Callable[[Any], None], *, is_good: bool) -> None:
    """Print the report as JSON, or by print_table; exit code 1 when it is not good."""
    if output == "json":
        console.print_json(report)
    else:
        print_table(report)
    if not is_good:
        raise click.exceptions.Exit(Exit.FAILURE)
