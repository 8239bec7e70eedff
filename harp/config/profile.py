# SPDX-License-Identifier: Apache-2.0
"""The profile that `harpctl tune` writes: /etc/harp/profile.toml (docs/configuration.md).

It has the path policy and times for NCCL's tuner. The plugin has its own reader of the file
(plugin/device/path_policy.c), which reads the subset of TOML that text() writes, and rejects what
parse() rejects.
"""

import re
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from harp import files

DEFAULT_FILE = Path("/etc/harp/profile.toml")
FILE_BYTES_MAX = 64 << 10  # PROFILE_BYTES_MAX of plugin/device/path_policy.c
VERSION = 1
MODES = ("generic-copy", "native-copy", "zero-copy")
# Size classes (plugin/device/path_policy.h): the longest message of each.
UP_TO = {"none": 0, "4KiB": 4 << 10, "64KiB": 64 << 10, "all": 1 << 63}
ENTRIES_MAX = 64
_PAIR = r"[1-9]\d{0,11}:[1-9]\d{0,8}"
_PAIRS = re.compile(f"{_PAIR}( {_PAIR})*")
POINTS_MAX = 16


class ProfileError(ValueError):
    """An invalid profile; the message is one line."""


@dataclass(frozen=True)
class Entry:
    """One [[nic]]: in this mode, messages of up to harp_up_to to these peers use HARP lanes. peers:
    a prefix; empty: all.
    """

    ifname: str
    mode: str
    harp_up_to: str
    peers: str = ""


def _entry(raw: dict[str, Any], number: int) -> Entry:
    where = f"[[nic]] number {number}"
    _check_keys(where, raw, {"ifname", "mode", "harp_up_to"}, {"peers"})
    if not all(isinstance(value, str) for value in raw.values()):
        raise ProfileError(f"{where}: every value is a string")
    entry = Entry(**raw)
    if not 1 <= len(entry.ifname) <= 15:
        raise ProfileError(f"{where}: ifname must be 1 to 15 characters")
    for key, words in (("mode", MODES), ("harp_up_to", UP_TO)):
        if raw[key] not in words:
            raise ProfileError(f"{where}: {key} must be one of {', '.join(words)}")
    if "peers" in raw:
        try:
            network = re.fullmatch(r"[^/]+/\d+", entry.peers) and ip_network(entry.peers)
        except ValueError:
            network = None
        if not network:
            raise ProfileError(f"{where}: peers must be a prefix such as 10.1.0.0/16")
    return entry


def _check_keys(where: str, raw: Mapping[str, Any], needed: set[str], more: set[str]) -> None:
    if missing := sorted(needed - set(raw)):
        raise ProfileError(f"{where}: {missing[0]} is missing")
    if unknown := sorted(set(raw) - needed - more):
        raise ProfileError(f"{where}: unknown key {unknown[0]}")


def _is_curve(text: object) -> bool:
    if not isinstance(text, str) or not _PAIRS.fullmatch(text):
        return False
    sizes = [int(pair.partition(":")[0]) for pair in text.split(" ")]
    return len(sizes) <= POINTS_MAX and sorted(set(sizes)) == sizes


def _check_tuner(raw: object) -> None:
    """Raise ProfileError unless raw is a valid [tuner]."""
    if not isinstance(raw, dict):
        raise ProfileError("tuner must be a table: [tuner]")
    _check_keys("[tuner]", raw, {"latency_ns", "rates", "channels"}, set())
    latency = raw["latency_ns"]
    if type(latency) is not int or not 1 <= latency < 10**12:
        raise ProfileError("[tuner]: latency_ns must be 1 to 999999999999")
    for key in ("rates", "channels"):
        if not _is_curve(raw[key]):
            raise ProfileError(
                f"[tuner]: {key} must be 1 to {POINTS_MAX} pairs such as 16384:1200 65536:2300,"
                " rising"
            )


def parse(text: str, host: str | None = None) -> tuple[Entry, ...]:
    """Return the entries; ProfileError. host: the host that it must name; None: this one."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(str(error)) from error
    host = socket.gethostname() if host is None else host
    if unknown := sorted(set(document) - {"version", "host", "nic", "tuner"}):
        raise ProfileError(f"unknown key {unknown[0]}")
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise ProfileError(f"version must be {VERSION}")
    if document.get("host") != host:
        raise ProfileError(f"it is of host {document.get('host')}, and this is {host}")
    if "tuner" in document:
        _check_tuner(document["tuner"])
    nics = document.get("nic", [])
    if not isinstance(nics, list) or not all(isinstance(nic, dict) for nic in nics):
        raise ProfileError("nic must be an array of tables: [[nic]]")
    if len(nics) > ENTRIES_MAX:
        raise ProfileError(f"more than {ENTRIES_MAX} [[nic]]")
    return tuple(_entry(raw, number) for number, raw in enumerate(nics, 1))


def text(
    entries: Sequence[Entry], host: str | None = None, tuner: Mapping[str, Any] | None = None
) -> str:
    """Return the text of a profile for a host; None: this one."""
    lines = [f"version = {VERSION}", f'host = "{socket.gethostname() if host is None else host}"']
    if tuner is not None:
        lines += ["", "# For NCCL's tuner; rates in MB/s. The same on every host of a job."]
        lines += ["[tuner]", f"latency_ns = {tuner['latency_ns']}"]
        lines += [f'{key} = "{tuner[key]}"' for key in ("rates", "channels")]
    for entry in entries:
        lines += ["", "[[nic]]", f'ifname = "{entry.ifname}"', f'mode = "{entry.mode}"']
        lines += [f'peers = "{entry.peers}"'] if entry.peers else []
        lines.append(f'harp_up_to = "{entry.harp_up_to}"')
    return "\n".join(lines) + "\n"


def read(file: Path) -> tuple[Entry, ...]:
    """Read and parse a profile. OSError, UnicodeDecodeError, ProfileError."""
    raw = files.read(file, FILE_BYTES_MAX)
    if len(raw) > FILE_BYTES_MAX:
        raise ProfileError(f"is larger than {FILE_BYTES_MAX >> 10} KiB")
    return parse(raw.decode())


def source(named: str) -> str:
    """Return one line that names the table which path auto uses. named: HARP_PROFILE, or empty."""
    file = Path(named or DEFAULT_FILE)
    try:
        entries = read(file)
        present = {name for _, name in socket.if_nameindex()}
        if missing := next((e.ifname for e in entries if e.ifname not in present), None):
            raise ProfileError(f"this host has no interface {missing}")
    except FileNotFoundError:
        if not named:
            return "path policy: the default table (docs/performance.md)"
        return f"path policy: the default table; profile {file}: no such file"
    except (OSError, UnicodeDecodeError, ProfileError) as error:
        return f"path policy: the default table; profile {file} is ignored: {error}"
    return f"path policy: profile {file}, then the default table"
