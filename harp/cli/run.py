# SPDX-License-Identifier: Apache-2.0
"""harpctl env and run: print or set a job's environment."""

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from harp import _paths, files
from harp import config as settings
from harp import output as console
from harp.cli.options import FilePath, complete_assignment, file_option, plugin_option
from harp.config import jobs
from harp.config.document import ConfigError
from harp.config.loading import COMMAND_LINE
from harp.errors import Exit, HarpError


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --set, --file, --plugin, --trace and --capture."""
    trace = click.option(
        "--trace",
        metavar="DIR",
        type=FilePath(),
        help="Trace the job's network events to this directory, for `harpctl trace`.",
    )
    capture = click.option(
        "--capture",
        metavar="DIR",
        type=FilePath(),
        help="Write the headers of HARP's newest packets to this directory, as pcapng files.",
    )
    assignments = click.option(
        "--set",
        "-s",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete_assignment,
        help="Set a key (tcp.ecn) or variable (HARP_ECN); overrides environment and file.",
    )
    return assignments(file_option(plugin_option(trace(capture(command)))))


def _assignments(texts: tuple[str, ...]) -> dict[str, str]:
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        result[name] = value
    return result


def job_variables(
    assignments: tuple[str, ...],
    file: Path | None,
    plugin: Path | None,
    trace: Path | None,
    capture: Path | None,
) -> dict[str, str]:
    """Return the variables to add to a job's environment."""
    cli_settings = _assignments(assignments)
    for name, directory in (("HARP_TRACE", trace), ("HARP_CAPTURE", capture)):
        if directory is not None:
            with files.writing(directory):
                directory.mkdir(parents=True, exist_ok=True)
            cli_settings[name] = str(directory.absolute())  # the job may change directory
    try:
        config = settings.load(file, settings=cli_settings)
    except ConfigError as error:
        if all(problem.place == COMMAND_LINE for problem in error.problems):
            raise ConfigError(error.problems, Exit.USAGE) from None
        raise
    for warning in config.warnings:
        console.print_line(f"harpctl: warning: {warning}", console.err)
    return jobs.variables(config, _paths.plugin(plugin).resolve(), os.environ)


@click.command()
@job_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["shell", "plain", "json"]),
    default="shell",
    help="Lines for eval, NAME=VALUE lines (docker --env-file), or one JSON object.",
)
def env(output: str, **options: Any) -> None:
    """Print the environment variables that make a job use HARP.

    They are the plugin's name and directory, NCCL_NET=HARP (an error instead of NCCL's silent
    fallback), and job settings of harp.toml that differ from their defaults. Variables that are
    already set override the file and are left out.

    \b
    eval "$(harpctl env)"
    harpctl env --set tcp.congestion=dctcp
    harpctl env -o plain > job.env
    """
    variables = job_variables(**options)
    if output == "json":
        console.print_json(variables)
        return
    for name, value in variables.items():
        plain = f"{name}={value}"
        click.echo(plain if output == "plain" else f"export {name}={shlex.quote(value)}")


def _no_command(name: str, error: OSError) -> HarpError:
    """Return why the command could not be started, with a shell's wording and exit code."""
    if "/" not in name and shutil.which(name) is None:
        return HarpError(f"{name}: no such command on the PATH", Exit.NOT_FOUND)
    if isinstance(error, FileNotFoundError):
        if "/" in name and not Path(name).exists():
            return HarpError(f"{name}: no such file", Exit.NOT_FOUND)
        return HarpError(
            f"{name}: its interpreter (first line, or loader) does not exist", Exit.NOT_FOUND
        )
    with contextlib.suppress(PermissionError):  # a directory on the path can't be searched
        if "/" in name and Path(name).is_dir():
            return HarpError(f"{name} is a directory, not a command", Exit.NOT_EXECUTABLE)
    if isinstance(error, PermissionError):
        remedy = "chmod +x it, or a directory on its path?"
        return HarpError(f"{name} may not be executed: {remedy}", Exit.NOT_EXECUTABLE)
    return HarpError(f"{name} can't be executed: {error.strerror}", Exit.NOT_EXECUTABLE)


def execute(command: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    """Replace this process with the command; exit code, signals and terminal are the command's."""
    if not command[0]:
        raise HarpError("the command's name is empty", Exit.NOT_FOUND)
    # Python ignores these signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise _no_command(command[0], error) from None
    except ValueError as error:  # a null byte
        raise HarpError(f"{command[0]!r}: {error}", Exit.USAGE) from None


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@job_options
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]..."
)
def run(command: tuple[str, ...], **options: Any) -> None:
    """Run CMD with the variables of `harpctl env`.

    harpctl becomes CMD: exit code and signals are CMD's. 127: CMD does not exist, 126: it can't be
    executed.

    \b
    harpctl run -- python train.py
    harpctl run --set path=xdp -- torchrun --nproc-per-node 8 train.py
    harpctl run -s HARP_INSTANCES=2 -- all_reduce_perf -b 8 -e 64M -f 2
    """
    variables = job_variables(**options)
    for name in ("NCCL_NET_PLUGIN", "NCCL_NET"):
        before = os.environ.get(name, "")
        if before and before != variables[name]:
            text = f"harpctl: {name}={before} becomes {variables[name]}"
            console.print_line(text, console.err)
    execute(command, os.environ | variables)
