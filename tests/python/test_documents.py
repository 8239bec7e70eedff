# SPDX-License-Identifier: Apache-2.0
"""What README.md, ARCHITECTURE.md and CONTRIBUTING.md name is there: files and commands."""

import re
import shlex
from pathlib import Path

import click
import pytest

from harp.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
# A path or a file's name, perhaps with a star: `plugin/comm*.c`, `tcp_in.c`, `docs/lanes.md`.
PATH = re.compile(r"`([\w*./-]+\.(?:c|h|pyx|pxd|py|md|txt|service|build)|(?:[\w*-]+/)+)`")
MADE = {".venv/", "build/", "build-long/", "build-coverage/"}
# Where a document's bare names lie, as it says itself.
FOLDERS = ("", "dataplane", "harp", "plugin", "dataplane/*", "harp/*", "tests/*")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def is_there(name: str) -> bool:
    places = [f"{folder}/{name}".strip("/") for folder in FOLDERS]
    return any(found for place in places for found in ROOT.glob(place))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_is_named_is_there(document: str) -> None:
    named = set(PATH.findall(text_of(document))) - MADE
    assert named, "the document names files"
    assert not sorted(name for name in named if not is_there(name))


def harpctl_lines() -> list[str]:
    """The command lines of README.md, without comments."""
    lines = re.findall(
        r"^    harpctl (.*)$|`(?:\.venv/bin/)?harpctl ([^`]*)`", text_of("README.md"), re.M
    )
    return [(indented or quoted).split("#")[0].strip() for indented, quoted in lines]


def test_readme_has_commands() -> None:
    assert len(harpctl_lines()) > 30


@pytest.mark.parametrize("line", sorted(set(harpctl_lines())))
def test_every_command_of_the_readme_is_understood(line: str) -> None:
    words = shlex.split(line.split(";")[0])
    for name in words[0].split("|"):  # start|stop|restart
        command, rest = cli.get_command(click.Context(cli), name), words[1:]
        while isinstance(command, click.Group) and rest:
            command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
        assert command is not None, "harpctl has no such command"
        if command.name == "run":  # what follows is another program's
            rest = rest[: rest.index("--")]
        options = {option for each in command.params for option in each.opts}
        assert {word for word in rest if word.startswith("-")} <= options
