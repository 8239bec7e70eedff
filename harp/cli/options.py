# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share. Those of test hosts are in harp.cli.lab_options."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """Reject nan, which click accepts in every range, and inf."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or one JSON document for scripts.",
)
