# SPDX-License-Identifier: Apache-2.0
"""Compares what is requested of a NIC and its host with the present state; changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harp.config import NicConfig
from harp.nicprep import ranges
from harp.nicprep.host import Host, cores_near, interrupts
from harp.nicprep.kinds import ABSENT, KINDS, PORTS_KIND
from harp.nicprep.transport import Values

HUGE_PAGE = "2048kB"
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
    """One setting, present and requested; with a problem it can't be changed."""

    kind: str
    target: str
    before: Values
    after: Values
    note: str = ""
    problem: str = ""
    absent: bool = False  # the problem is that the NIC has no such setting

    @property
    def needed(self) -> bool:
        """Tell whether there is something to do, or to report."""
        return bool(self.problem) or self.before != self.after

    @property
    def name(self) -> str:
        """ "eth0 ring sizes"."""
        return f"{self.target} {KINDS[self.kind].title}"

    @property
    def line(self) -> str:
        """Return one line for people."""
        if self.problem:
            return f"{self.name}: {self.problem}"
        parts = ", ".join(
            f"{name} {short(self.before.get(name))} -> {short(value)}"
            for name, value in self.after.items()
        )
        return f"{self.name}: {parts}" + (f" ({self.note})" if self.note else "")


def plan(nic: NicConfig, host: Host) -> list[Change]:
    """Return the requested settings of one NIC, in the order in which they must be made.

    Settings that are already as requested are among them; they are not `needed`.
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
    """Return the settings of the host, likewise: the NICs' ports are reserved.

    Parameters
    ----------
    huge_pages
        Number of huge pages of 2 MiB, on the NUMA nodes of the NICs; 0: unchanged.
    """
    found = [_ports(host, nics)] if nics else []
    if huge_pages:
        found += _pages(host, huge_pages, [nic.ifname for nic in nics])
    return found


# --------------------------------------------------------------------------------------------------


def short(value: object) -> str:
    """Format a value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, "") else str(value)


def _read(host: Host, kind: str, target: str) -> Values | Change:
    try:
        return KINDS[kind].read(host, target)
    except (OSError, ValueError) as error:
        absent = isinstance(error, OSError) and error.errno in ABSENT
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Change(kind, target, {}, {}, problem=why, absent=absent)


def _simple(host: Host, kind: str, target: str, wanted: Values) -> Change:
    """Plan values that must match exactly; unknown ones are a problem."""
    now = _read(host, kind, target)
    if isinstance(now, Change):
        return now
    unknown = sorted(wanted.keys() - now.keys())
    known = {name: value for name, value in wanted.items() if name in now}
    if unknown and not known:
        problem = f"can't be set here: {', '.join(unknown)}"
        return Change(kind, target, {}, {}, problem=problem, absent=True)
    note = f"can't be set here: {', '.join(unknown)}" if unknown else _BREAKS.get(kind, "")
    return Change(kind, target, {name: now[name] for name in known}, known, note)


def _counts(host: Host, kind: str, ifname: str, requested: Mapping[str, int]) -> list[Change]:
    """Plan numbers with a limit: a larger request is reduced to the limit, and reported."""
    requested = {name: value for name, value in requested.items() if value}
    if not requested:
        return []
    now = _read(host, kind, ifname)
    if isinstance(now, Change):
        return [now]
    before, after, notes = {}, {}, [_BREAKS[kind]]
    for name, value in _queue_names(requested, now).items():
        limit = now.get(f"{name}_max", 0)
        if name not in now or not limit:
            notes.append(f"{name} can't be set here")
            continue
        before[name], after[name] = now[name], min(value, limit)
        if value > limit:
            notes.append(f"{name} {value} asked for, {limit} is the most")
    if not after:
        return [Change(kind, ifname, {}, {}, problem="can't be set here", absent=True)]
    return [Change(kind, ifname, before, after, "; ".join(notes))]


def _queue_names(requested: Mapping[str, int], now: Values) -> Mapping[str, int]:
    """Plan queues: combined ones if the NIC has such, else the same number for each direction."""
    if "queues" not in requested:
        return requested
    if now.get("combined_max"):
        return {"combined": requested["queues"]}
    return {"rx": requested["queues"], "tx": requested["queues"]}


def _offloads(host: Host, nic: NicConfig) -> list[Change]:
    """Plan offloads. One that the NIC does not have is off already."""
    requested = {
        name: getattr(nic, key) == "on"
        for key, names in _OFFLOADS.items()
        if getattr(nic, key) != "keep"
        for name in names
    }
    if not requested:
        return []
    now = _read(host, "features", nic.ifname)
    if isinstance(now, Change):
        return [now]
    wanted = {name: on for name, on in requested.items() if on or name in now}
    return [_simple(host, "features", nic.ifname, wanted)] if wanted else []


def _napi(host: Host, nic: NicConfig) -> list[Change]:
    requested = {
        "napi_defer_hard_irqs": nic.defer_irqs,
        "gro_flush_timeout": nic.gro_flush_us * 1000,
    }
    requested = {name: value for name, value in requested.items() if value}
    return [_simple(host, "napi", nic.ifname, requested)] if requested else []


def _coalesce(host: Host, nic: NicConfig) -> list[Change]:
    if nic.coalesce == "keep":
        return []
    adaptive = int(nic.coalesce == "adaptive")
    requested = {"adaptive_rx": adaptive, "adaptive_tx": adaptive}
    if nic.coalesce == "low":
        requested |= {"rx_usecs": 0, "tx_usecs": 0}
    elif nic.coalesce == "set":
        requested |= {"rx_usecs": nic.coalesce_rx_us, "tx_usecs": nic.coalesce_tx_us}
    now = _read(host, "coalesce", nic.ifname)
    # Many NICs have one adaptive switch for both directions.
    if not isinstance(now, Change) and "adaptive_rx" in now and "adaptive_tx" not in now:
        del requested["adaptive_tx"]
    return [_simple(host, "coalesce", nic.ifname, requested)]


def _affinity(host: Host, nic: NicConfig) -> list[Change]:
    if nic.irq_affinity == "keep":
        return []
    found = interrupts(host, nic.ifname)
    if not found:
        problem = "this NIC's queues have no interrupts of their own"
        return [Change("irq-affinity", nic.ifname, {}, {}, problem=problem, absent=True)]
    local = nic.irq_affinity == "local"
    cores = cores_near(host, nic.ifname) if local else list(nic.irq_cores)
    if not cores:
        problem = "none of the processors of the NIC's NUMA node may be used"
        return [Change("irq-affinity", nic.ifname, {}, {}, problem=problem)]
    changes = []
    for interrupt in found:
        target = f"{nic.ifname} irq {interrupt.number}"
        now = _read(host, "irq-affinity", target)
        if isinstance(now, Change):
            changes.append(now)
            continue
        after = {"processors": str(cores[interrupt.queue % len(cores)])}
        changes.append(Change("irq-affinity", target, now, after, interrupt.name))
    return changes


def _ports(host: Host, nics: Sequence[NicConfig]) -> Change:
    """Plan the reservation of all ports of HARP, which are the setting's target."""
    ports = {port for nic in nics for port in range(nic.ports[0], nic.ports[1] + 1)}
    now = _read(host, PORTS_KIND, ranges.text(ports))
    if isinstance(now, Change):
        return now
    wanted = ranges.text(ranges.parse(now["ports"]) | ports)
    return Change(PORTS_KIND, ranges.text(ports), now, {"ports": wanted})


def _pages(host: Host, pages: int, ifnames: Sequence[str]) -> list[Change]:
    """Divide pages among the NICs' nodes, or all nodes; never fewer than there are."""
    near = {node for ifname in ifnames if (node := host.node(ifname)) is not None}
    nodes = sorted(near) or host.nodes()
    targets = [f"node{node}/{HUGE_PAGE}" for node in nodes] or [HUGE_PAGE]
    changes = []
    for index, target in enumerate(targets):
        share = pages // len(targets) + (index < pages % len(targets))
        now = _read(host, "huge-pages", target)
        if isinstance(now, Change):
            changes.append(now)
        else:
            after = {"pages": max(share, now["pages"])}
            changes.append(Change("huge-pages", target, now, after))
    return changes
