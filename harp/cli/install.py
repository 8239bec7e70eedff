# SPDX-License-Identifier: Apache-2.0
"""harpctl install and uninstall."""

import os
import shlex
from pathlib import Path

import click

from harp import __version__
from harp import install as installation
from harp import output as console
from harp.cli.options import FilePath
from harp.words import plural

_prefix_option = click.option(
    "--prefix",
    metavar="DIR",
    type=FilePath(file_okay=False),
    help="Install everything below DIR, and change nothing else. Default: /usr/local, the loader's "
    "cache, and /etc.",
)


def _place(prefix: Path | None) -> installation.Place:
    return installation.Place(Path(os.path.normpath(prefix.absolute())) if prefix else None)


def _print_next(place: installation.Place) -> None:
    library, unit, nccl_conf = (
        shlex.quote(str(path)) for path in (place.base / "lib", place.unit, place.nccl_conf)
    )
    manifest = installation.Manifest.read(place)
    assert manifest is not None
    options = manifest.options
    if not installation.is_found_by_name(place):
        console.print_line(
            f"export LD_LIBRARY_PATH={library}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
        )
    if place.prefix is None:
        if not (options["nccl_conf"] or options["default_name"]):
            console.print_line(f"export {installation.NCCL_LINE}")
        if options["systemd"]:
            console.print_line("start harpd: systemctl enable --now harpd")
        return
    if options["nccl_conf"]:
        console.print_line(f"export NCCL_CONF_FILE={nccl_conf}  # NCCL 2.23 and later")
    if options["systemd"]:
        console.print_line(f"start harpd: systemctl enable --now {unit}")


@click.command()
@_prefix_option
@click.option(
    "--systemd/--no-systemd", default=None, help="Also install harpd.service. Does not start it."
)
@click.option(
    "--nccl-conf/--no-nccl-conf",
    default=None,
    help=f"Also add {installation.NCCL_LINE} to /etc/nccl.conf, which every job of the host reads.",
)
@click.option(
    "--default-name/--no-default-name",
    default=None,
    help="Also link the plugin as libnccl-net.so, NCCL's default plugin (default).",
)
def install(
    prefix: Path | None, systemd: bool | None, nccl_conf: bool | None, default_name: bool | None
) -> None:
    """Install the plugin where NCCL finds it by name; commands, manual pages, completion.

    Run it again to upgrade, downgrade or change options; omitted options keep their values. It
    replaces only files that it wrote and that are unchanged since. Otherwise it changes nothing.
    `harpctl uninstall` removes them.

    \b
    harpctl install
    harpctl install --systemd --nccl-conf
    harpctl install --prefix ~/harp          without root
    """
    place = _place(prefix)
    changes = installation.install(place, systemd, nccl_conf, default_name)
    for path in changes.kept:
        console.print_line(f"{path} was changed since and is kept")
    before = changes.old_version
    if not changes:
        console.print_line(f"HARP {__version__} is installed in {place.base}: nothing to do")
    elif before and before != __version__:
        console.print_line(f"HARP {__version__} is installed in {place.base}, in place of {before}")
    else:
        counts = f"{plural(len(changes.written), 'file')} written, {len(changes.removed)} removed"
        console.print_line(f"HARP {__version__} is installed in {place.base}: {counts}")
    _print_next(place)


@click.command()
@_prefix_option
def uninstall(prefix: Path | None) -> None:
    """Remove what `harpctl install` wrote. Files that were changed since are kept and listed.

    \b
    harpctl uninstall
    harpctl uninstall --prefix ~/harp
    """
    changes = installation.uninstall(_place(prefix))
    for path in changes.kept:
        console.print_line(f"{path} was changed since and is kept")
    counts = plural(len(changes.removed), "file")
    console.print_line(f"HARP {changes.old_version} is removed: {counts}")
