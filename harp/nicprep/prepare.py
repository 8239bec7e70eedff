# SPDX-License-Identifier: Apache-2.0
"""prepare() at harpd's start and at each reload, restore() at its stop."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harp.config import NicConfig
from harp.nicprep import ranges
from harp.nicprep.host import Host
from harp.nicprep.plan import Change, plan, plan_host, reserved_ports
from harp.nicprep.undo import Entry, Outcome, Record, Result, Undo, apply, no_record, restore


def prepare(
    nics: Sequence[NicConfig],
    huge_pages: int,
    host: Host,
    record: Record = no_record,
    undo: Undo | None = None,
) -> Result:
    """Prepare the host and its NICs; restore first what an earlier call changed and is no longer
    requested. Blocks: a NIC may take a second to change its rings.

    The number of queues comes first and the rest is read after it, because the interrupts change
    with the queues.

    Parameters
    ----------
    nics
        Requests of harp.toml.
    huge_pages
        Huge pages of 2 MiB that the host must have; 0: unchanged.
    record
        Writes the list of changes, before and after each change.
    undo
        Changes of earlier calls.
    """
    result = Result(undo=undo or Undo())

    def requests() -> list[Change]:
        found = plan_host(nics, huge_pages, host)
        for nic in nics:
            found += plan(nic, host)
        return found

    for part in _unwanted(result.undo, requests(), reserved_ports(nics)):
        back = restore(Undo((part,)), host)
        result.outcomes += back.outcomes
        if not back.undo.entries:
            result.undo = _less(result.undo, part)
    queues = [change for change in requests() if change.kind == "channels"]
    made = apply(queues, host, record, result.undo)
    result.outcomes += made.outcomes
    rest = [change for change in requests() if change.kind != "channels"]
    made = apply(rest, host, record, made.undo)
    result.outcomes += made.outcomes
    result.undo = made.undo
    try:
        record(result.undo)
    except OSError as error:
        result.outcomes.append(Outcome("partly", "the list of changes", f"not recorded: {error}"))
    return result


def _unwanted(undo: Undo, wanted: Iterable[Change], reserved: set[int]) -> list[Entry]:
    """Return the parts of undo that no request covers, value by value, last first."""
    covered: dict[tuple[str, str], set[str]] = {}
    for change in wanted:
        covered.setdefault((change.kind, change.target), set()).update(change.after)
    parts = []
    for entry in reversed(undo.entries):
        names = entry.before.keys() - covered.get((entry.kind, entry.target), set())
        if entry.kind == "reserved-ports":
            ours = ranges.parse(entry.after["ports"]) - ranges.parse(entry.before["ports"])
            names = set() if ours <= reserved else set(entry.before)
        if names:
            before = {name: entry.before[name] for name in names}
            after = {name: entry.after[name] for name in names if name in entry.after}
            parts.append(replace(entry, before=before, after=after))
    return parts


def _less(undo: Undo, part: Entry) -> Undo:
    """Return undo without what was restored."""
    entry = undo.find(part.kind, part.target)
    assert entry is not None
    before = {name: value for name, value in entry.before.items() if name not in part.before}
    if not before:
        return undo.drop(part.kind, part.target)
    after = {name: value for name, value in entry.after.items() if name not in part.before}
    return undo.put(replace(entry, before=before, after=after))
