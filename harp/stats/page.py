# SPDX-License-Identifier: Apache-2.0
"""One page, read once: a snapshot of its owner's claims."""

import contextlib
import errno
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

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
    """Return a string of a page as plain text, whatever its owner wrote (no escape sequences)."""
    return printable(raw.split(b"\0", 1)[0].decode("utf-8", "replace"))


def of_kind(kind: Any, value: Any) -> Any:
    """Check the type of a value of a document; words become printable(). TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} where {kind.__name__} should be")
    return printable(value) if isinstance(value, str) else value


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


_Record = TypeVar("_Record", Identity, Status)


def restored(kind: type[_Record], given: Mapping[str, Any]) -> _Record:
    """Return the Identity or Status of a document, ignoring further members. LookupError,
    TypeError.
    """
    known = [each for each in fields(kind) if each.name in given or each.default is MISSING]
    return kind(**{each.name: of_kind(each.type, given[each.name]) for each in known})


@dataclass(frozen=True)
class Snapshot:
    """A page at one moment. Each part is consistent, and has its own moment."""

    identity: Identity
    status: Status
    counters: np.void  # a field per statistic of harp_stats.h
    histograms: Items  # by the order of HARP_HISTOGRAMS
    flows: Items  # open ones only
    # The driver's counters of the whole port, by its own names: of the instance on queue 0.
    xstats: Mapping[str, int] = field(default_factory=dict)

    def histogram(self, name: str) -> np.void:
        """Return a histogram: fields count, sum_ns, bucket."""
        names = [each for each, _ in _page.histograms()]
        result: np.void = self.histograms[names.index(name)]
        return result

    def drops(self) -> dict[str, int]:
        """Return the drops by reason that are not 0."""
        return {
            each.drop_reason: int(self.counters[each.name])
            for each in schema.drops()
            if each.drop_reason and self.counters[each.name]
        }


@dataclass(frozen=True)
class JobSnapshot:
    """A job's page at one moment. Each record is consistent, and has its own moment."""

    identity: Identity
    status: Status
    counters: np.void  # a field per counter of HARP_JOB_COUNTERS
    rails: Items  # the next three: records in use only
    comms: Items
    lanes: Items


def _one(fd: int, part: int, dtype: np.dtype[np.void]) -> np.void:
    raw = _page.read(fd, part, dtype.itemsize, 1)
    result: np.void = np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    return result


def _identity(fd: int) -> Identity:
    item = _one(fd, _page.IDENTITY, schema.identity_type())
    return Identity(
        pid=int(item["pid"]),
        queue=int(item["queue"]),
        instance=int(item["instance"]),
        lease_id=int(item["lease_id"]),
        netns=int(item["netns"]),
        start_wall_ns=int(item["start_wall_ns"]),
        ifname=text(item["ifname"]),
        label=text(item["label"]),
        describe=text(item["describe"]),
        library=text(item["library"]),
    )


def _status(fd: int) -> Status:
    item = _one(fd, _page.STATUS, schema.status_type())
    return Status(
        published_ns=int(item["published_ns"]),
        publications=int(item["publications"]),
        flows_open=int(item["flows_open"]),
        flows_hidden=int(item["flows_hidden"]),
        ended=bool(item["ended"]),
        note=text(item["note"]),
        comms_open=int(item["comms_open"]),
        comms_hidden=int(item["comms_hidden"]),
    )


def _numbers(fd: int, part: int, dtype: np.dtype[np.void]) -> np.void:
    raw = _page.read(fd, part, 8, dtype.itemsize // 8)
    result: np.void = np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    return result


def _histograms(fd: int) -> Items:
    dtype, count = schema.histogram_type(), len(_page.histograms())
    raw = _page.read(fd, _page.HISTOGRAMS, dtype.itemsize, count)
    return np.frombuffer(raw.ljust(dtype.itemsize * count, b"\0"), dtype)


def _records(fd: int, part: int, dtype: np.dtype[np.void], used: str, most: int) -> Items:
    """Return the records of a part whose `used` is not 0."""
    records = np.frombuffer(_page.read(fd, part, dtype.itemsize, most), dtype)
    result: Items = records[records[used] != 0]
    return result


def _xstats(fd: int) -> dict[str, int]:
    """Return those before the first without a name; of equal names the first."""
    result: dict[str, int] = {}
    dtype = schema.xstat_type()
    try:
        items = np.frombuffer(_page.read(fd, _page.XSTATS, dtype.itemsize, _page.XSTATS_MAX), dtype)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return {}  # its writer died, and is no part of the stack
    for item in items:
        if not item["name"]:
            break
        result.setdefault(text(item["name"]), int(item["value"]))
    return result


def _flows(fd: int) -> Items:
    return _records(fd, _page.FLOWS, schema.flow_type(), "state", FLOWS_MAX)


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
    """Read the page of a stack behind a descriptor. flows False: without flows. PageError."""
    with _refusals():
        _page.check(fd)
        nobody = np.empty(0, schema.flow_type())
        return Snapshot(
            _identity(fd),
            _status(fd),
            _numbers(fd, _page.COUNTERS, schema.counters_type()),
            _histograms(fd),
            _flows(fd) if flows else nobody,
            _xstats(fd),
        )


def read_job(fd: int, *, lanes: bool = True) -> JobSnapshot:
    """Read the page of a job behind a descriptor. lanes False: without comms and lanes.
    PageError.
    """
    most = FLOWS_MAX if lanes else 0
    with _refusals():
        _page.check(fd)
        return JobSnapshot(
            _identity(fd),
            _status(fd),
            _numbers(fd, _page.JOB, schema.job_type()),
            _records(fd, _page.RAILS, schema.rail_type(), "kind", RAILS_MAX),
            _records(fd, _page.COMMS, schema.comm_type(), "state", most),
            _records(fd, _page.LANES, schema.lane_type(), "state", most),
        )


def address(raw: bytes) -> str:
    """ "10.0.0.1" or "fd00::1" of a record's 16 bytes."""
    parsed = ipaddress.IPv6Address(bytes(raw))
    return str(parsed.ipv4_mapped or parsed)


def endpoint(raw: bytes, port: int) -> str:
    """ "10.0.0.1:61000" or "[fd00::1]:61000"."""
    shown = address(raw)
    return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
