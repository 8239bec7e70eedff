# SPDX-License-Identifier: Apache-2.0
"""Reads a statistics page: a snapshot of values that its owner wrote."""

import contextlib
import errno
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from harp import _page
from harp.errors import HarpError
from harp.stats import schema
from harp.words import printable

FLOWS_MAX = 65536
RAILS_MAX = 64
Items: TypeAlias = np.ndarray[Any, np.dtype[np.void]]


class PageError(HarpError):
    """The page can't be read: it is invalid, of another version, or its owner has died."""

    def __init__(self, message: str, error: int) -> None:
        super().__init__(message)
        self.errno = error


def text(raw: bytes) -> str:
    """Return a string of a page as plain text without escape sequences."""
    return printable(raw.split(b"\0", 1)[0].decode("utf-8", "replace"))


@dataclass(frozen=True)
class Identity:
    """The publisher, as its owner claims."""

    pid: int
    queue: int
    instance: int
    lease_id: int
    netns: int
    start_wall_ns: int
    ifname: str
    label: str
    describe: str
    library: str


@dataclass(frozen=True)
class Status:
    """The stack's state when it last published."""

    published_ns: int
    publications: int
    flows_open: int
    flows_hidden: int
    ended: bool
    note: str
    comms_open: int = 0  # the next two: of a job
    comms_hidden: int = 0


_Kind = TypeVar("_Kind", Identity, Status)


@dataclass(frozen=True)
class Snapshot:
    """A page of a stack. Each part is consistent in itself, and was read at its own time."""

    identity: Identity
    status: Status
    counters: np.void  # a field per statistic of harp_stats.h
    histograms: Items  # by the order of HARP_HISTOGRAMS
    flows: Items  # open ones only
    # The driver's counters of the port, by the driver's names; only on queue 0.
    xstats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSnapshot:
    """A page of a job. Each record is consistent in itself, and was read at its own time."""

    identity: Identity
    status: Status
    counters: np.void  # a field per counter of HARP_JOB_COUNTERS
    rails: Items  # the next three: records in use only
    comms: Items
    lanes: Items


_Of = TypeVar("_Of", Snapshot, JobSnapshot)


@dataclass(frozen=True)
class Published(Generic[_Of]):
    """A process and its page. pid, uid and comm are the kernel's."""

    pid: int
    uid: int
    comm: str
    snapshot: _Of

    @property
    def key(self) -> tuple[int, int, int]:
        """A key that identifies an instance or a job over time."""
        identity = self.snapshot.identity
        return self.pid, identity.start_wall_ns, identity.instance

    def document(self) -> dict[str, Any]:
        """Return what documents of instances and jobs have in common."""
        snapshot, counters = self.snapshot, self.snapshot.counters
        return {
            "pid": self.pid,
            "uid": self.uid,
            "comm": self.comm,
            "identity": vars(snapshot.identity),
            "status": vars(snapshot.status),
            "counters": {name: int(counters[name]) for name in counters.dtype.names or ()},
        }


Instance = Published[Snapshot]
Job = Published[JobSnapshot]


def _items(fd: int, part: int, dtype: np.dtype[np.void], count: int, item_bytes: int = 0) -> Items:
    """Read a part; items that an older page lacks are 0."""
    item_bytes = item_bytes or dtype.itemsize
    size = dtype.itemsize * count
    raw = _page.read(fd, part, item_bytes, size // item_bytes)
    return np.frombuffer(raw.ljust(size, b"\0"), dtype)


def _record(fd: int, part: int, name: str, kind: type[_Kind]) -> _Kind:
    """Read a part with a single record into a dataclass with the fields of its struct."""
    (item,) = _items(fd, part, schema.record_type(name), 1)
    values: dict[str, Any] = {
        member.name: text(item[member.name])
        if member.type is str
        else member.type(item[member.name])
        for member in fields(kind)
        if callable(member.type)
    }
    return kind(**values)


def _identity(fd: int) -> Identity:
    return _record(fd, _page.IDENTITY, "identity", Identity)


def _status(fd: int) -> Status:
    return _record(fd, _page.STATUS, "status", Status)


def _counters(fd: int, part: int, dtype: np.dtype[np.void]) -> np.void:
    result: np.void = _items(fd, part, dtype, 1, 8)[0]
    return result


def _records(fd: int, part: int, name: str, used: str, most: int) -> Items:
    """Return the records of a part whose `used` is not 0."""
    dtype = schema.record_type(name)
    records = np.frombuffer(_page.read(fd, part, dtype.itemsize, most), dtype)
    result: Items = records[records[used] != 0]
    return result


def _xstats(fd: int) -> dict[str, int]:
    """Return the counters up to the first without a name; of equal names the first."""
    result: dict[str, int] = {}
    dtype = schema.record_type("xstat")
    try:
        items = np.frombuffer(_page.read(fd, _page.XSTATS, dtype.itemsize, _page.XSTATS_MAX), dtype)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return {}  # the thread that wrote it died; the stack may still run
    for item in items:
        if not item["name"]:
            break
        result.setdefault(text(item["name"]), int(item["value"]))
    return result


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EBUSY:
            why = "its owner is in the middle of a write, stopped or dead"
        raise PageError(f"statistics page: {why}", error.errno or errno.EIO) from error


def identity(fd: int) -> tuple[Identity, bool]:
    """Return the owner, and whether the page is a job's. PageError."""
    with _refusals():
        _page.check(fd)
        return _identity(fd), len(_page.read(fd, _page.JOB, 8, 1)) > 0


def read(fd: int, *, flows: bool = True) -> Snapshot:
    """Read the page of a stack; without flows, not the records of connections. PageError."""
    with _refusals():
        _page.check(fd)
        return Snapshot(
            _identity(fd),
            _status(fd),
            _counters(fd, _page.COUNTERS, schema.counters_type()),
            _items(
                fd, _page.HISTOGRAMS, schema.record_type("histogram"), len(_page.LISTS["histogram"])
            ),
            _records(fd, _page.FLOWS, "flow", "state", FLOWS_MAX if flows else 0),
            _xstats(fd),
        )


def read_job(fd: int, *, lanes: bool = True) -> JobSnapshot:
    """Read the page of a job; without lanes, not the records of comms and lanes. PageError."""
    most = FLOWS_MAX if lanes else 0
    with _refusals():
        _page.check(fd)
        return JobSnapshot(
            _identity(fd),
            _status(fd),
            _counters(fd, _page.JOB, schema.job_type()),
            _records(fd, _page.RAILS, "rail", "kind", RAILS_MAX),
            _records(fd, _page.COMMS, "comm", "state", most),
            _records(fd, _page.LANES, "lane", "state", most),
        )


def address(raw: bytes) -> str:
    """ "10.0.0.1" or "fd00::1" of a record's 16 bytes."""
    parsed = ipaddress.IPv6Address(bytes(raw))
    return str(parsed.ipv4_mapped or parsed)
