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
        """Return ok, warn or fail."""
        return ("ok", "warn", "fail")[self]


@dataclass(frozen=True)
class Finding:
    name: str
    severity: Severity
    text: str
    remedy: str = ""  # never empty for warn and fail

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON, whose keys are a stable interface."""
        return {
            "name": self.name,
            "severity": self.severity.word,
            "text": self.text,
            "remedy": self.remedy,
        }


# port: a DPDK port's specification, before the port is opened. opened: the result of opening it.
# working: the properties of an open port. used: a port that is not opened, because a job has it.
Scope = Literal["host", "interface", "port", "opened", "working", "used"]


@dataclass(frozen=True)
class Check:
    """One check. function: returns (severity, text, remedy), or None without a finding. Its
    arguments depend on the scope. host: (view); interface: (view, link, queue); port: (view, spec);
    opened and working: (view, spec, probe); used: (view, spec). description: what it examines,
    a colon, and why.
    """

    name: str
    scope: Scope
    description: str
    function: Callable[..., "Answer"] | None  # None: the C stack's own (harp_host_check)


Answer = tuple[Severity, str, str] | None
CHECKS: list[Check] = []


def check(name: str, scope: Scope) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a function as a check, with its docstring as the description."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        assert name not in {known.name for known in CHECKS}, name
        CHECKS.append(Check(name, scope, function.__doc__ or "", function))
        return function

    return register


def ok(text: str) -> Answer:
    return Severity.GOOD, text, ""


def warn(text: str, remedy: str) -> Answer:
    return Severity.COSTS, text, remedy


def fail(text: str, remedy: str) -> Answer:
    return Severity.NO, text, remedy


def run(scope: Scope, *arguments: Any) -> Iterable[Finding]:
    """Run the Python checks of one scope. A check that raises an error becomes a finding."""
    for known in CHECKS:
        if known.scope != scope or known.function is None:
            continue
        try:
            answer = known.function(*arguments)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            answer = warn(f"could not be examined: {why}", "examine it by hand")
        if answer is not None:
            yield Finding(known.name, *answer)


# The checks of the C stack (harp_host_check), whose texts the plugin also uses in its log.
_OF_STACK: tuple[tuple[str, Scope, str], ...] = (
    ("kernel", "host", "The kernel's version: XDP links need 5.9, jumbo frames 6.6."),
    ("privilege", "host", "Capabilities of this process: without them harpd must lease queues."),
    ("memlock", "host", "RLIMIT_MEMLOCK: packet memory is registered with the kernel."),
    ("huge-pages", "host", "Free 2 MiB pages: fewer TLB misses, faster start."),
    ("ports-used", "host", "Kernel sockets within HARP's ports: HARP uses other ports."),
    ("ports-reserved", "host", "ip_local_reserved_ports, ip_local_port_range: port conflicts."),
    ("interface", "interface", "Whether it exists, and is not loopback: HARP needs an interface."),
    ("link", "interface", "Up, with carrier: no packets without it."),
    ("driver", "interface", "The driver's name: decides the XDP mode."),
    ("xdp-mode", "interface", "Native or generic XDP: generic mode keeps the kernel's offloads."),
    ("queue", "interface", "Receive queues, and the requested one: HARP misses packets of others."),
    ("mtu", "interface", "The MTU, and frames for one packet: the size of packets."),
    ("ipv4", "interface", "An IPv4 address: peers connect to it."),
    ("ipv6", "interface", "An IPv6 address, its state and lifetime: peers connect to it."),
    ("addresses", "interface", "Whether the kernel lists them: HARP needs one."),
    ("xdp-program", "interface", "Other XDP programs: one program at a time."),
    ("default-route", "interface", "Whether it uses this NIC: HARP then uses it only if named."),
)
HOST_NAMES = {name for name, scope, _ in _OF_STACK if scope == "host"}
CHECKS.extend(Check(name, scope, description, None) for name, scope, description in _OF_STACK)
