# SPDX-License-Identifier: Apache-2.0
"""Findings of `harpctl check`, and the list of all checks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal


class Severity(IntEnum):
    """Severity of a finding; the numbers are those of struct harp_check_item."""

    GOOD = 0
    COSTS = 1  # works, at a cost in performance
    NO = 2  # HARP cannot work

    @property
    def word(self) -> str:
        """Return ok, warn or fail, for people and the JSON document."""
        return ("ok", "warn", "fail")[self]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    severity: Severity
    text: str
    remedy: str = ""  # remedy; never empty for warn and fail

    def to_json(self) -> dict[str, str]:
        """Return the finding for scripts: the keys never change their meaning."""
        return {
            "name": self.name,
            "severity": self.severity.word,
            "text": self.text,
            "remedy": self.remedy,
        }


# port: a DPDK port's specification, before it is opened; opened: its properties; used: it was not
# opened, because a job has it.
Scope = Literal["host", "interface", "port", "opened", "used"]


@dataclass(frozen=True)
class Check:
    """One check. function: of a host (view), of an interface (view, link, queue), of a port (view,
    spec), of an opened one (view, spec, look), of one in use (view, spec, use); returns (severity,
    text, remedy), or None without a finding. description: what it examines, a colon, and why.
    """

    name: str
    scope: Scope
    description: str
    function: Callable[..., "Answer"] | None  # None: the C stack's own (harp_host_check)


Answer = tuple[Severity, str, str] | None
CHECKS: list[Check] = []


def check(name: str, scope: Scope) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function as a check, with its docstring as the description."""

    def put(function: Callable[..., Answer]) -> Callable[..., Answer]:
        assert name not in {each.name for each in CHECKS}, name
        CHECKS.append(Check(name, scope, function.__doc__ or "", function))
        return function

    return put


def good(text: str) -> Answer:
    """Nothing to do."""
    return Severity.GOOD, text, ""


def costs(text: str, remedy: str) -> Answer:
    """It works, and could work better."""
    return Severity.COSTS, text, remedy


def cannot(text: str, remedy: str) -> Answer:
    """It can't work like this."""
    return Severity.NO, text, remedy


def run(scope: Scope, *arguments: Any) -> Iterable[Finding]:
    """Run the Python checks of one scope. A check that fails reports that; the others continue."""
    for each in CHECKS:
        if each.scope != scope or each.function is None:
            continue
        try:
            answer = each.function(*arguments)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            answer = costs(f"could not be examined: {why}", "examine it by hand")
        if answer is not None:
            yield Finding(each.name, *answer)
