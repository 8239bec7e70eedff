# SPDX-License-Identifier: Apache-2.0
"""harpd's state across restarts, in run_dir/state.json.

Every change rewrites the file and renames it into place, so that it is always complete. If the file
can't be written (disk full, read-only), harpd logs that once and continues. It retries with the
next change, every few seconds, and before a restart. While it fails, a restart with leases is
refused.
"""

import contextlib
import json
import logging
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from harp import files
from harp.daemon.ports import Block
from harp.daemon.table import Lease, Owner
from harp.errors import HarpError
from harp.nicprep import Entry, Undo

log = logging.getLogger("harpd")
VERSION = 2
FILE_BYTES_MAX = 64 << 20  # 65536 leases take 40
FILE = "state.json"
_SHOWN = 200  # characters of an unknown entry
T = TypeVar("T")


class BadStateError(Exception):
    """The file exists and is invalid; the text has the reason."""


@dataclass
class NicState:
    """A NIC with harpd's XDP program: its index, and the addresses in the map, in hex."""

    ifindex: int
    addresses: list[str] = field(default_factory=list)


@dataclass
class State:
    """The contents of the file. rests: by NIC, first and last port of each block in quarantine, and
    when that ends, in seconds since the epoch. undo: changes of NICs to restore.
    """

    pid: int = 0
    start_ticks: int = 0
    version: str = ""
    nics: dict[str, NicState] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    rests: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)
    undo: Undo = field(default_factory=Undo)
    format: int = VERSION


def _known(kind: type[T], raw: dict[str, Any]) -> T:
    names = {member.name for member in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in raw.items() if name in names})


def _lease(raw: dict[str, Any]) -> Lease:
    lease = _known(Lease, raw)
    lease.owner = Owner(**raw["owner"])
    lease.ports = Block(**raw["ports"]) if raw["ports"] else None
    lease.frames = (raw["frames"][0], raw["frames"][1])
    return lease


def _undo(raw: dict[str, Any]) -> Undo:
    """Return the entries. Those of another version stay in the file unchanged."""
    undo = Undo()
    for item in raw["entries"]:
        with contextlib.suppress(TypeError, AttributeError):  # a missing field, or not an object
            entry = _known(Entry, item)
            if entry.is_restorable:
                undo.entries.append(entry)
                continue
        undo.unknown.append(item)
        log.error(
            "%s: a change by another version of harpd is not restored: %s; only that version can "
            "restore it",
            FILE, json.dumps(item)[:_SHOWN],
        )  # fmt: skip
    return undo


def decode(text: str) -> State:
    """Parse the text. BadStateError with the reason: it is damaged, or of another format. Only
    harpd writes the file (see StateFile.read()), so this does not check each value.
    """
    try:
        raw = json.loads(text)
        if raw["format"] != VERSION:
            raise ValueError(
                f"it has format {raw['format']} and this harpd reads only format {VERSION}, so its "
                "leases end and their jobs lose the connections through HARP; end jobs before a "
                "change of the format"
            )
        state = _known(State, raw)
        state.nics = {name: _known(NicState, nic) for name, nic in raw["nics"].items()}
        state.leases = [_lease(lease) for lease in raw["leases"]]
        state.rests = {
            name: [(first, last, until_s) for first, last, until_s in blocks]
            for name, blocks in raw["rests"].items()
        }
        state.undo = _undo(raw["undo"])
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadStateError(f"{type(error).__name__}: {error}") from error
    return state


class StateFile:
    """The file in its directory."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE

    def read(self) -> State:
        """Read the state of the previous harpd. Without a file, and after the log of a damaged one,
        the state is empty. OSError; HarpError: other users can change the file, on which harpd acts
        as root.
        """
        try:
            raw = files.read(self.path, FILE_BYTES_MAX)
            if len(raw) > FILE_BYTES_MAX:
                raise BadStateError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
            return decode(raw.decode())
        except FileNotFoundError:
            return State()
        except files.UntrustedError as error:
            raise HarpError(f"the state is not trusted: {error.strerror}, or remove it") from error
        except (files.NotRegularError, IsADirectoryError) as error:
            why = str(error.strerror)
        except (BadStateError, UnicodeDecodeError) as error:
            why = str(error)
        aside = self._set_aside(why)
        log.error(
            "%s can't be read (%s); it is now %s, and earlier jobs are unknown",
            self.path, why, aside,
        )  # fmt: skip
        return State()

    def write(self, state: State) -> None:
        """Replace the file; OSError leaves the old one unchanged.

        A crash of the host ends all leases and resets the NICs, so this does not wait for the disk.
        """
        document = asdict(state)
        document["undo"]["entries"] += document["undo"].pop("unknown")
        files.write_whole(self.path, json.dumps(document, indent=1), mode=0o600, durable=False)

    def remove_temporary(self) -> None:
        """Remove incomplete files of a killed harpd. The caller holds the directory's lock."""
        files.remove_temporary(self.path)

    def _set_aside(self, why: str) -> Path:
        """Rename an unreadable file, so that an administrator can examine it. OSError."""
        try:
            return self.path.replace(self.path.with_suffix(".bad"))
        except OSError as error:
            text = f"can't be read ({why}); it can't be renamed either ({error.strerror})"
            raise OSError(error.errno, text) from error
