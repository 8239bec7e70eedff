# SPDX-License-Identifier: Apache-2.0
"""harpctl: the command line."""

import ast
import contextlib
import importlib
import io
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp import _conflict
from harp import output as console
from harp.cli.group import Group
from harp.closing import unwinding
from harp.errors import Exit, HarpError
from harp.output import err
from harp.standard import open_standard

try:
    from harp import __version__
except ImportError:  # another package's harp/__init__.py
    sys.exit(f"harpctl: {_conflict.problem() or 'harp/__init__.py is not of harp-nccl'}")

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from click.shell_completion import CompletionItem

# Each command: module and attribute of the click command. A module is imported when its command
# runs, or prints its own help.
COMMANDS = {
    "bench": "harp.cli.bench:bench",
    "check": "harp.cli.check:check",
    "completion": "harp.cli.manual:completion",
    "config": "harp.cli.config:config",
    "demo": "harp.cli.demo:demo",
    "env": "harp.cli.run:env",
    "flows": "harp.cli.stats:flows",
    "install": "harp.cli.install:install",
    "instances": "harp.cli.daemon:instances",
    "logs": "harp.cli.logs:logs",
    "man": "harp.cli.manual:man",
    "report": "harp.cli.report:report",
    "restart": "harp.cli.daemon:restart",
    "run": "harp.cli.run:run",
    "start": "harp.cli.daemon:start",
    "stats": "harp.cli.stats:stats",
    "status": "harp.cli.daemon:status",
    "stop": "harp.cli.daemon:stop",
    "trace": "harp.cli.trace:trace",
    "tune": "harp.cli.tune:tune",
    "uninstall": "harp.cli.install:uninstall",
    "version": "harp.cli.version:version",
}
SECTIONS = {
    "Set up": ("install", "uninstall", "check", "config", "tune", "version", "completion", "man"),
    "Daemon": ("start", "stop", "restart", "status", "instances", "logs"),
    "Jobs": ("run", "env"),
    "Observe": ("stats", "flows", "trace", "report"),
    "Try": ("demo", "bench"),
}

EXIT_CODES = (
    ("0", "good"),
    ("1", "it ran, and the result is wrong or misses a goal"),
    ("2", "bad usage"),
    ("3", "needs root"),
    ("4", "a program, library, file or interface is missing"),
    ("5", "check: works, but something costs performance"),
    ("6", "start: another harpd runs; stop: leases exist"),
    ("7", "no harpd runs; stop: and none left anything behind"),
    ("8", "harpd refuses: not allowed, or no queue free"),
    ("126, 127", "run: the command can't be executed, or does not exist"),
    ("130", "interrupted"),
)
EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>8}  {text}" for code, text in EXIT_CODES)


def _summary(place: str) -> str:
    """Return the first paragraph of a command's help, without importing its module."""
    module, _, attribute = place.partition(":")
    source = Path(__file__).parent / f"{module.rpartition('.')[2]}.py"
    with contextlib.suppress(OSError):
        for node in ast.parse(source.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == attribute:
                text = ast.get_docstring(node) or ""
                return " ".join(text.partition("\n\n")[0].split())
    return ""


def _unusable(name: str, error: ImportError) -> click.Command:
    """Return a command that fails: its module could not be imported."""
    problem = (
        f"{name} can't be used: {error}; `make build`, or reinstall harp-nccl, brings what it needs"
    )

    def fail(**_: object) -> None:
        raise HarpError(problem, Exit.MISSING)

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(name, settings, fail, [anything], help=problem)


class Commands(Group):
    """Imports a command's module on demand: an unusable module leaves the others alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None when there is none."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            return _unusable(cmd_name, error)
        assert isinstance(command, click.Command)
        return command

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return a command's line in the help, without importing its module."""
        return _summary(COMMANDS[name]) if name in COMMANDS else super().summary(ctx, name)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return SECTIONS."""
        return {title: list(names) for title, names in SECTIONS.items()}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the commands and options with this prefix, without importing a module."""
        listed = {
            name: click.Command(name, help=_summary(place)) for name, place in COMMANDS.items()
        }
        outline = click.Group(commands={**self.commands, **listed})
        names = outline.shell_complete(click.Context(outline, help_option_names=[]), incomplete)
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="harpctl")
def cli() -> None:
    """Manage HARP, the user-space TCP stack that carries NCCL.

    \b
    harpctl check eth0               check whether HARP works on this interface
    harpctl config init              write a commented harp.toml
    harpctl start                    start harpd, which leases NIC queues to jobs
    harpctl status                   what harpd is doing
    harpctl run -- python train.py   run a job over HARP
    harpctl stats --watch            what HARP's instances do, like top
    harpctl demo                     train a model across two hosts made here
    harpctl bench nccl               HARP and NCCL's own sockets, compared
    """


def _complain(words: str) -> None:
    """Print a line on stderr if stderr can be written."""
    with contextlib.suppress(OSError):
        err.print(f"harpctl: {words}", markup=False, soft_wrap=True)


def _finish(status: int) -> int:
    """Flush all output and return the exit code; an error of stdout is printed on stderr."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except OSError as error:
        console.discard_stdout()
        if not status:
            _complain(f"{error.filename}: {error.strerror}")
        return status or Exit.FAILURE
    return status


def _discard_output() -> int:
    console.discard_stdout()  # otherwise the interpreter would report the error at exit
    return Exit.FAILURE


class _Output(io.FileIO):
    """Standard output whose errors name it."""

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


def _run() -> int:
    """Run the command and return its exit code. Every error becomes one line."""
    try:
        # Not standalone: click hands an Exit's code back instead of exiting.
        with unwinding():
            status = cli.main(standalone_mode=False, prog_name="harpctl")
        return status if isinstance(status, int) else Exit.OK
    except HarpError as error:
        _complain(str(error))
        return error.code
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _discard_output()
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _complain(f"{where}{error.strerror or error}")
        return Exit.FAILURE
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        words = f"{type(error).__name__}: {error}".replace("\n", " ")
        _complain(f"internal error at {place}: {words}; please report it")
        return Exit.FAILURE


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    open_standard()
    raw = io.BufferedWriter(_Output(1, "w", closefd=False))
    # Not the encoding's strictness: a locale may lack characters.
    sys.stdout = io.TextIOWrapper(
        raw, sys.stdout.encoding, "backslashreplace", line_buffering=raw.isatty()
    )
    sys.exit(_finish(_run()))
