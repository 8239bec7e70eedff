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
from harp.cli.group import Group, first_paragraph
from harp.closing import unwinding
from harp.errors import Exit, HarpError, needs_root
from harp.standard import open_standard

try:
    from harp import __version__
except ImportError:  # another package's harp/__init__.py
    sys.exit(f"harpctl: {_conflict.problem() or 'harp/__init__.py is not of harp-nccl'}")

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from click.shell_completion import CompletionItem

# The commands by section of the help. A command's module of harp.cli is imported when the command
# runs, or prints its own help; it has the command's name if _MODULES has no other.
SECTIONS = {
    "Set up": ("install", "uninstall", "check", "config", "tune", "version", "completion", "man"),
    "Daemon": ("start", "stop", "restart", "status", "instances", "logs"),
    "Jobs": ("run", "env"),
    "Observe": ("stats", "flows", "trace", "report"),
    "Try": ("demo", "bench"),
}
_MODULES = {
    **dict.fromkeys(("start", "stop", "restart", "status", "instances"), "daemon"),
    **dict.fromkeys(("completion", "man"), "manual"),
    "uninstall": "install",
    "env": "run",
    "flows": "stats",
}
COMMANDS = {name: _MODULES.get(name, name) for names in SECTIONS.values() for name in names}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>8}  {code.meaning}" for code in Exit)


def _summary(name: str) -> str:
    """Return the first paragraph of a command's help, without importing its module."""
    with contextlib.suppress(OSError):
        source = (Path(__file__).parent / f"{COMMANDS[name]}.py").read_bytes()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return first_paragraph(ast.get_docstring(node) or "")
    return ""


def _unusable(name: str, error: ImportError) -> click.Command:
    """Return a command that fails: its module could not be imported."""
    problem = f"{name} can't be used: {error}; run `make build`, or reinstall harp-nccl"

    def fail(**_: object) -> None:
        raise HarpError(problem, Exit.MISSING)

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(name, settings, fail, [anything], help=problem)


class Commands(Group):
    """Imports a command's module on demand, so that the others work if one cannot be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        try:
            module = importlib.import_module(f"harp.cli.{COMMANDS[cmd_name]}")
            command = getattr(module, cmd_name)
        except ImportError as error:
            return _unusable(cmd_name, error)
        assert isinstance(command, click.Command)
        return command

    def summary(self, ctx: click.Context, name: str) -> str:
        return _summary(name) if name in COMMANDS else super().summary(ctx, name)

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        return {title: list(names) for title, names in SECTIONS.items()}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        listed = {name: click.Command(name, help=_summary(name)) for name in COMMANDS}
        outline = click.Group(commands={**self.commands, **listed})
        names = outline.shell_complete(click.Context(outline, help_option_names=[]), incomplete)
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="harpctl")
def cli() -> None:
    """Manage HARP, the user-space TCP stack that carries NCCL.

    \b
    harpctl check eth0               check whether HARP works on this interface
    harpctl config init              write a commented harp.toml
    harpctl start                    start harpd, which leases NIC queues to jobs
    harpctl status                   show harpd's NICs, queues and problems
    harpctl run -- python train.py   run a job over HARP
    harpctl stats --watch            show jobs and instances, like top
    harpctl demo                     train a model across two hosts made here
    harpctl bench nccl               compare HARP and NCCL's own sockets
    """


def _complain(text: str) -> None:
    """Print a line on stderr if stderr can be written."""
    with contextlib.suppress(OSError):
        console.print_line(f"harpctl: {text}", console.err)


def _finish(status: int) -> int:
    """Flush all output and return the exit code; an error of stdout is printed on stderr."""
    try:
        sys.stdout.flush()
    except OSError as error:
        console.discard_stdout()  # otherwise the interpreter would report the error at exit
        if not status and not isinstance(error, BrokenPipeError):
            _complain(f"{error.filename}: {error.strerror}")
        return status or Exit.FAILURE
    return status


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
        # Not standalone: click returns an Exit's code instead of exiting.
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
        console.discard_stdout()
        return Exit.FAILURE
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        remedy = "; run as root" if needs_root(error) else ""
        _complain(f"{where}{error.strerror or error}{remedy}")
        return Exit.PRIVILEGE if remedy else Exit.FAILURE
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        _complain(f"internal error at {place}: {text}; please report it")
        return Exit.FAILURE


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code."""
    open_standard()
    raw = io.BufferedWriter(_Output(1, "w", closefd=False))
    # A locale may lack characters, so errors are not strict.
    sys.stdout = io.TextIOWrapper(
        raw, sys.stdout.encoding, "backslashreplace", line_buffering=raw.isatty()
    )
    sys.exit(_finish(_run()))
