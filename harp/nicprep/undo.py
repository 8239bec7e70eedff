# SPDX-License-Identifier: Apache-2.0
"""Reversible changes, which another process can restore after a crash.

Theory of operation. Before a change, its old and requested values are written to a file; after it,
the resulting ones. Each value of an entry has a list of those that are ours: the requested one, and
until the result is recorded also the present one if that is ours. So a process that dies at any
moment leaves a list with which another one can tell. A value that equals the old one needs nothing;
one of ours is restored; any other is of a program that changed it after us, and stays. A change
that can't be written to the file is not made. An entry is dropped if its interface is gone, or its
name belongs to another one.
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
    """The result of one change, or of restoring it: one line for people."""

    status: Status
    name: str  # "eth0 ring sizes"
    text: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.status}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class Entry:
    """A setting that we changed, or were about to."""

    kind: str
    target: str
    before: Values  # to restore
    ours: dict[str, list[Any]]  # by the same names, the values that are ours
    ifindex: int  # the NIC's; 0: not a NIC's

    @property
    def key(self) -> Key:
        return self.kind, self.target

    @property
    def name(self) -> str:
        return f"{self.target} {KINDS[self.kind].title}"

    @property
    def is_restorable(self) -> bool:
        """Tell whether this version can restore it: another one may have written it."""
        needed = {"ports"} if self.kind == PORTS_KIND else set()
        complete = needed <= self.before.keys() <= self.ours.keys()
        return self.kind in KINDS and isinstance(self.target, str) and complete

    @property
    def added(self) -> set[int]:
        return ranges.parse(self.ours["ports"][-1]) - ranges.parse(self.before["ports"])

    def owns(self, name: str, value: Any) -> bool:
        """Tell whether a present value is ours; fewer pages than requested are."""
        ours = self.ours[name]
        fewer = self.kind == "huge-pages" and self.before[name] < value <= max(ours)
        return value in ours or fewer

    def only(self, names: Iterable[str]) -> "Entry":
        kept = list(names)
        return replace(
            self,
            before={name: self.before[name] for name in kept},
            ours={name: self.ours[name] for name in kept},
        )

    def way_back(self, now: Values) -> tuple[Values, Values]:
        """Return the values to write, and those that another program changed meanwhile."""
        if self.kind == PORTS_KIND:
            # Remove the ports that we added, and keep all others, older or newer.
            present = ranges.parse(now["ports"])
            left = {"ports": ranges.text(present - self.added)}
            return (left if self.added & present else {}), {}
        write: Values = {}
        theirs: Values = {}
        for name, old in self.before.items():
            value = now.get(name)
            if value != old:
                (write if self.owns(name, value) else theirs)[name] = value
        return {name: self.before[name] for name in write}, theirs


@dataclass(frozen=True)
class Undo:
    """All changes to restore, in the order in which they were made. False if there are none."""

    entries: list[Entry] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)  # JSON that only another version can restore

    def __bool__(self) -> bool:
        return bool(self.entries or self.unknown)

    def put(self, entry: Entry) -> "Undo":
        """Return a list with this entry in place of an older one; one without values is dropped."""
        entries = {each.key: each for each in self.entries} | {entry.key: entry}
        return replace(self, entries=[each for each in entries.values() if each.before])


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

    record writes the list of changes, before and after each change. If it raises OSError before a
    change, the change is not made. undo: earlier changes that are still to be restored.
    """
    result = Result(undo=undo or Undo())
    for change in changes:
        if change.problem:
            status: Status = "not supported" if change.absent else "refused"
            result.outcomes.append(Outcome(status, change.name, change.problem))
        elif change.needed:
            _apply_one(change, host, record, result)
    return result


def restore(
    undo: Undo, host: Host, record: Record = no_record, requested: Iterable[Change] = ()
) -> Result:
    """Restore every value that is not requested, last first; failures stay in the result's undo."""
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
                # It is restored all the same; a reader of the old list will find it so.
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
    """Prepare the host and its NICs; restore first what an earlier call changed and is no longer
    requested. Blocks: a NIC may take a second to change its rings.
    """

    def requests() -> list[Change]:
        found = plan_host(nics, huge_pages, host)
        for nic in nics:
            found += plan(nic, host)
        return found

    result = restore(undo or Undo(), host, record, requests())
    # The number of queues comes first and the rest is read after it, because the interrupts change
    # with the queues.
    for of_queues in (True, False):
        changes = [each for each in requests() if (each.kind == "channels") is of_queues]
        made = apply(changes, host, record, result.undo)
        result = Result(result.outcomes + made.outcomes, made.undo)
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
        trouble = outcome.status not in ("done", "restored", "gone")
        log.log(logging.WARNING if trouble else logging.INFO, "%s", outcome.line)


def _apply_one(change: Change, host: Host, record: Record, result: Result) -> None:
    kind, undo = KINDS[change.kind], result.undo
    ifindex = (host.ifindex(change.target.split(" ")[0]) or 0) if kind.of_nic else 0
    key = change.kind, change.target
    old = next((each for each in undo.entries if each.key == key), None)
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
        present = kind.read(host, change.target)
        now = {name: present.get(name) for name in change.after}
    except (OSError, ValueError) as error:
        report("refused", f"{failure or 'changed'}, and can't be read any more: {error}")
        return  # the intent stays, because the present value is unknown
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
        # The recorded intent has the same effect.
        report("partly", f"its end is not recorded: {error.strerror or error}")


def _intent(old: Entry | None, change: Change, ifindex: int) -> Entry:
    """Return the entry of a change, with the values before the first of our changes."""
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
    """Return what to report, if anything, and whether the entry is finished."""
    kind = KINDS[entry.kind]
    if kind.of_nic and host.ifindex(entry.target.split(" ")[0]) != entry.ifindex:
        return Outcome("gone", entry.name, "the interface is gone, or another one now"), True
    try:
        write, theirs = entry.way_back(kind.read(host, entry.target))
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
        left = ", ".join(f"{name} {short(value)}" for name, value in theirs.items())
        return Outcome("left", entry.name, f"changed by another program since: {left}"), True
    if not write:
        return None, True
    restored = ", ".join(f"{name} {short(value)}" for name, value in write.items())
    return Outcome("restored", entry.name, restored), True
