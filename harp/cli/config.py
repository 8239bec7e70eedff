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
from harp.cli.group import Group, suggestion
from harp.cli.options import FilePath, complete_key, file_option, output_option
from harp.config import document, profile, reference, report
from harp.config.document import ConfigError
from harp.config.keys import all_keys, tables
from harp.config.loading import build
from harp.daemon.client import DaemonClient
from harp.errors import Exit, HarpError


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


def _matches(row: dict[str, Any], wanted: tuple[str, ...]) -> bool:
    """Tell whether a setting was requested: tcp, tcp.ecn, ecn, HARP_ECN, nic, eth1, eth1.queues."""
    table, _, key = row["key"].partition(".")
    words = {row["key"], row["variable"], table, key, row["name"]}
    if row["of"]:
        words |= {row["of"], f"{row['of']}.{key}"}
    return not wanted or any(word in words for word in wanted)


def _select(found: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    chosen = [row for row in found["settings"] if _matches(row, wanted)]
    if wanted and not chosen:
        key = settings.find(wanted[0])
        if key is None or key.variable is not None:
            names = [each.place for each in all_keys()] + [each.key for each in all_keys()]
            near = suggestion(wanted[0], [*names, *tables()])
            raise HarpError(
                f"no setting is called {wanted[0]}{near or ';'} "
                "`harpctl config show --all` lists them",
                Exit.USAGE,
            )
    return {**found, "settings": chosen}


@config.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)
@click.option(
    "--all", "everything", is_flag=True, help="Also settings of HARP's own build and tests."
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
    found = settings.load(file)
    _warn(found.warnings)
    chosen = _select(report.document(found), keys)
    if output == "json":
        console.print_json(chosen)
        return
    rows = [
        (row["name"], _shown(row["value"]), row["unit"], _source(row))
        for row in chosen["settings"]
        if everything or keys or row["readers"] != ["tool"]
    ]
    _print_rows(("setting", "value", "unit", "source"), rows)
    named = found["HARP_PROFILE"]
    if any(row["variable"] in ("HARP_PATH", "HARP_PROFILE") for row in chosen["settings"]):
        console.print_line(profile.source(str(named or "")))


@config.command()
@click.argument("file", required=False, type=FilePath())
@output_option
def validate(file: Path | None, output: str) -> None:
    """Check FILE and name everything that is wrong; exit code 1 when something is.

    Without FILE: with what is in force here, HARP_* variables included.

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
        found = settings.load() if file is None else build(document.read(file), {})
        warnings = found.warnings
        name = found.file or f"{name} (absent: every default holds)"
    except ConfigError as error:
        problems, code = error.problems, error.code
    if output == "json":
        rows = [{"place": p.place, "key": p.key, "message": p.message} for p in problems]
        console.print_json({"file": name, "problems": rows, "warnings": list(warnings)})
    else:
        _warn(warnings)
        for problem in problems:
            console.print_line(str(problem))
        count = len(problems)
        verdict = f"{count} problem{'s' * (count != 1)}" if count else f"{name}: good"
        console.print_line(verdict)
    if code:
        raise click.exceptions.Exit(code)


@config.command()
@click.option("--force", is_flag=True, help="Replace a file that is there.")
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
    """Compare what harpd uses with the file alone: harpd has an environment of its own."""
    with DaemonClient(settings.load(file).daemon.socket_path) as client:
        in_force = client.query("config")
    path, named = settings.file_of()
    alone = settings.load(file or (path if named else None), {})
    return report.against(in_force, report.document(alone))


def _after(row: dict[str, Any]) -> str:
    if row["source"] in ("environment", "command line"):
        return "harpd's environment"
    comes_live = row["other"] is not None or row["key"].startswith("dpdk ")
    return "reload" if row["live"] and comes_live else "restart"


@config.command()
@click.option("--running", is_flag=True, help="Compare with what the running harpd uses.")
@file_option
@output_option
def diff(running: bool, file: Path | None, output: str) -> None:
    """Show what is not the default, and where it was set. The exit code is 0 either way.

    With --running: settings of which harpd uses another value than the file has, and what changes
    that: a reload, a restart, or another environment of harpd.

    \b
    harpctl config diff
    harpctl config diff --file new.toml
    harpctl config diff --running
    """
    if running:
        rows = _against_running(file)
        names = ("setting", "harpd has", "the file has", "it takes")
        cells = [(r["key"], _shown(r["value"]), _shown(r["other"]), _after(r)) for r in rows]
    else:
        found = settings.load(file)
        _warn(found.warnings)
        rows = report.against_defaults(report.document(found))
        names = ("setting", "value", "default", "source")
        cells = [(r["key"], _shown(r["value"]), _shown(r["other"]), _source(r)) for r in rows]
    if output == "json":
        console.print_json({"running": running, "differences": rows})
    elif rows:
        _print_rows(names, cells)
    else:
        what = "harpd uses what the file has" if running else "every setting has its default"
        console.out.print(f"nothing: {what}")


@config.command()
@file_option
def reload(file: Path | None) -> None:
    """Reload the running harpd's file, and list what waits for a restart.

    The same as SIGHUP to harpd (systemctl reload harpd), with an answer. A file with a mistake
    changes nothing; exit code 1.

    \b
    harpctl config reload
    """
    with DaemonClient(settings.load(file).daemon.socket_path) as client:
        problem = client.query("reload")["problem"]
    if problem:
        raise HarpError(f"harpd stays as it was: {problem}")
    waiting = [row for row in _against_running(file) if _after(row) == "restart"]
    console.out.print("harpd has reloaded its harp.toml")
    for row in waiting:
        console.print_line(f"{row['key']} waits for `harpctl restart`")
