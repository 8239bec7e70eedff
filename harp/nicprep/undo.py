# SPDX-License-Identifier: Apache-2.0
"""Reversible changes, which another process can restore after a crash.

Theory of operation. Before a change, its old and requested values are written to a file (an entry
of state "intent"); after it, the resulting values ("done"). A process that dies between the two
leaves an intent, and the restoring process compares it with the present values. Equal to the old
ones: nothing to do. Equal to the requested ones: our change, which is restored. Anything else:
another program changed it after us, and its change stays. A change that can't be written to the
file is not made. An entry is dropped if its interface is gone, or its name belongs to another one.
"""

import errno
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harp.errors import HarpError
from harp.nicprep import ranges
from harp.nicprep.host import Host
from harp.nicprep.kinds import ABSENT, KINDS, Back, way_back
from harp.nicprep.plan import Change, short
from harp.nicprep.transport import Values

VERSION = 1
_NODEV = (errno.ENODEV, errno.ENXIO)
# A target becomes part of a path.
_IFNAME = re.compile(r"(?!\.{1,2}( |$))[^/\s]{1,15}")
_TARGETS = {
    "irq-affinity": re.compile(_IFNAME.pattern + r" irq \d{1,9}"),
    "huge-pages": re.compile(r"(node\d{1,4}/)?\d{1,9}kB"),
    "reserved-ports": re.compile(""),
}

Status = Literal["done", "partly", "not supported", "refused", "restored", "left", "gone"]


@dataclass(frozen=True)
class Outcome:
    """The result of one change, or of restoring it: one line for people."""

    status: Status
    name: str  # "eth0 ring sizes"
    text: str

    @property
    def line(self) -> str:
        """Return the line for a log."""
        return f"{self.name}: {self.status}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class Entry:
    """A setting that we changed, or were about to."""

    kind: str
    target: str
    before: Values
    after: Values
    state: Literal["intent", "done"]
    ifindex: int  # 0: not a NIC's
    # Of an intent: the result of an earlier change of ours, which is ours as well.
    earlier: Values = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ "eth0 ring sizes"."""
        return f"{self.target} {KINDS[self.kind].title}".strip()


@dataclass(frozen=True)
class Undo:
    """All changes to restore, in the order in which they were made."""

    entries: tuple[Entry, ...] = ()

    def find(self, kind: str, target: str) -> Entry | None:
        """Return the entry of one setting."""
        for entry in self.entries:
            if (entry.kind, entry.target) == (kind, target):
                return entry
        return None

    def put(self, entry: Entry) -> "Undo":
        """Return a list with this entry, which replaces an older one of the same setting."""
        old = self.find(entry.kind, entry.target)
        if old is None:
            return Undo((*self.entries, entry))
        return Undo(tuple(entry if each is old else each for each in self.entries))

    def drop(self, kind: str, target: str) -> "Undo":
        """Return a list without the entry of one setting."""
        return Undo(
            tuple(each for each in self.entries if (each.kind, each.target) != (kind, target))
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON for a state file."""
        return {"version": VERSION, "changes": [vars(entry) for entry in self.entries]}

    @classmethod
    def from_json(cls, value: object) -> "Undo":
        """Convert from JSON; HarpError describes what is invalid."""
        if value is None:
            return cls()
        try:
            if not isinstance(value, dict) or value["version"] != VERSION:
                raise ValueError(f"version {VERSION} expected")
            return cls(tuple(_entry(each) for each in value["changes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise HarpError(f"the list of changes to NICs is damaged: {error}") from error


@dataclass
class Result:
    """The results, and the remaining changes to restore."""

    outcomes: list[Outcome] = field(default_factory=list)
    undo: Undo = field(default_factory=Undo)


Record = Callable[[Undo], None]


def no_record(_undo: Undo) -> None:
    """Record nothing, for changes that end with the process."""


def apply(
    changes: Iterable[Change], host: Host, record: Record = no_record, undo: Undo | None = None
) -> Result:
    """Make changes one by one; a failure is reported and the others continue.

    Parameters
    ----------
    record
        Writes the list of changes, before and after each change. If it raises OSError before a
        change, the change is not made.
    undo
        Earlier changes that are still to be restored.
    """
    result = Result(undo=undo or Undo())
    for change in changes:
        if change.problem:
            status: Status = "not supported" if change.absent else "refused"
            result.outcomes.append(Outcome(status, change.name, change.problem))
        elif change.needed:
            _apply_one(change, host, record, result)
    return result


def restore(undo: Undo, host: Host, record: Record = no_record) -> Result:
    """Restore everything, last first; failures stay in the result's undo."""
    result = Result(undo=undo)
    for entry in reversed(undo.entries):
        outcome, settled = _restore_one(entry, host)
        if outcome is not None:
            result.outcomes.append(outcome)
        if settled:
            result.undo = result.undo.drop(entry.kind, entry.target)
            try:
                record(result.undo)
            except OSError as error:
                # It is restored all the same; a reader of the old list will find it so.
                result.outcomes.append(Outcome("partly", entry.name, f"not recorded: {error}"))
    return result


# --------------------------------------------------------------------------------------------------


def _entry(value: Any) -> Entry:
    entry = Entry(**value)
    if entry.kind not in KINDS:
        raise ValueError(f"unknown kind {entry.kind!r}")
    good = isinstance(entry.target, str) and isinstance(entry.ifindex, int)
    values = (entry.before, entry.after, entry.earlier)
    if not good or not all(isinstance(each, dict) for each in values):
        raise ValueError(f"{entry.kind}: wrong types")
    if entry.state not in ("intent", "done"):
        raise ValueError(f"{entry.kind}: state {entry.state!r}")
    if not _TARGETS.get(entry.kind, _IFNAME).fullmatch(entry.target):
        raise ValueError(f"{entry.kind}: target {entry.target!r}")
    if entry.kind == "reserved-ports":
        ranges.parse(entry.before["ports"]), ranges.parse(entry.after["ports"])
    if entry.kind == "huge-pages" and not all(
        isinstance(pages, int) for pages in (entry.before["pages"], entry.after["pages"])
    ):
        raise ValueError("huge-pages: no number")
    return entry


def _apply_one(change: Change, host: Host, record: Record, result: Result) -> None:
    kind, old, undo = KINDS[change.kind], result.undo.find(change.kind, change.target), result.undo
    ifindex = 0
    if kind.of_nic:
        ifindex = host.ifindex(change.target.split(" ")[0]) or 0
    entry = _merged(old, change, ifindex)

    def report(status: Status, text: str) -> None:
        result.outcomes.append(Outcome(status, change.name, text))

    try:
        record(undo.put(entry))
    except OSError as error:
        report("refused", f"not changed, because the change can't be recorded: {error}")
        return
    result.undo = undo.put(entry)
    failure = ""
    try:
        kind.write(host, change.target, change.after)
    except OSError as error:
        failure = error.strerror or str(error)
    try:
        present = kind.read(host, change.target)
        now = {name: present.get(name) for name in change.after}
    except (OSError, ValueError) as error:
        report("refused", f"{failure or 'changed'}, and can't be read any more: {error}")
        return  # the intent stays, because the present value is unknown
    if now == change.after:
        result.undo = undo.put(replace(entry, state="done", earlier={}))
        report("done", change.line.partition(": ")[2])
    elif now == change.before:
        result.undo = undo.put(old) if old else undo.drop(change.kind, change.target)
        report("refused", failure or "the kernel accepted it and changed nothing")
    else:
        made = {**entry.after, **now}
        result.undo = undo.put(replace(entry, after=made, state="done", earlier={}))
        got = ", ".join(f"{name} {short(value)}" for name, value in now.items())
        report("partly", f"{got}" + (f": {failure}" if failure else ""))
    try:
        record(result.undo)
    except OSError as error:
        # The recorded intent has the same effect.
        report("partly", f"its end is not recorded: {error}")


def _merged(old: Entry | None, change: Change, ifindex: int) -> Entry:
    """Return the entry of a repeated change, with the values before the first one."""
    if old is None or old.ifindex != ifindex:
        return Entry(change.kind, change.target, change.before, change.after, "intent", ifindex)
    before, after = {**old.before, **change.before}, {**old.after, **change.after}
    earlier: Values = {}
    if change.kind == "reserved-ports":
        reserved = ranges.parse(old.after["ports"]) - ranges.parse(old.before["ports"])
        theirs = ranges.parse(change.before["ports"]) - reserved
        before = {"ports": ranges.text(theirs)}
    else:
        ours = _ours(old, change.before)
        for name, value in old.before.items():
            if name not in change.before or ours.get(name) == change.before[name]:
                before[name] = value
                earlier[name] = ours.get(name)
    return Entry(change.kind, change.target, before, after, "intent", ifindex, earlier)


def _restore_one(entry: Entry, host: Host) -> tuple[Outcome | None, bool]:
    """Return what to report, if anything, and whether the entry is finished."""
    kind = KINDS[entry.kind]
    if kind.of_nic and host.ifindex(entry.target.split(" ")[0]) != entry.ifindex:
        return Outcome("gone", entry.name, "the interface is gone, or another one now"), True
    try:
        back = _way_back(entry, kind.read(host, entry.target))
        if back.write:
            kind.write(host, entry.target, back.write)
            now = kind.read(host, entry.target)
            if any(now.get(name) != value for name, value in back.write.items()):
                return Outcome(
                    "refused", entry.name, "the kernel accepted the old value and did not apply it"
                ), False
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in ABSENT or number in _NODEV:
            return Outcome("gone", entry.name, "the setting no longer exists"), True
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Outcome("refused", entry.name, f"not restored: {text}"), False
    if back.theirs:
        left = ", ".join(f"{name} {short(value)}" for name, value in back.theirs.items())
        return Outcome("left", entry.name, f"changed by another program since: {left}"), True
    if not back.write:
        return None, True
    restored = ", ".join(f"{name} {short(value)}" for name, value in back.write.items())
    return Outcome("restored", entry.name, restored), True


def _ours(entry: Entry, now: Values) -> Values:
    """Return the values that are ours. After an intent there are several: its process may have died
    before the change, after it, or when the kernel had provided fewer pages than requested.
    """
    ours = dict(entry.after)
    unsure = entry.kind == "huge-pages" and entry.state == "intent"
    for name in entry.after.keys() & now.keys():
        earlier = name in entry.earlier and now[name] == entry.earlier[name]
        if earlier or (unsure and entry.before[name] < now[name] <= entry.after[name]):
            ours[name] = now[name]
    return ours


def _way_back(entry: Entry, now: Values) -> Back:
    return way_back(entry.kind, entry.before, _ours(entry, now), now)
