# SPDX-License-Identifier: Apache-2.0
"""harpctl: the command line."""

import contextlib
import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harp import __version__
from harp import output as console
from harp.errors import Exit, HarpError
from harp.output import err
from harp.standard import open_standard

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Every command: its name; module and attribute of the click command; how that one's help begins.
# A module is imported when its command is run, or asked for help.
COMMANDS = {
    "bench": (
        "harp.cli.bench:bench",
        "Measures between hosts made on this machine (network namespaces). Needs root.",
    ),
    "check": (
        "harp.cli.check:check",
        "Would HARP work on this host and INTERFACE, in which mode, and what is missing?",
    ),
    "completion": (
        "harp.cli.docs:completion",
        "Prints the script by which SHELL completes harpctl's commands and options.",
    ),
    "config": (
        "harp.cli.config:config",
        "The settings: harp.toml, HARP_* variables and defaults.",
    ),
    "demo": (
        "harp.cli.demo:demo",
        "Trains a small neural network across hosts made on this machine.",
    ),
    "env": (
        "harp.cli.run:env",
        "Prints the variables that make a job use HARP.",
    ),
    "flows": (
        "harp.cli.stats:flows",
        "Lanes by peer and comm: bytes, shares, round trips, losses, moves; and other connections.",
    ),
    "instances": (
        "harp.cli.daemon:instances",
        "Who has which queue or DPDK port: one line for each lease.",
    ),
    "man": (
        "harp.cli.docs:man",
        "Prints a manual page, or writes all of them.",
    ),
    "restart": (
        "harp.cli.daemon:restart",
        "Restart harpd, with a new version or configuration; jobs run on.",
    ),
    "run": (
        "harp.cli.run:run",
        "Runs CMD with the variables of `harpctl env`.",
    ),
    "start": (
        "harp.cli.daemon:start",
        "Start harpd, and return when it serves.",
    ),
    "stats": (
        "harp.cli.stats:stats",
        "What this host's jobs and instances do: bytes, lanes, losses, round trips",
    ),
    "status": (
        "harp.cli.daemon:status",
        "What harpd is doing: its NICs, their queues, DPDK ports, trouble if there is any.",
    ),
    "stop": (
        "harp.cli.daemon:stop",
        "Stop harpd and put everything back as it was.",
    ),
}

EPILOG = """\b
Exit codes: 0 good; 1 it ran and the result is wrong; 2 bad usage; 3 needs root;
4 a program, library or interface is missing; 5 (check) works, at a cost; 6 harpd runs already, or
its leases are in the way; 7 no harpd runs; 8 harpd refuses; 130 interrupted.
run ends with its command's own; 126 and 127 when the command can't be run or isn't there."""


def _unusable(name: str, error: ImportError) -> click.Command:
    """Stands in for a command whose module lacks something: it says what."""
    problem = (
        f"{name} can't be used: {error}; `make build`, or reinstall harp, brings what it needs"
    )

    def complain(**_: object) -> None:
        raise HarpError(problem, Exit.MISSING)

    anything = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(name, settings, complain, [anything], help=problem)


class Commands(click.Group):
    """Imports a command when it is asked for: what one can't import is no trouble of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None when there is none."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        place, _ = COMMANDS[cmd_name]
        module, _, attribute = place.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            return _unusable(cmd_name, error)
        assert isinstance(found, click.Command)
        return found

    def _outline(self) -> click.Group:
        """Of the same commands, with nothing behind them: to list them no module is imported."""
        listed = {name: click.Command(name, help=begin) for name, (_, begin) in COMMANDS.items()}
        return click.Group(commands={**self.commands, **listed})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of them in the help."""
        self._outline().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Commands and options that begin so."""
        outline = self._outline()
        names = outline.shell_complete(click.Context(outline, help_option_names=[]), incomplete)
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="harpctl")
def cli() -> None:
    """Looks after HARP, the user-space TCP stack that carries NCCL.

    \b
    harpctl check eth0               would HARP work on this interface?
    harpctl config init              write a commented harp.toml
    harpctl start                    start harpd, which leases NIC queues to jobs
    harpctl status                   what harpd is doing
    harpctl run -- python train.py   run a job over HARP
    harpctl stats --watch            what HARP's instances do, like top
    harpctl demo                     train a model across two hosts made here
    harpctl bench lat --baseline     latency through the plugin, and of kernel TCP
    """


def _complain(words: str) -> None:
    """A line on stderr, where there is one that takes it."""
    with contextlib.suppress(OSError):
        err.print(f"harpctl: {words}", markup=False, soft_wrap=True)


def _finish(status: int) -> int:
    """The exit code. Everything that was printed is out, or one line has said why not."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _nobody_reads()
    except OSError as error:
        console.discard_stdout()
        if not status:
            _complain(f"standard output: {error.strerror}")
        return status or Exit.FAILURE
    return status


def _nobody_reads() -> int:
    console.discard_stdout()  # or the interpreter would complain on its way out
    return Exit.FAILURE


def _run() -> int:
    """The command's exit code; whatever happens, people get one line."""
    try:
        # Not standalone: click hands an Exit's code back instead of exiting.
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
        return _nobody_reads()
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
    """Entry point: errors become one line on stderr and an exit code that means something."""
    open_standard()
    sys.exit(_finish(_run()))
