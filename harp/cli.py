# SPDX-License-Identifier: Apache-2.0
"""harpctl: the command line."""

import sys

import click

from harp import __version__
from harp.cli_bench import bench
from harp.cli_check import check
from harp.cli_demo import demo
from harp.cli_versus import fairness, loss
from harp.errors import Exit, HarpError
from harp.output import err

EPILOG = """\b
Exit codes: 0 good; 1 it ran and the result is wrong; 2 bad usage; 3 needs root;
4 a program, library or interface is missing; 5 (check) works, at a cost; 130 interrupted."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="harpctl")
def cli() -> None:
    """Looks after HARP, the user-space TCP stack that carries NCCL.

    \b
    harpctl check eth0               would HARP work on this interface?
    harpctl demo                     train a model across two hosts made here
    harpctl bench lat --baseline     latency through the plugin, and of kernel TCP
    """


bench.add_command(loss)
bench.add_command(fairness)
cli.add_command(bench)
cli.add_command(check)
cli.add_command(demo)


def main() -> None:
    """Entry point: errors become one line on stderr and an exit code that means something."""
    try:
        # Not standalone: click hands an Exit's code back instead of exiting.
        status = cli.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else Exit.OK)
    except HarpError as error:
        err.print(f"harpctl: {error}", markup=False, soft_wrap=True)
        sys.exit(error.code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        err.print("harpctl: interrupted")
        sys.exit(Exit.INTERRUPTED)
