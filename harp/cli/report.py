# SPDX-License-Identifier: Apache-2.0
"""harpctl report: one archive for a bug report.

Each part is the output of a command. No part contains keys: settings name the file of the
pre-shared key, never its content. errors.json lists the parts that failed.
"""

import io
import json
import socket
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harp import config as settings
from harp import files
from harp import output as console
from harp.cli.logs import log_path, log_tail
from harp.cli.options import FilePath
from harp.cli.version import versions
from harp.config import report as config_report
from harp.daemon.client import DaemonClient
from harp.doctor.examine import examine_all
from harp.doctor.view import View
from harp.errors import Exit, HarpError
from harp.stats.instance import read_host

_LOG_LINES = 5000


def _ask(query: str) -> Any:
    with DaemonClient(settings.load().daemon.socket_path) as client:
        return client.query(query)


def _add(archive: tarfile.TarFile, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
    data = text.encode(errors="replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))


def write_report(path: Path) -> dict[str, str]:
    if not path.parent.is_dir():
        raise HarpError(
            f"{path} can't be written: {path.parent} is not a directory; make it first",
            Exit.MISSING,
        )
    parts: dict[str, Callable[[], Any]] = {
        "version.json": versions,
        "check.json": lambda: examine_all(View(), 0).to_json(),
        "config.json": lambda: config_report.document(settings.load()),
        "status.json": lambda: _ask("status"),
        "instances.json": lambda: _ask("instances"),
        "stats.json": lambda: read_host(flows=True),
        "harpd.log": lambda: log_tail(log_path(), _LOG_LINES),
    }
    folder, errors, data = path.name.partition(".")[0], {}, io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, collect in parts.items():
            try:
                _add(archive, f"{folder}/{name}", collect())
            except (HarpError, OSError, LookupError, TypeError, ValueError) as error:
                errors[name] = str(error)
        _add(archive, f"{folder}/errors.json", errors)
    with files.writing(path):
        files.write_whole(path, data.getvalue(), mode=0o600, replace=False)
    return errors


@click.command()
@click.argument("file", required=False, type=FilePath(dir_okay=False))
def report(file: Path | None) -> None:
    """Write one archive for a bug report: check, settings, status, versions, log; no secrets.

    FILE is harp-report-HOST-TIME.tar.gz by default. Without root, processes of other users and
    harpd's log are left out.

    \b
    harpctl report
    harpctl report /tmp/harp.tar.gz
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = file or Path(f"harp-report-{socket.gethostname()}-{stamp}.tar.gz")
    for name, why in write_report(path).items():
        console.print_line(f"harpctl: {name} is left out: {why}", console.err)
    console.print_line(f"{path} written")
