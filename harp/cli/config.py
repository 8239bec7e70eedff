# SPDX-License-Identifier: Apache-2.0
"""harpctl config: the settings, their sources, and mistakes in them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from harp import config as settings
from harp import files
from harp import output as console
from harp.cli.group import Group
from harp.cli.options import FilePath, complete_key, file_option, output_option
from harp.config import document, profile, reference, report
from harp.config.document import ConfigError
from harp.config.keys import all_keys, tables
from harp.config.loading import build
from harp.daemon.client import DaemonClient
from harp.errors import Exit, HarpError
from harp.words import plural, suggestion


@click.group(cls=Group)
def config() -> None:
    """Show, check and write the settings: harp.toml, HARP_* variables and defaults.

    \b
    harpctl config init
    harpctl config validate
    harpctl config show tcp
    harpctl config diff
    """


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.print_line(f"harpctl: warning: {warning}", console.err)


def _shown(value: object) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) and value else json.dumps(value)


def _source(row: dict[str, Any]) -> str:
    return f"{row['file']}:{row['line']}" if row["source"] == "file" else str(row["source"])


def _print_rows(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    console.print_whole(console.table("", columns, rows, folded=range(1, len(columns))))


def _matches(row: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Tell whether a name selects a setting: tcp.ecn, tcp, ecn, HARP_ECN, eth1, eth1.queues."""
    table, _, key = row["key"].partition(".")
    own = {row["key"], row["variable"], table, key, row["name"]}
    if row["of"]:
        own |= {row["of"], f"{row['of']}.{key}"}
    return not names or any(name in own for name in names)


def _select(report: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    rows = [row for row in report["settings"] if _matches(row, names)]
    if names and not rows:
        key = settings.find(names[0])
        if key is None or key.variable is not None:
            known = [name for key in all_keys() for name in (key.place, key.key)]
            near = suggestion(names[0], [*known, *tables()])
            raise HarpError(
                f"no setting is called {names[0]}{near or ';'} "
                "`harpctl config show --all` lists them",
                Exit.USAGE,
            )
    return {**report, "settings": rows}


@config.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)
@click.option(
    "--all", "everything", is_flag=True, help="Also show settings of HARP's build and tests."
)
@file_option
@output_option
def show(keys: tuple[str, ...], everything: bool, file: Path | None, output: str) -> None:
    """Show settings: value, unit, and source.

    KEY chooses: a table (tcp), a key (tcp.ecn), a variable (HARP_ECN), a NIC (eth1) or a DPDK port.
    The JSON names the variable of each setting, as docs/configuration.md does.

    \b
    harpctl config show
    harpctl config show tcp HARP_FRAMES
    harpctl config show eth1 -o json
    """
    loaded = settings.load(file)
    _warn(loaded.warnings)
    selection = _select(report.document(loaded), keys)
    if output == "json":
        console.print_json(selection)
        return
    rows = [
        (row["name"], _shown(row["value"]), row["unit"], _source(row))
        for row in selection["settings"]
        if everything or keys or row["readers"] != ["tool"]
    ]
    _print_rows(("setting", "value", "unit", "source"), rows)
    if any(row["variable"] in ("HARP_PATH", "HARP_PROFILE") for row in selection["settings"]):
        console.print_line(profile.source(str(loaded["HARP_PROFILE"] or "")))


@config.command()
@click.argument("file", required=False, type=FilePath())
@output_option
def validate(file: Path | None, output: str) -> None:
    """Check FILE and list all mistakes; exit code 1 if there are any.

    Without FILE: check the settings that apply here, including HARP_* variables.

    \b
    harpctl config validate
    harpctl config validate conf/harp.toml
    harpctl config validate new.toml -o json
    """
    problems: tuple[settings.Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    code = Exit.OK
    name = str(file or settings.file_of()[0])
    try:
        loaded = settings.load() if file is None else build(document.read(file), {})
        warnings = loaded.warnings
        name = loaded.file or f"{name} (absent: all defaults apply)"
    except ConfigError as error:
        problems, code = error.problems, error.code
    if output == "json":
        rows = [{"place": p.place, "key": p.key, "message": p.message} for p in problems]
        console.print_json({"file": name, "problems": rows, "warnings": list(warnings)})
    else:
        _warn(warnings)
        for problem in problems:
            console.print_line(str(problem))
        console.print_line(plural(len(problems), "problem") if problems else f"{name}: good")
    if code:
        raise click.exceptions.Exit(code)


@config.command()
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--file",
    "target",
    metavar="FILE",
    type=FilePath(allow_dash=True),
    help="Where to write; - for the terminal (default: HARP_CONFIG, else /etc/harp/harp.toml).",
)
@output_option
def init(force: bool, target: Path | None, output: str) -> None:
    """Write a harp.toml that has every key with its default, all commented out.

    \b
    harpctl config init
    harpctl config init --file ./harp.toml
    harpctl config init --file -
    """
    text = reference.to_toml()
    if target == Path("-") and output == "table":
        click.echo(text, nl=False)
        return
    path = None if target == Path("-") else target or settings.file_of()[0]
    if path is not None:
        with files.writing(path):
            try:
                files.write_whole(path, text, replace=force)
            except FileExistsError:
                raise HarpError(
                    f"{path} exists; --force replaces it, --file - prints the new one"
                ) from None
    if output == "json":
        console.print_json({"file": str(path) if path else None, "text": text})
    else:
        console.print_line(f"{path} written: every key, commented out")


def _against_running(file: Path | None) -> list[dict[str, Any]]:
    """Compare harpd's settings with those of the file, without this process's environment."""
    with DaemonClient(settings.load(file).daemon.socket_path) as client:
        in_force = client.query("config")
    path, is_named = settings.file_of()
    of_file = settings.load(file or (path if is_named else None), {})
    return report.against(in_force, report.document(of_file))


@config.command()
@click.option("--running", is_flag=True, help="Compare with what the running harpd uses.")
@file_option
@output_option
def diff(running: bool, file: Path | None, output: str) -> None:
    """Show settings that differ from their defaults, and their sources. The exit code is 0.

    With --running: show settings for which harpd's value differs from the file's, and the source of
    harpd's value. `harpctl restart` applies the file's value, unless the source is harpd's
    environment.

    \b
    harpctl config diff
    harpctl config diff --file new.toml
    harpctl config diff --running
    """
    if running:
        rows = _against_running(file)
        columns = ("setting", "harpd has", "the file has", "source")
    else:
        loaded = settings.load(file)
        _warn(loaded.warnings)
        rows = report.against_defaults(report.document(loaded))
        columns = ("setting", "value", "default", "source")
    cells = [(r["key"], _shown(r["value"]), _shown(r["other"]), _source(r)) for r in rows]
    if output == "json":
        console.print_json({"running": running, "differences": rows})
    elif rows:
        _print_rows(columns, cells)
    else:
        text = "harpd uses the file's values" if running else "every setting has its default"
        console.out.print(f"no difference: {text}")
