# SPDX-License-Identifier: Apache-2.0
"""harpctl logs: harpd's log, in its run_dir or in the systemd journal."""

import os
import shutil
import subprocess
from collections import deque
from pathlib import Path

import click

from harp import config as settings
from harp.cli.options import file_option
from harp.errors import Exit, HarpError
from harp.files import NOT_REGULAR

LOG_NAME = "harpd.log"
UNIT = "harpd"


def log_path(file: Path | None = None) -> Path:
    """Return the file to which harpd logs after `harpctl start`; it may be absent."""
    return Path(settings.load(file).daemon.run_dir) / LOG_NAME


def _journal(lines: int) -> list[str]:
    return ["journalctl", "--unit", UNIT, "--lines", str(lines), "--no-pager"]


def _has_journal() -> bool:
    """Tell whether systemd's journal has lines of harpd."""
    if shutil.which("journalctl") is None:
        return False
    command = [*_journal(1), "--quiet", "--output", "cat"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and bool(done.stdout.strip())


def _check(path: Path) -> None:
    if not path.exists():
        raise HarpError(
            f"no log: neither {path} nor a journal of the systemd unit {UNIT} exists; "
            "`harpctl start` starts harpd with a log",
            Exit.MISSING,
        )
    if not path.is_file():
        raise HarpError(f"{path} {NOT_REGULAR}; remove it, so that `harpctl start` makes a new one")
    if not os.access(path, os.R_OK):
        raise HarpError(f"{path} can't be read by this user; run as root", Exit.PRIVILEGE)


def log_tail(path: Path, lines: int) -> str:
    if not path.exists() and _has_journal():
        done = subprocess.run(_journal(lines), capture_output=True, text=True, check=False)
        return done.stdout
    _check(path)
    with path.open(errors="replace") as file:
        return "".join(deque(file, lines))


@click.command()
@file_option
@click.option("--lines", "-n", type=click.IntRange(1, 1_000_000), default=100, help="Last lines.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they come, until Ctrl-C.")
def logs(file: Path | None, lines: int, follow: bool) -> None:
    """Print harpd's log.

    The log is harpd.log in run_dir if `harpctl start` started harpd, else the systemd journal.

    \b
    harpctl logs
    harpctl logs -n 1000
    harpctl logs --follow
    """
    path = log_path(file)
    if not follow:
        click.echo(log_tail(path, lines), nl=False)
        return
    if not path.exists() and _has_journal():
        command = [*_journal(lines), "--follow"]
    else:
        _check(path)
        command = ["tail", "--lines", str(lines), "--follow=name", "--retry", str(path)]
    os.execvp(command[0], command)
