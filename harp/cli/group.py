# SPDX-License-Identifier: Apache-2.0
"""A click group with untruncated help, which suggests a command for a mistyped one."""

import click

from harp.words import suggestion


def first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


class Group(click.Group):
    """A group of commands, which are registered with it or imported lazily by a subclass."""

    def summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return first_paragraph((command.help or "") if command else "")

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the names of commands by the title under which the help lists them."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, names in self.sections(ctx).items():
            rows = [(name.ljust(width), self.summary(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that args begin with; a usage error suggests another name."""
        name = args[0]
        if not ctx.resilient_parsing and name[:1] != "-" and self.get_command(ctx, name) is None:
            ctx.fail(f"no command {name!r}{suggestion(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)
