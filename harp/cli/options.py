# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share. Those of test hosts are in harp.cli.lab_options."""

import math
from pathlib import Path
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


class FilePath(click.Path):  # type: ignore[type-arg,unused-ignore]
    """A path as pathlib.Path. An empty one is an error: the shell variable was not set."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


file_option = click.option(
    "--file",
    metavar="FILE",
    type=FilePath(),
    help="The harp.toml to read (default: HARP_CONFIG, else /etc/harp/harp.toml).",
)
plugin_option = click.option(
    "--plugin", metavar="PATH", type=FilePath(), help="The plugin to use (default: HARP's own)."
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or one JSON document for scripts.",
)
