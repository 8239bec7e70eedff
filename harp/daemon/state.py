# SPDX-License-Identifier: Apache-2.0
"""What harpd must know after a restart, in run_dir/state.json.

Written anew at every change and renamed into place, so that it is whole at any moment. When it
can't be written (disk full, read-only) harpd says so once and serves on; the next change tries
again.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harp.daemon.ports import Block
from harp.daemon.table import Lease, Owner

VERSION = 1
FILE = "state.json"


class BadStateError(Exception):
    """The file is there and is not what we write: one line that says how."""


@dataclass
class NicState:
    """A NIC with our program: its index then, the pins' directory, addresses in the map, in hex."""

    ifindex: int
    pins: str = ""
    addresses: list[str] = field(default_factory=list)


@dataclass
class State:
    """Everything in the file. rests: per NIC, blocks and the epoch second at which they wake; undo:
    what nicprep changed and will put back."""

    pid: int = 0
    start_ticks: int = 0
    version: str = ""
    nics: dict[str, NicState] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    rests: dict[str, list[tuple[Block, float]]] = field(default_factory=dict)
    undo: Any = None


def encode(state: State) -> str:
    """The file's text."""
    document = asdict(state) | {"format": VERSION}
    document["rests"] = {
        ifname: [[block.first, block.last, until] for block, until in rests]
        for ifname, rests in state.rests.items()
    }
    return json.dumps(document, indent=1)


def _lease(raw: dict[str, Any]) -> Lease:
    core = raw.get("core")
    return Lease(
        lease_id=int(raw["lease_id"]),
        owner=Owner(**{name: int(raw["owner"][name]) for name in ("pid", "start_ticks", "uid")}),
        ifname=str(raw["ifname"]),
        ifindex=int(raw["ifindex"]),
        queue=int(raw["queue"]),
        ports=Block(int(raw["ports"]["first"]), int(raw["ports"]["last"])),
        label=str(raw["label"]),
        since_s=float(raw["since_s"]),
        frame_count=int(raw.get("frame_count", 0)),
        frame_size=int(raw.get("frame_size", 0)),
        page_bytes=int(raw.get("page_bytes", 0)),
        core=None if core is None else int(core),
        active=bool(raw.get("active", True)),
        marks=[str(mark) for mark in raw.get("marks", [])],
    )


def decode(text: str) -> State:
    """Reads it back; BadStateError says what is wrong. Fields of later versions are left aside."""
    try:
        raw = json.loads(text)
        if raw["format"] != VERSION:
            raise BadStateError(f"format {raw['format']}, and this harpd knows {VERSION}")
        return State(
            pid=int(raw["pid"]),
            start_ticks=int(raw["start_ticks"]),
            version=str(raw["version"]),
            nics={
                str(name): NicState(
                    int(nic["ifindex"]),
                    str(nic["pins"]),
                    [bytes.fromhex(address).hex() for address in nic["addresses"]],
                )
                for name, nic in raw["nics"].items()
            },
            leases=[_lease(lease) for lease in raw["leases"]],
            rests={
                str(name): [(Block(int(a), int(b)), float(until)) for a, b, until in rests]
                for name, rests in raw["rests"].items()
            },
            undo=raw.get("undo"),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BadStateError(f"{type(error).__name__}: {error}") from error
    except RecursionError as error:
        raise BadStateError(f"{type(error).__name__}: {error}") from error


class StateFile:
    """The file in its directory."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE
        self._new = run_dir / (FILE + ".new")

    def read(self) -> State | None:
        """What the harpd before left; None when there is nothing. BadStateError, OSError."""
        try:
            return decode(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise BadStateError(str(error)) from error

    def write(self, state: State) -> None:
        """Replaces the file, whole; OSError leaves the old one as it is."""
        try:
            with self._new.open("w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(encode(state))
            self._new.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise

    def set_aside(self) -> Path:
        """Renames a file that can't be read, so that a person may look at it."""
        aside = self.path.with_suffix(".bad")
        self.path.replace(aside)
        return aside

    def remove(self) -> None:
        """Nothing is left to remember."""
        self.path.unlink(missing_ok=True)
