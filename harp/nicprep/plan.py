# SPDX-License-Identifier: Apache-2.0
"""Compares what is requested of a NIC and its host with the present state; changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harp.nicprep import ranges
from harp.nicprep.host import Host
from harp.nicprep.kinds import ABSENT, KINDS, default_table, own_table, receive_queues
from harp.nicprep.topology import interrupts, local_processors, processors
from harp.nicprep.transport import Values

PORTS_DEFAULT = ((61000, 65535),)
HUGE_PAGE = "2048kB"
_BREAKS = {
    "channels": "the link may pause for a moment",
    "rings": "the link may pause for a moment",
}

Count = int | Literal["max"]


@dataclass(frozen=True)
class NicConfig:
    """Requests of harp.toml for one NIC. None or empty leaves a setting as it is, which is the
    default.
    """

    ifname: str
    queues: Count | None = None
    rx_ring: Count | None = None  # packets
    tx_ring: Count | None = None
    adaptive: bool | None = None  # the NIC's adaptive choice of the next four
    rx_usecs: int | None = None
    tx_usecs: int | None = None
    rx_frames: int | None = None
    tx_frames: int | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)  # {"rx-lro": False}
    defer_irqs: int | None = None  # polls
    gro_flush_us: int | None = None
    rss: Sequence[int] | Literal["equal"] | None = None  # queues that receive packets
    irq_affinity: Sequence[int] | Literal["local"] | None = None  # processors, by queue


@dataclass(frozen=True)
class HostConfig:
    """Requests of harp.toml for the host."""

    reserved_ports: Sequence[tuple[int, int]] = PORTS_DEFAULT  # first and last of each range
    huge_pages: int = 0  # number of 2 MiB pages, at least, in all

    @property
    def ports(self) -> set[int]:
        """Return all ports of the ranges."""
        return {port for first, last in self.reserved_ports for port in range(first, last + 1)}


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
        return f"{self.target} {KINDS[self.kind].title}".strip()

    @property
    def words(self) -> str:
        """Return one line for people."""
        if self.problem:
            return f"{self.name}: {self.problem}"
        parts = ", ".join(
            f"{name} {short(self.before.get(name))} -> {short(value)}"
            for name, value in self.after.items()
        )
        return f"{self.name}: {parts}" + (f" ({self.note})" if self.note else "")


def plan(config: NicConfig, host: Host) -> list[Change]:
    """Return the changes for one NIC, in the required order."""
    return [change for change in wishes(config, host) if change.needed]


def plan_host(config: HostConfig, host: Host, ifnames: Sequence[str] = ()) -> list[Change]:
    """Return the changes for the host; huge pages go to the nodes of these NICs."""
    return [change for change in wishes_of_host(config, host, ifnames) if change.needed]


def wishes(config: NicConfig, host: Host) -> list[Change]:
    """As plan(), including settings that are already as requested."""
    found = [
        *_counts(host, "channels", config.ifname, {"queues": config.queues}),
        *_counts(host, "rings", config.ifname, {"rx": config.rx_ring, "tx": config.tx_ring}),
        *_coalesce(host, config),
    ]
    if config.offloads:
        found.append(_offloads(host, config.ifname, config.offloads))
    found += _napi(host, config)
    if config.rss is not None:
        found.append(_rss(host, config))
    if config.irq_affinity is not None:
        found += _affinity(host, config)
    return found


def wishes_of_host(config: HostConfig, host: Host, ifnames: Sequence[str] = ()) -> list[Change]:
    """As plan_host(), including settings that are already as requested."""
    found = []
    if config.reserved_ports:
        found.append(_ports(host, config.ports))
    if config.huge_pages:
        found += _pages(host, config.huge_pages, ifnames)
    return found


# --------------------------------------------------------------------------------------------------


def short(value: object) -> str:
    """Format a value for a line: on and off, and no table of 128 entries."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        used = ranges.text(value) or "none"
        return f"queues {used} ({len(value)} entries)" if value else "the driver's default"
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
        words = f"can't be set here: {', '.join(unknown)}"
        return Change(kind, target, {}, {}, problem=words, absent=True)
    note = f"can't be set here: {', '.join(unknown)}" if unknown else _BREAKS.get(kind, "")
    return Change(kind, target, {name: now[name] for name in known}, known, note)


def _counts(host: Host, kind: str, ifname: str, asked: Mapping[str, Count | None]) -> list[Change]:
    """Plan numbers with a limit: a larger request is reduced to the limit, and reported."""
    if all(value is None for value in asked.values()):
        return []
    now = _read(host, kind, ifname)
    if isinstance(now, Change):
        return [now]
    if any(isinstance(value, int) and value < 1 for value in asked.values()):
        return [Change(kind, ifname, {}, {}, problem="at least 1 is needed")]
    before, after, notes = {}, {}, [_BREAKS[kind]]
    for name, value in _queue_names(asked, now).items():
        limit = now.get(f"{name}_max", 0)
        if value is None:
            continue
        if name not in now or not limit:
            notes.append(f"{name} can't be set here")
            continue
        before[name] = now[name]
        after[name] = limit if value == "max" else min(value, limit)
        if value != "max" and value > limit:
            notes.append(f"{name} {value} asked for, {limit} is the most")
    if not after:
        return [Change(kind, ifname, {}, {}, problem="can't be set here", absent=True)]
    return [Change(kind, ifname, before, after, "; ".join(notes))]


def _queue_names(asked: Mapping[str, Count | None], now: Values) -> Mapping[str, Count | None]:
    """Plan queues: combined ones if the NIC has such, else the same number for each direction."""
    if "queues" not in asked:
        return asked
    if now.get("combined_max"):
        return {"combined": asked["queues"]}
    return {"rx": asked["queues"], "tx": asked["queues"]}


def _offloads(host: Host, ifname: str, asked: Mapping[str, bool]) -> Change:
    """A setting that the NIC does not have is off already."""
    now = _read(host, "features", ifname)
    if isinstance(now, Change):
        return now
    wanted = {name: on for name, on in asked.items() if on or name in now}
    if not wanted:
        return Change("features", ifname, {}, {})
    return _simple(host, "features", ifname, wanted)


def _napi(host: Host, config: NicConfig) -> list[Change]:
    asked: Values = {}
    if config.defer_irqs is not None:
        asked["napi_defer_hard_irqs"] = config.defer_irqs
    if config.gro_flush_us is not None:
        asked["gro_flush_timeout"] = config.gro_flush_us * 1000
    return [_simple(host, "napi", config.ifname, asked)] if asked else []


def _coalesce(host: Host, config: NicConfig) -> list[Change]:
    asked: Values = {
        "adaptive_rx": None if config.adaptive is None else int(config.adaptive),
        "adaptive_tx": None if config.adaptive is None else int(config.adaptive),
        "rx_usecs": config.rx_usecs,
        "tx_usecs": config.tx_usecs,
        "rx_frames": config.rx_frames,
        "tx_frames": config.tx_frames,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return []
    now = _read(host, "coalesce", config.ifname)
    if not isinstance(now, Change) and "adaptive_rx" in now and config.adaptive is not None:
        # Many NICs have one adaptive switch for both directions.
        asked = {name: v for name, v in asked.items() if name != "adaptive_tx" or name in now}
    return [_simple(host, "coalesce", config.ifname, asked)]


def _rss(host: Host, config: NicConfig) -> Change:
    now = _read(host, "rss", config.ifname)
    if isinstance(now, Change):
        return now
    table = host.ethtool.get("rss", config.ifname)["table"]
    present = receive_queues(host, config.ifname, max(table, default=0) + 1)
    queues = range(present) if config.rss == "equal" else [int(each) for each in config.rss or ()]
    if not queues or not table:
        return Change("rss", config.ifname, {}, {}, problem="no queue to spread packets over")
    wanted = [queues[entry] for entry in default_table(len(table), len(queues))]
    return Change("rss", config.ifname, now, {"table": own_table(wanted, present)})


def _affinity(host: Host, config: NicConfig) -> list[Change]:
    found = interrupts(host, config.ifname)
    if not found:
        words = "this NIC's queues have no interrupts of their own"
        return [Change("irq-affinity", config.ifname, {}, {}, problem=words, absent=True)]
    asked = config.irq_affinity
    if asked == "local":
        near = local_processors(host, config.ifname)
        order = [each for each in processors(host, config.ifname) if each in near]
    else:
        order = [int(each) for each in asked or ()]
    if not order:
        words = "no processor is named"
        return [Change("irq-affinity", config.ifname, {}, {}, problem=words)]
    changes = []
    for interrupt in found:
        target = f"{config.ifname} irq {interrupt.number}"
        now = _read(host, "irq-affinity", target)
        if isinstance(now, Change):
            changes.append(now)
            continue
        after = {"processors": str(order[interrupt.queue % len(order)])}
        changes.append(Change("irq-affinity", target, now, after, interrupt.name))
    return changes


def _ports(host: Host, ports: set[int]) -> Change:
    now = _read(host, "reserved-ports", "")
    if isinstance(now, Change):
        return now
    wanted = ranges.text(ranges.parse(now["ports"]) | ports)
    return Change("reserved-ports", "", now, {"ports": wanted})


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
