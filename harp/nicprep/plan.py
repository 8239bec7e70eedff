# SPDX-License-Identifier: Apache-2.0
"""Compares the requested settings of NICs and host with the current ones; changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harp.config import NicConfig
from harp.nicprep import ranges
from harp.nicprep.host import Host, Interrupt, cores_near, interrupts
from harp.nicprep.kinds import ABSENT, KINDS, PORTS_KIND
from harp.nicprep.transport import Values

HUGE_PAGE = "2048kB"
Decision = tuple[Values, list[str]]  # values to set, and notes for the log
_BREAKS = {
    "channels": "the link may pause for a moment",
    "rings": "the link may pause for a moment",
}
# Key of [[nic]] -> the kernel's names. One offload has several names because drivers differ.
_OFFLOADS: dict[str, tuple[str, ...]] = {
    "lro": ("rx-lro",),
    "gro_hw": ("rx-gro-hw",),
    "gro": ("rx-gro",),
    "tso": ("tx-tcp-segmentation", "tx-tcp6-segmentation"),
    "rx_checksum": ("rx-checksum",),
    "tx_checksum": ("tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"),
}


@dataclass(frozen=True)
class Change:
    """One setting: current and requested values. problem: why it can't be changed."""

    kind: str
    target: str
    before: Values
    after: Values
    note: str = ""
    problem: str = ""
    absent: bool = False  # the problem is that the NIC has no such setting

    @property
    def is_needed(self) -> bool:
        return bool(self.problem) or self.before != self.after

    @property
    def name(self) -> str:
        return f"{self.target} {KINDS[self.kind].title}"

    @property
    def line(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        parts = ", ".join(
            f"{name} {short(self.before.get(name))} -> {short(value)}"
            for name, value in self.after.items()
        )
        return f"{self.name}: {parts}" + (f" ({self.note})" if self.note else "")


def plan(nic: NicConfig, host: Host) -> list[Change]:
    """Return the requested settings of one NIC, in the order in which they must be changed. Those
    that already have the requested values are included.
    """
    return [
        *_counts(host, "channels", nic.ifname, {"queues": nic.queues}),
        *_counts(host, "rings", nic.ifname, {"rx": nic.rx_ring, "tx": nic.tx_ring}),
        *_coalesce(host, nic),
        *_offloads(host, nic),
        *_napi(host, nic),
        *_affinity(host, nic),
    ]


def plan_host(nics: Sequence[NicConfig], huge_pages: int, host: Host) -> list[Change]:
    """Return the requested settings of the host: reserved ports, and huge pages. huge_pages: number
    of 2 MiB pages, on the NUMA nodes of the NICs; 0: unchanged.
    """
    changes = [_ports(host, nics)] if nics else []
    if huge_pages:
        changes += _pages(host, huge_pages, [nic.ifname for nic in nics])
    return changes


def short(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, "") else str(value)


def _plan(host: Host, kind: str, target: str, decide: Callable[[Values], Decision]) -> Change:
    """Plan a setting. decide: returns its new values, from the current ones."""
    try:
        now = KINDS[kind].read(host, target)
    except (OSError, ValueError) as error:
        absent = isinstance(error, OSError) and error.errno in ABSENT
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Change(kind, target, {}, {}, problem=why, absent=absent)
    after, notes = decide(now)
    if notes and not after:
        return Change(kind, target, {}, {}, problem="; ".join(notes), absent=True)
    notes = [_BREAKS[kind], *notes] if kind in _BREAKS else notes
    return Change(kind, target, {name: now[name] for name in after}, after, "; ".join(notes))


def _exactly(requested: Values, now: Values) -> Decision:
    """Set values as requested; names that the NIC does not have are noted."""
    unknown = ", ".join(sorted(requested.keys() - now.keys()))
    known = {name: value for name, value in requested.items() if name in now}
    return known, [f"can't be set here: {unknown}"] if unknown else []


def _counts(host: Host, kind: str, ifname: str, requested: Mapping[str, int]) -> list[Change]:
    """Plan numbers with a limit: a larger request is reduced to the limit, with a note."""

    def decide(now: Values) -> Decision:
        after, notes = {}, []
        for name, value in _queue_names(requested, now).items():
            limit = now.get(f"{name}_max", 0)
            if not value:
                continue
            if name not in now or not limit:
                notes.append(f"{name} can't be set here")
                continue
            after[name] = min(value, limit)
            if value > limit:
                notes.append(f"{name} {value} requested, {limit} is the limit")
        return after, notes

    return [_plan(host, kind, ifname, decide)] if any(requested.values()) else []


def _queue_names(requested: Mapping[str, int], now: Values) -> Mapping[str, int]:
    """Translate "queues": to combined queues if the NIC has such, else to both directions."""
    if "queues" not in requested:
        return requested
    if now.get("combined_max"):
        return {"combined": requested["queues"]}
    return {"rx": requested["queues"], "tx": requested["queues"]}


def _offloads(host: Host, nic: NicConfig) -> list[Change]:
    """Plan offloads. An offload that the NIC does not have is off already."""
    requested = {
        name: getattr(nic, key) == "on"
        for key, names in _OFFLOADS.items()
        if getattr(nic, key) != "keep"
        for name in names
    }

    def decide(now: Values) -> Decision:
        return _exactly({name: on for name, on in requested.items() if on or name in now}, now)

    return [_plan(host, "features", nic.ifname, decide)] if requested else []


def _napi(host: Host, nic: NicConfig) -> list[Change]:
    requested = {
        "napi_defer_hard_irqs": nic.defer_irqs,
        "gro_flush_timeout": nic.gro_flush_us * 1000,
    }
    requested = {name: value for name, value in requested.items() if value}
    return [_plan(host, "napi", nic.ifname, partial(_exactly, requested))] if requested else []


def _coalesce(host: Host, nic: NicConfig) -> list[Change]:
    adaptive = int(nic.coalesce == "adaptive")
    requested = {"adaptive_rx": adaptive, "adaptive_tx": adaptive}
    if nic.coalesce == "low":
        requested |= {"rx_usecs": 0, "tx_usecs": 0}
    elif nic.coalesce == "set":
        requested |= {"rx_usecs": nic.coalesce_rx_us, "tx_usecs": nic.coalesce_tx_us}

    def decide(now: Values) -> Decision:
        # Many NICs have one adaptive switch for both directions.
        if "adaptive_rx" in now and "adaptive_tx" not in now:
            del requested["adaptive_tx"]
        return _exactly(requested, now)

    return [] if nic.coalesce == "keep" else [_plan(host, "coalesce", nic.ifname, decide)]


def _affinity(host: Host, nic: NicConfig) -> list[Change]:
    if nic.irq_affinity == "keep":
        return []
    irqs = interrupts(host, nic.ifname)
    if not irqs:
        problem = "this NIC's queues have no interrupts of their own"
        return [Change("irq-affinity", nic.ifname, {}, {}, problem=problem, absent=True)]
    local = nic.irq_affinity == "local"
    cores = cores_near(host, nic.ifname) if local else list(nic.irq_cores)
    if not cores:
        problem = "none of the processors of the NIC's NUMA node may be used"
        return [Change("irq-affinity", nic.ifname, {}, {}, problem=problem)]

    def plan_one(irq: Interrupt) -> Change:
        after = {"processors": str(cores[irq.queue % len(cores)])}
        target = f"{nic.ifname} irq {irq.number}"
        return _plan(host, "irq-affinity", target, lambda _: (after, [irq.name]))

    return [plan_one(irq) for irq in irqs]


def _ports(host: Host, nics: Sequence[NicConfig]) -> Change:
    ports = {port for nic in nics for port in range(nic.ports[0], nic.ports[1] + 1)}

    def decide(now: Values) -> Decision:
        return {"ports": ranges.text(ranges.parse(now["ports"]) | ports)}, []

    return _plan(host, PORTS_KIND, ranges.text(ports), decide)


def _pages(host: Host, pages: int, ifnames: Sequence[str]) -> list[Change]:
    """Divide pages among the NICs' nodes, or all nodes; a node's number is never reduced."""
    near = {node for ifname in ifnames if (node := host.node(ifname)) is not None}
    nodes = sorted(near) or host.nodes()
    targets = [f"node{node}/{HUGE_PAGE}" for node in nodes] or [HUGE_PAGE]

    def plan_one(index: int, target: str) -> Change:
        share = pages // len(targets) + (index < pages % len(targets))
        return _plan(
            host, "huge-pages", target, lambda now: ({"pages": max(share, now["pages"])}, [])
        )

    return [plan_one(index, target) for index, target in enumerate(targets)]
