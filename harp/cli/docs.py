# SPDX-License-Identifier: Apache-2.0
"""harpctl completion and man."""

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from harp.cli import manual
from harp.cli.options import FilePath


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes harpctl's commands and options in SHELL.

    SHELL is bash, zsh or fish.

    \b
    harpctl completion bash > /etc/bash_completion.d/harpctl
    source <(harpctl completion zsh)
    harpctl completion fish > ~/.config/fish/completions/harpctl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "harpctl", "_HARPCTL_COMPLETE").source_vars()
    click.echo(kind.source_template % script)


@click.command()
@click.argument(
    "page", metavar="[PAGE]", type=click.Choice(sorted(manual.PAGES)), default="harpctl"
)
@click.option(
    "--directory",
    metavar="DIR",
    type=FilePath(),
    help="Write all pages there, ready for man -M: man1/harpctl.1 and so on.",
)
def man(page: str, directory: Path | None) -> None:
    """Print a manual page, or write all of them.

    PAGE is harpctl, harpd or harp.toml.

    \b
    harpctl man | man -l -
    harpctl man harp.toml | man -l -
    harpctl man --directory /usr/local/share/man
    """
    if directory is None:
        click.echo(manual.page(page), nl=False)
        return
    for path in manual.write_all(directory):
        click.echo(path)
