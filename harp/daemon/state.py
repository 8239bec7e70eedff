# SPDX-License-Identifier: Apache-2.0
"""harpd's state across restarts, in run_dir/state.json.

Every change rewrites the file and renames it into place, so that it is always complete. When it
can't be written (disk full, read-only), harpd logs that once and continues. It retries with the
next change, every few seconds, and before a restart, which it refuses while there are leases.
"""

import contextlib
import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harp import files
from harp.daemon.ports import Block
from harp.daemon.table import Lease, Owner
from harp.errors import HarpError
from harp.words import printable

VERSION = 1
FILE_BYTES_MAX = 64 << 20  # 65536 leases take 40
FILE = "state.json"
U32_MAX, U64_MAX, PID_MAX = 2**32 - 1, 2**64 - 1, 2**31 - 1
QUEUES_MAX = 65536  # number of queues of any NIC


class BadStateError(Exception):
    """The file exists and is invalid; one line with the reason."""


@dataclass
class NicState:
    """A NIC with our program: its index, the pins' directory, addresses in the map, in hex."""

    ifindex: int
    pins: str = ""
    addresses: list[str] = field(default_factory=list)


@dataclass
class State:
    """The contents of the file. rests: per NIC, blocks and the epoch second at which their
    quarantine ends; undo: nicprep's changes to restore.
    """

    pid: int = 0
    start_ticks: int = 0
    version: str = ""
    nics: dict[str, NicState] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    rests: dict[str, list[tuple[Block, float]]] = field(default_factory=dict)
    undo: Any = None


def encode(state: State) -> str:
    """Return the file's text."""
    document = asdict(state) | {"format": VERSION}
    # Separate: a harpd without DPDK reads the others.
    document["leases"] = [asdict(lease) for lease in state.leases if not lease.device]
    document["port_leases"] = [asdict(lease) for lease in state.leases if lease.device]
    document["rests"] = {
        ifname: [[block.first, block.last, until] for block, until in rests]
        for ifname, rests in state.rests.items()
    }
    return json.dumps(document, indent=1)


def _number(value: Any, most: int, least: int = 0) -> int:
    """Return a whole number in its range, because the kernel gets it."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no number from {least} to {most}")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    return seconds


def _text(value: Any) -> str:
    """Return one line without escape sequences."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    return printable(value)


def _lease(raw: dict[str, Any]) -> Lease:
    """Read a lease of a queue."""
    ports = raw["ports"]
    lease = _common(raw)
    lease.ifindex = _number(raw["ifindex"], PID_MAX, 1)
    lease.queue = _number(raw["queue"], QUEUES_MAX - 1)
    lease.ports = Block(_number(ports["first"], 65535, 1), _number(ports["last"], 65535, 1))
    device, inode = raw["frames"]
    lease.frames = _number(device, U64_MAX), _number(inode, U64_MAX)
    return lease


def _port_lease(raw: dict[str, Any]) -> Lease:
    """Read a lease of a DPDK port."""
    lease = _common(raw)
    lease.device = _text(raw["device"])
    if not lease.device:
        raise ValueError("a port without a device")
    lease.queues = _number(raw["queues"], QUEUES_MAX, 1)
    return lease


def _common(raw: dict[str, Any]) -> Lease:
    owner = raw["owner"]
    return Lease(
        lease_id=_number(raw["lease_id"], U64_MAX, 1),
        owner=Owner(
            _number(owner["pid"], PID_MAX, 1),
            _number(owner["start_ticks"], U64_MAX),
            _number(owner["uid"], U32_MAX),
        ),
        ifname=_text(raw["ifname"]),
        ifindex=0,
        queue=0,
        ports=None,
        label=_text(raw["label"]),
        since_s=_seconds(raw["since_s"]),
        frame_count=_number(raw.get("frame_count", 0), U32_MAX),
        frame_size=_number(raw.get("frame_size", 0), U32_MAX),
        page_bytes=_number(raw.get("page_bytes", 0), U32_MAX),
        active=bool(raw.get("active", True)),
        marks=[_text(mark) for mark in raw.get("marks", [])],
    )


def _address(value: Any) -> str:
    raw = bytes.fromhex(value)
    if len(raw) != 16:
        raise ValueError(f"{str(value)[:40]!r} is no address")
    return raw.hex()


def decode(text: str) -> State:
    """Parse the text; BadStateError with the reason. Fields of later versions are ignored."""
    try:
        raw = json.loads(text)
        if raw["format"] != VERSION:
            raise BadStateError(f"format {raw['format']}, and this harpd knows {VERSION}")
        return State(
            pid=_number(raw["pid"], PID_MAX),
            start_ticks=_number(raw["start_ticks"], U64_MAX),
            version=_text(raw["version"]),
            nics={
                str(name): NicState(
                    _number(nic["ifindex"], PID_MAX),
                    _text(nic["pins"]),
                    [_address(address) for address in nic["addresses"]],
                )
                for name, nic in raw["nics"].items()
            },
            leases=[_lease(lease) for lease in raw["leases"]]
            + [_port_lease(lease) for lease in raw.get("port_leases", [])],
            rests={
                str(name): [
                    (Block(_number(a, 65535, 1), _number(b, 65535, 1)), _seconds(until))
                    for a, b, until in rests
                ]
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
        """Read the state of the previous harpd; None without one. BadStateError, OSError, or
        HarpError if other users can change it, because harpd acts on it as root.
        """
        try:
            raw = files.read(self.path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except files.UntrustedError as error:
            raise HarpError(f"the state is not trusted: {error.strerror}, or remove it") from error
        except (files.NotRegularError, IsADirectoryError) as error:
            raise BadStateError(str(error.strerror)) from error
        if len(raw) > FILE_BYTES_MAX:
            raise BadStateError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
        try:
            return decode(raw.decode())
        except UnicodeDecodeError as error:
            raise BadStateError(str(error)) from error

    def write(self, state: State) -> None:
        """Replace the file as a whole; OSError leaves the old one unchanged."""
        try:
            # Remove whatever has this name: a killed harpd or another program left it.
            self._new.unlink(missing_ok=True)
            fd = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(encode(state))
            self._new.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise

    def set_aside(self) -> Path:
        """Rename an unreadable file, so that a person may examine it."""
        aside = self.path.with_suffix(".bad")
        self.path.replace(aside)
        return aside

    def remove(self) -> None:
        """Remove the file: there is no state."""
        self.path.unlink(missing_ok=True)
