# SPDX-License-Identifier: Apache-2.0
"""harpd's state across restarts, in run_dir/state.json.

Every change rewrites the file and renames it into place, so that it is always complete. When it
can't be written (disk full, read-only), harpd logs that once and continues. It retries with the
next change, every few seconds, and before a restart, which it refuses while there are leases.
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
    """The file exists and is invalid; one line with the reason."""


@dataclass
class NicState:
    """A NIC with our program: its index, and addresses in the map, in hex."""

    ifindex: int
    addresses: list[str] = field(default_factory=list)


@dataclass
class State:
    """The contents of the file. rests: per NIC, first and last port of blocks and the epoch second
    at which their quarantine ends; undo: changes of NICs to restore.
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
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in raw.items() if name in names})


def _lease(raw: dict[str, Any]) -> Lease:
    lease = _known(Lease, raw)
    lease.owner = Owner(**raw["owner"])
    lease.ports = Block(**raw["ports"]) if raw["ports"] else None
    lease.frames = (raw["frames"][0], raw["frames"][1])
    return lease


def _undo(raw: dict[str, Any]) -> Undo:
    """Return the entries. Those of another version are kept, and written back as they are."""
    undo = Undo()
    for each in raw["entries"]:
        with contextlib.suppress(TypeError, AttributeError):  # it lacks a field, or is no object
            entry = _known(Entry, each)
            if entry.restorable:
                undo.entries.append(entry)
                continue
        undo.unknown.append(each)
        log.error(
            "%s: a change by another version of harpd is not restored: %s; only that version can "
            "restore it",
            FILE, json.dumps(each)[:_SHOWN],
        )  # fmt: skip
    return undo


def decode(text: str) -> State:
    """Parse the text. BadStateError with the reason: it is damaged, or of another format. Only
    harpd writes the file (see StateFile.read()), so values are not examined one by one.
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
        state.nics = {name: _known(NicState, each) for name, each in raw["nics"].items()}
        state.leases = [_lease(each) for each in raw["leases"]]
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
        """Read the state of the previous harpd; an empty one if there is none, or if it is damaged,
        which is logged. OSError, or HarpError if other users can change it, because harpd acts on
        it as root.
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
        """Replace the file as a whole; OSError leaves the old one unchanged.

        A crash of the host ends all leases and resets the NICs, so that waiting for a disk has no
        use.
        """
        document = asdict(state)
        document["undo"]["entries"] += document["undo"].pop("unknown")
        files.write_whole(self.path, json.dumps(document, indent=1), mode=0o600, durable=False)

    def remove_temporary(self) -> None:
        """Remove what a killed harpd left of its writes. The caller holds the directory's lock."""
        files.remove_temporary(self.path)

    def _set_aside(self, why: str) -> Path:
        """Rename an unreadable file, so that a person may examine it. OSError."""
        try:
            return self.path.replace(self.path.with_suffix(".bad"))
        except OSError as error:
            words = f"can't be read ({why}); it can't be renamed either ({error.strerror})"
            raise OSError(error.errno, words) from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
