# SPDX-License-Identifier: Apache-2.0
"""Reversible changes, which another process can restore after a crash.

Theory of operation. An entry has the old values of a setting, and for each of them the values that
HARP has set or was about to set ("ours"). It is written to a file before the change, with the
requested values, and after it, with the resulting ones. A change that can't be recorded is not
made. So another process can restore the setting after a crash at any moment:

- A value that equals the old one needs no action.
- A value that is ours is restored.
- Any other value was set by another program after HARP, and stays.

An entry is dropped if its interface was removed, or if its name belongs to another one.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harp.config import NicConfig
from harp.nicprep import ranges
from harp.nicprep.host import Host
from harp.nicprep.kinds import ABSENT, KINDS, PORTS_KIND
from harp.nicprep.plan import Change, plan, plan_host, short
from harp.nicprep.transport import Values

log = logging.getLogger("harpd")
_NODEV = (errno.ENODEV, errno.ENXIO)
Status = Literal["done", "partly", "not supported", "refused", "restored", "left", "gone"]
Key = tuple[str, str]  # kind and target of a setting


@dataclass(frozen=True)
class Outcome:
    """The result of one change, or of restoring it, as a line for the log."""

    status: Status
    name: str  # "eth0 ring sizes"
    text: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.status}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class Entry:
    """A setting that HARP has changed, or is about to change."""

    kind: str
    target: str
    before: Values  # to restore
    ours: dict[str, list[Any]]  # by the same names, the values that HARP set
    ifindex: int  # of the NIC; 0: it is a setting of the host

    @property
    def key(self) -> Key:
        return self.kind, self.target

    @property
    def name(self) -> str:
        return f"{self.target} {KINDS[self.kind].title}"

    @property
    def is_restorable(self) -> bool:
        """Tell whether this version can restore it, because another version may have written it."""
        needed = {"ports"} if self.kind == PORTS_KIND else set()
        complete = needed <= self.before.keys() <= self.ours.keys()
        return self.kind in KINDS and isinstance(self.target, str) and complete

    @property
    def added(self) -> set[int]:
        return ranges.parse(self.ours["ports"][-1]) - ranges.parse(self.before["ports"])

    def owns(self, name: str, value: Any) -> bool:
        """Tell whether HARP set a value. The kernel may allocate fewer pages than requested."""
        ours = self.ours[name]
        fewer = self.kind == "huge-pages" and self.before[name] < value <= max(ours)
        return value in ours or fewer

    def only(self, names: Iterable[str]) -> "Entry":
        names = list(names)
        return replace(
            self,
            before={name: self.before[name] for name in names},
            ours={name: self.ours[name] for name in names},
        )

    def plan_restore(self, now: Values) -> tuple[Values, Values]:
        """Return the values to write, and those that another program changed meanwhile."""
        if self.kind == PORTS_KIND:
            # Remove the ports that HARP added, and keep all others.
            current = ranges.parse(now["ports"])
            remaining = {"ports": ranges.text(current - self.added)}
            return (remaining if self.added & current else {}), {}
        write: Values = {}
        theirs: Values = {}
        for name, old in self.before.items():
            value = now.get(name)
            if value != old:
                (write if self.owns(name, value) else theirs)[name] = value
        return {name: self.before[name] for name in write}, theirs


@dataclass(frozen=True)
class Undo:
    """All changes to restore, the oldest first. False if there are none."""

    entries: list[Entry] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)  # JSON that only another version can restore

    def __bool__(self) -> bool:
        return bool(self.entries or self.unknown)

    def put(self, entry: Entry) -> "Undo":
        """Return a copy with this entry instead of one with its key; none if it has no values."""
        entries = {old.key: old for old in self.entries} | {entry.key: entry}
        return replace(self, entries=[item for item in entries.values() if item.before])


@dataclass
class Result:
    """The results, and the remaining changes to restore."""

    outcomes: list[Outcome] = field(default_factory=list)
    undo: Undo = field(default_factory=Undo)


Record = Callable[[Undo], None]


def no_record(_undo: Undo) -> None:
    """Record nothing, for changes that need no restore after a crash."""


def apply(
    changes: Iterable[Change], host: Host, record: Record = no_record, undo: Undo | None = None
) -> Result:
    """Make changes one by one; after a failure the others continue.

    record: stores the list of changes, before and after each change. If it raises OSError before a
    change, the change is not made. undo: earlier changes that are not restored yet.
    """
    result = Result(undo=undo or Undo())
    for change in changes:
        if change.problem:
            status: Status = "not supported" if change.absent else "refused"
            result.outcomes.append(Outcome(status, change.name, change.problem))
        elif change.is_needed:
            _apply_one(change, host, record, result)
    return result


def restore(
    undo: Undo, host: Host, record: Record = no_record, requested: Iterable[Change] = ()
) -> Result:
    """Restore every value that is not requested, the newest change first. Values that can't be
    restored stay in the result's undo.
    """
    result = Result(undo=undo)
    keep: dict[Key, set[str]] = {}
    for change in requested:
        keep.setdefault((change.kind, change.target), set()).update(change.after)
    for entry in reversed(undo.entries):
        kept = entry.before.keys() & keep.get(entry.key, set())
        part = entry.only(entry.before.keys() - kept)
        outcome, settled = _restore_one(part, host) if part.before else (None, False)
        if outcome is not None:
            result.outcomes.append(outcome)
        if settled:
            result.undo = result.undo.put(entry.only(kept))
            try:
                record(result.undo)
            except OSError as error:
                # It is restored. A later restore finds the old value, and does nothing.
                result.outcomes.append(
                    Outcome("partly", entry.name, f"not recorded: {error.strerror or error}")
                )
    return result


def prepare(
    nics: Sequence[NicConfig],
    huge_pages: int,
    host: Host,
    record: Record = no_record,
    undo: Undo | None = None,
) -> Result:
    """Prepare the host and its NICs, after restoring earlier changes that are no longer requested.
    This blocks: a NIC may take a second to change its rings.
    """

    def requests() -> list[Change]:
        changes = plan_host(nics, huge_pages, host)
        for nic in nics:
            changes += plan(nic, host)
        return changes

    result = restore(undo or Undo(), host, record, requests())
    # The number of queues comes first, because the interrupts change with it.
    for of_queues in (True, False):
        changes = [change for change in requests() if (change.kind == "channels") is of_queues]
        applied = apply(changes, host, record, result.undo)
        result = Result(result.outcomes + applied.outcomes, applied.undo)
    return result


class Preparation:
    """Prepares and restores the NICs of this host, and logs the results. Tests replace it."""

    def prepare(
        self, nics: Sequence[NicConfig], huge_pages: int, undo: Undo, record: Record
    ) -> None:
        _log(prepare(nics, huge_pages, Host(), record, undo))

    def restore(self, undo: Undo, record: Record) -> None:
        _log(restore(undo, Host(), record))


def _log(result: Result) -> None:
    for outcome in result.outcomes:
        good = outcome.status in ("done", "restored", "gone")
        log.log(logging.INFO if good else logging.WARNING, "%s", outcome.line)


def _apply_one(change: Change, host: Host, record: Record, result: Result) -> None:
    kind, undo = KINDS[change.kind], result.undo
    ifindex = (host.ifindex(change.target.split(" ")[0]) or 0) if kind.of_nic else 0
    key = change.kind, change.target
    old = next((item for item in undo.entries if item.key == key), None)
    entry = _intent(old if old and old.ifindex == ifindex else None, change, ifindex)

    def report(status: Status, text: str) -> None:
        result.outcomes.append(Outcome(status, change.name, text))

    try:
        record(undo.put(entry))
    except OSError as error:
        report(
            "refused",
            f"not changed, because the change can't be recorded: {error.strerror or error}",
        )
        return
    result.undo = undo.put(entry)
    failure = ""
    try:
        kind.write(host, change.target, change.after)
    except OSError as error:
        failure = error.strerror or str(error)
    try:
        current = kind.read(host, change.target)
        now = {name: current.get(name) for name in change.after}
    except (OSError, ValueError) as error:
        report("refused", f"{failure or 'changed'}, and can't be read any more: {error}")
        return  # the entry stays, because the current value is unknown
    if now == change.before:
        result.undo = undo.put(old or entry.only(()))
        report("refused", failure or "the kernel accepted it and changed nothing")
    else:
        ours = {name: [value] for name, value in now.items()}
        result.undo = undo.put(replace(entry, ours={**entry.ours, **ours}))
        got = ", ".join(f"{name} {short(value)}" for name, value in now.items())
        if now == change.after:
            report("done", change.line.partition(": ")[2])
        else:
            report("partly", got + (f": {failure}" if failure else ""))
    try:
        record(result.undo)
    except OSError as error:
        # The entry that was recorded before the change has the same effect.
        report("partly", f"its result is not recorded: {error.strerror or error}")


def _intent(old: Entry | None, change: Change, ifindex: int) -> Entry:
    """Return the entry of a change, with the values before HARP's first change."""
    before, ours = dict(change.before), {name: [value] for name, value in change.after.items()}
    if old is not None and change.kind == PORTS_KIND:
        before = {"ports": ranges.text(ranges.parse(change.before["ports"]) - old.added)}
    elif old is not None:
        for name, value in old.before.items():
            if name not in before:
                before[name], ours[name] = value, old.ours[name]
            elif old.owns(name, before[name]):
                ours[name].insert(0, before[name])
                before[name] = value
    return Entry(change.kind, change.target, before, ours, ifindex)


def _restore_one(entry: Entry, host: Host) -> tuple[Outcome | None, bool]:
    """Return the outcome, if there is one to report, and whether the entry is finished."""
    kind = KINDS[entry.kind]
    if kind.of_nic and host.ifindex(entry.target.split(" ")[0]) != entry.ifindex:
        return Outcome("gone", entry.name, "the interface is gone, or another one now"), True
    try:
        write, theirs = entry.plan_restore(kind.read(host, entry.target))
        if write:
            kind.write(host, entry.target, write)
            now = kind.read(host, entry.target)
            if any(now.get(name) != value for name, value in write.items()):
                return Outcome(
                    "refused", entry.name, "the kernel accepted the old value and did not apply it"
                ), False
    except (OSError, ValueError, LookupError, TypeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in ABSENT or number in _NODEV:
            return Outcome("gone", entry.name, "the setting no longer exists"), True
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Outcome("refused", entry.name, f"not restored: {text}"), False
    if theirs:
        values = ", ".join(f"{name} {short(value)}" for name, value in theirs.items())
        return Outcome("left", entry.name, f"changed by another program since: {values}"), True
    if not write:
        return None, True
    restored = ", ".join(f"{name} {short(value)}" for name, value in write.items())
    return Outcome("restored", entry.name, restored), True
