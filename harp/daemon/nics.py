# SPDX-License-Identifier: Apache-2.0
"""harpd's NICs: their XDP programs and addresses, and changes of both.

sync() runs at start, after rtnetlink changes, and by a slow timer. It compares the current state
with the last one and handles the differences. So a lost message does no harm, and each change is
logged once.
"""

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from harp import _host
from harp.config import NicConfig
from harp.daemon.kernel import Hardware, Kernel
from harp.daemon.netlink import Address, Link
from harp.daemon.ports import Block, PortBlocks, block_size
from harp.daemon.settings import Settings
from harp.daemon.state import NicState
from harp.daemon.table import REMOVED, Lease, LeaseTable, NicTable, QueueState, one_queue

log = logging.getLogger("harpd")
DOWN, ADDRESS = "NIC is down", "address removed"
NOT_EXAMINED = "not examined yet"
# enum harp_xdp_mode. harpd attaches a generic program only if harp.toml asks for it.
XDP_MODES = {"generic": 1, "native": 2, "auto": 3}
# How many of the program's 64 addresses (xdp/steer.h) may be addresses that the interface lost.
LOST_MAX = 16


@dataclass
class Nic:
    """One NIC, present or not."""

    settings: NicConfig
    pins: Path | None
    link: Link | None = None
    hardware: Hardware = field(default_factory=Hardware)
    steering: _host.Steering | None = None
    addresses: dict[bytes, Address] = field(default_factory=dict)
    # Addresses in the map that the interface lost, in the order of their removal.
    lost_addresses: dict[bytes, Address] = field(default_factory=dict)
    # Why it can't be leased now; empty: it can.
    problem: str = NOT_EXAMINED
    error: int = errno.ENODEV
    is_new: bool = True  # it appeared and is not prepared yet
    keep_pins: bool = False  # jobs depend on pins that this harpd can't adopt
    mode_why: str = ""  # why the program is in this mode
    # The allow_sources that the program enforces; None: unknown.
    sources: tuple[str, ...] | None = None

    @property
    def ifname(self) -> str:
        return self.settings.ifname

    @property
    def is_generic(self) -> bool:
        """Tell whether the program runs in generic mode, which slows the kernel's own traffic."""
        return self.steering is not None and not self.steering.native

    def announced_address(self, v4: bool) -> bytes:
        """Return the address for WELCOME; empty if there is none of the family."""
        addresses = [address for address in self.addresses.values() if address.is_v4 is v4]
        return max(addresses, key=lambda address: address.rank).raw if addresses else b""


class Nics:
    """All NICs. save() writes state.json, after a change of its contents."""

    def __init__(
        self,
        settings: Settings,
        kernel: Kernel,
        table: LeaseTable,
        save: Callable[[], None],
        pinnable: bool = True,
    ) -> None:
        self._kernel, self._table, self._save = kernel, table, save
        self._settings = settings
        self.all = {
            nic.ifname: Nic(nic, settings.pins_dir / nic.ifname if pinnable else None)
            for nic in settings.nics
        }
        self._before: dict[str, NicState] = {}
        self._stranded: Callable[[str, int], list[int]] = lambda _ifname, _ifindex: []
        self._prepare: Callable[[], None] = lambda: None
        self._logged: dict[str, str] = {}

    def inherit(self, before: dict[str, NicState], users: Callable[[str, int], list[int]]) -> None:
        """Take over the state of the previous harpd, for the first sync() that finds each NIC.

        users(ifname, ifindex): living processes with a lease of the previous harpd on that NIC.
        """
        self._before, self._stranded = dict(before), users

    def prepare_with(self, prepare: Callable[[], None]) -> None:
        """Set the function that prepares a NIC that appears later, before it is used."""
        self._prepare = prepare

    # ---- comparing ----

    def sync(self) -> None:
        """Read links and addresses and handle their changes."""
        try:
            links, addresses = self._kernel.links(), self._kernel.addresses()
        except OSError as error:
            self._log_once("", f"the interfaces can't be read: {error.strerror}")
            return
        self._log_once("", "")
        for nic in self.all.values():
            link = links.get(nic.ifname) or self._renamed(nic, links)
            if nic.link is not None and (link is None or link.ifindex != nic.link.ifindex):
                self._handle_removal(nic)
            if link is None:
                if nic.problem == NOT_EXAMINED:
                    nic.problem = "no such interface"
                self._log_once(nic.ifname, "no such interface yet; waiting for it")
                continue
            before, nic.link = nic.link, link
            if before is not None:
                self._compare(nic, before, link)
            self._check_program(nic)
            try:
                self._examine(nic, link, addresses)
            except OSError as error:
                reason = error.strerror or str(error)
                nic.problem = reason.removeprefix(f"{nic.ifname}: ")  # log lines have the name
                nic.error = error.errno or errno.EIO
                if error.errno == errno.ECANCELED:
                    nic.problem += (
                        f'; xdp_mode = "generic" in the [[nic]] of {nic.ifname} forces it'
                    )
                self._log_once(nic.ifname, f"can't be leased: {nic.problem}")
            else:
                nic.problem, nic.error = "", 0
                if self._logged.get(nic.ifname):
                    log.info("%s: can be leased again", nic.ifname)
                self._log_once(nic.ifname, "")

    def _examine(self, nic: Nic, link: Link, addresses: list[Address]) -> None:
        """Adapt the program to harp.toml and interface. OSError: why the NIC can't be leased."""
        if nic.steering is None:
            self._take_over(nic, link)
        self._sync_addresses(nic, link.ifindex, addresses)
        self.check_reachability(nic)
        self._restrict(nic)
        if link.ifname != nic.ifname:
            raise OSError(
                errno.ENODEV,
                f"the interface is called {link.ifname} now; change harp.toml, or rename it",
            )

    def _restrict(self, nic: Nic) -> None:
        """Make the XDP program enforce allow_sources. After a failure the previous list stays in
        force, and no lease is granted: it could receive from sources that harp.toml excludes.
        """
        assert nic.steering is not None
        allowed, before = nic.settings.allow_sources, nic.sources
        if before == allowed:
            return
        nic.sources = None
        nic.steering.sources_set(
            (net.network_address.packed, net.prefixlen) for net in map(ip_network, allowed)
        )
        nic.sources = allowed
        if allowed or before:
            sources = ", ".join(allowed) or "every source"
            log.info("%s: HARP's ports accept packets from %s", nic.ifname, sources)

    def _renamed(self, nic: Nic, links: dict[str, Link]) -> Link | None:
        """Return a renamed NIC's link. Its leases continue, but it gets no new ones. None: it was
        removed or not used, or another [[nic]] has the new name.
        """
        index = nic.link.ifindex if nic.link is not None and nic.steering is not None else 0
        renamed = next((link for link in links.values() if link.ifindex == index), None)
        return renamed if renamed is not None and renamed.ifname not in self.all else None

    def check_reachability(self, nic: Nic) -> None:
        """Update which queues packets reach, by the XDP program's counters."""
        table = self._table.nics.get(nic.ifname)
        if nic.steering is None or table is None:
            return
        try:
            only = one_queue(nic.steering.arrivals(nic.hardware.queues))
        except OSError as error:
            self._log_once(f"{nic.ifname} queues", error.strerror or str(error))
            return
        before = table.one_queue
        table.one_queue = only.queue if only else None
        table.one_queue_why = only.line(nic.ifname) if only else ""
        if only and before is None:
            log.warning("%s; until then harpd leases no other queue", table.one_queue_why)
        elif before is not None and not only:
            log.info(
                "%s: packets arrived not only on queue %d; harpd leases all queues again",
                nic.ifname,
                before,
            )

    def _log_once(self, subject: str, problem: str) -> None:
        """Log a lasting problem once, and again when it changes. An empty one ends it."""
        if self._logged.get(subject, "") != problem:
            self._logged[subject] = problem
            if problem:
                log.warning("%s", f"{subject}: {problem}" if subject else problem)

    def leases_on(self, nic: Nic) -> list[Lease]:
        index = nic.link.ifindex if nic.link else 0
        return [
            lease
            for lease in self._table.leases.values()
            if (lease.ifname, lease.ifindex) == (nic.ifname, index) and REMOVED not in lease.marks
        ]

    # ---- a NIC appears and disappears ----

    def _handle_removal(self, nic: Nic) -> None:
        leases = self.leases_on(nic)
        for lease in leases:
            lease.mark(REMOVED)
        log.warning(
            "%s: the interface was removed%s",
            nic.ifname,
            _owners(leases, "; their leases end with"),
        )
        self._table.remove_nic(nic.ifname)
        self._detach(nic)
        nic.link, nic.is_new, nic.keep_pins = None, True, False
        nic.addresses, nic.lost_addresses = {}, {}
        nic.problem, nic.error = "the interface was removed", errno.ENODEV
        self._save()

    def _check_program(self, nic: Nic) -> None:
        """Attach the program again if a privileged process has detached it. After a failure the
        next check retries; meanwhile connections may time out.
        """
        if nic.steering is None:
            return
        try:
            repair = nic.steering.check()
        except OSError as error:
            if error.errno != errno.ENODEV:  # the next reading of the links handles the removal
                self._log_once(f"{nic.ifname} program", error.strerror or str(error))
            return
        self._logged.pop(f"{nic.ifname} program", None)
        if repair:
            log.warning("%s", repair)

    def _detach(self, nic: Nic) -> None:
        """Close and unpin the program, so that the kernel detaches it."""
        if nic.steering is not None:
            nic.steering.close()
            nic.steering = None
        if nic.pins is not None and not nic.keep_pins:
            try:
                self._kernel.unpin(nic.pins)
            except OSError as error:
                log.warning("%s", error.strerror)

    def _take_over(self, nic: Nic, link: Link) -> None:
        """Adopt a pinned program, or attach one. OSError."""
        before = self._before.get(nic.ifname)
        if before is None and nic.is_new:
            self._prepare()
        nic.is_new = False
        if not link.ethernet or link.loopback:
            raise OSError(errno.EOPNOTSUPP, f"{nic.ifname}: not an Ethernet interface")
        nic.hardware = self._kernel.hardware(link, nic.settings.rss)
        adopted = self._adopt(nic, link, before)
        if not adopted:
            mode = XDP_MODES[nic.settings.xdp_mode]
            nic.steering, why = self._kernel.attach(nic.ifname, mode, nic.pins)
            nic.mode_why = why or f"{nic.ifname}: XDP program attached"
            log.info("%s", nic.mode_why)
        self._before.pop(nic.ifname, None)
        nic.addresses, nic.lost_addresses, nic.sources = {}, {}, None
        if adopted and before is not None:
            # _sync_addresses() removes stale ones from the adopted map.
            known = [bytes.fromhex(raw) for raw in before.addresses]
            nic.addresses = {raw: Address(raw, link.ifindex, 0) for raw in known}
        table = self._table.nics.get(nic.ifname)
        if table is None or table.ifindex != link.ifindex:
            self._table.add_nic(self._nic_table(nic, link))
        self._save()

    def _adopt(self, nic: Nic, link: Link, before: NicState | None) -> bool:
        """Adopt the pins of an earlier harpd; log and remove pins that can't be used."""
        if nic.pins is None:
            return False
        try:
            nic.steering = self._kernel.adopt(nic.pins, nic.ifname)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            if error.errno == errno.ESTALE:
                self._check_unused(nic, link)
                log.warning("%s; removed, attaching a new one", error.strerror)
            if self._kernel.unpin(nic.pins) and error.errno == errno.ENOENT:
                log.warning("%s: removed incomplete pins of a harpd that died", nic.ifname)
            return False
        known = before is not None and before.ifindex == link.ifindex
        creator = "an earlier harpd" if known else "an unknown harpd"
        if not self._can_keep_program(nic, link):
            log.info("%s: removed the XDP program of %s, attaching a new one", nic.ifname, creator)
            self._detach(nic)
            return False
        try:
            nic.steering.replace()
            log.info("%s: adopted the XDP program of %s", nic.ifname, creator)
        except OSError as error:
            log.warning("%s; the program of %s continues", error.strerror, creator)
        return True

    def _can_keep_program(self, nic: Nic, link: Link) -> bool:
        """Tell whether an adopted program stays: it has the mode of harp.toml, or jobs use it."""
        assert nic.steering is not None
        if not nic.is_generic or nic.settings.xdp_mode == "generic":
            nic.mode_why = nic.steering.why
            return True
        pids = self._stranded(nic.ifname, link.ifindex)
        if not pids:
            return False
        nic.mode_why = (
            f"{nic.ifname}: generic XDP, which harp.toml does not ask for: leases of an earlier "
            f"harpd depend on it (process {', '.join(map(str, pids))}); restart harpd when they "
            "have ended"
        )
        log.warning("%s", nic.mode_why)
        return True

    def _check_unused(self, nic: Nic, link: Link) -> None:
        """Raise OSError while jobs depend on pins that this harpd can't adopt."""
        pids = self._stranded(nic.ifname, link.ifindex)
        nic.keep_pins = bool(pids)
        if pids:
            raise OSError(
                errno.EBUSY,
                f"{nic.ifname}: jobs depend on another version's XDP program (process "
                f"{', '.join(map(str, pids))}); it is replaced when they have ended",
            )

    def _nic_table(self, nic: Nic, link: Link) -> NicTable:
        queues = range(nic.hardware.queues)
        leased = sorted(set(nic.settings.lease_queues or queues) & set(queues))
        span = Block(*nic.settings.ports)
        size = self._settings.ports_per_instance or block_size(
            span.last - span.first + 1, len(leased)
        )
        ports = PortBlocks(span, size, self._settings.port_rest_s)
        states = dict.fromkeys(leased, QueueState.FREE)
        return NicTable(nic.ifname, link.ifindex, ports, states)

    # ---- a NIC changes ----

    def _compare(self, nic: Nic, before: Link, now: Link) -> None:
        leases = self.leases_on(nic)
        if before.up != now.up:
            for lease in leases:
                lease.unmark(DOWN) if now.up else lease.mark(DOWN)
            state = "up again" if now.up else "down (or without carrier)"
            log.warning(
                "%s: the interface is %s%s", nic.ifname, state, _owners(leases, "; leased to")
            )
            self._save()
        if before.mtu_bytes != now.mtu_bytes:
            event = f"MTU changed from {before.mtu_bytes} to {now.mtu_bytes}"
            for lease in leases:
                lease.mark(event)
            log.warning("%s: %s%s", nic.ifname, event, _owners(leases, "; leased to"))
            self._save()

    def _sync_addresses(self, nic: Nic, ifindex: int, addresses: list[Address]) -> None:
        """Give the program the addresses of the interface.

        A removed address stays in the program while a lease may have connections at it; the lease's
        stack drops packets for it. Else the kernel, which knows before harpd that the address is
        back, would answer a retransmission with a RST. An address that moved to another interface
        leaves the program at once.
        """
        current = {address.raw: address for address in addresses if address.ifindex == ifindex}
        moved = {address.raw for address in addresses if address.ifindex != ifindex}
        for raw in [raw for raw in nic.addresses if raw not in current]:
            self._lose_address(nic, raw)
        lost = [raw for raw in nic.lost_addresses if raw not in current]
        for number, raw in enumerate(lost):
            may_stay = number >= len(lost) - LOST_MAX and raw not in moved
            if may_stay and self._is_needed(nic, nic.lost_addresses[raw]):
                continue
            if self._address_set(nic, raw, ours=False):
                del nic.lost_addresses[raw]
                self._save()
        for raw, address in current.items():
            if raw in nic.addresses:
                nic.addresses[raw] = address
            elif raw in nic.lost_addresses or self._address_set(nic, raw, ours=True):
                nic.lost_addresses.pop(raw, None)
                nic.addresses[raw] = address
                log.info("%s: address %s", nic.ifname, address)
                for lease in self.leases_on(nic):
                    lease.unmark(f"{ADDRESS}: {address}")
                self._save()

    def _lose_address(self, nic: Nic, raw: bytes) -> None:
        nic.lost_addresses[raw] = address = nic.addresses.pop(raw)
        leases = self.leases_on(nic)
        owners = _owners(leases, "; leased to")
        log.info("%s: address %s removed%s", nic.ifname, address, owners)
        for lease in leases:
            lease.mark(f"{ADDRESS}: {address}")
        self._save()

    def _is_needed(self, nic: Nic, address: Address) -> bool:
        """Tell whether a lease, adopted or not, may have connections at a removed address."""
        mark = f"{ADDRESS}: {address}"
        return any(mark in lease.marks for lease in self.leases_on(nic)) or (
            nic.link is not None and bool(self._stranded(nic.ifname, nic.link.ifindex))
        )

    def _address_set(self, nic: Nic, raw: bytes, ours: bool) -> bool:
        assert nic.steering is not None
        try:
            nic.steering.address_set(raw, ours)
        except OSError as error:
            self._log_once(f"{nic.ifname} addresses", error.strerror or str(error))
            return False
        return True

    # ---- after a restart ----

    def has_foreign_pins(self, lease: Lease) -> bool:
        """Tell whether the lease's NIC has pins that this harpd can't adopt, and jobs need them."""
        nic = self.all.get(lease.ifname)
        return bool(nic and nic.keep_pins and nic.link and nic.link.ifindex == lease.ifindex)

    def mark_adopted(self, nic: Nic) -> None:
        """Record in adopted leases which addresses changed while no harpd ran."""
        for lease in self.leases_on(nic):
            for address in nic.lost_addresses.values():
                lease.mark(f"{ADDRESS}: {address}")
            for address in nic.addresses.values():
                lease.unmark(f"{ADDRESS}: {address}")

    def clean_maps(self, nic: Nic) -> None:
        """Remove ports and sockets without a lease from an adopted program's maps."""
        table = self._table.nics.get(nic.ifname)
        if nic.steering is None or table is None:
            return
        held = sorted(lease.block for lease in self.leases_on(nic))
        for block in _gaps(Block(*nic.settings.ports), held):
            nic.steering.ports_set(block.first, block.last, 0, False)
        for queue, state in table.queues.items():
            if state is not QueueState.LEASED:
                nic.steering.xsk_set(queue, -1)

    def states(self) -> dict[str, NicState]:
        return {
            nic.ifname: NicState(
                nic.link.ifindex,
                sorted(raw.hex() for raw in (*nic.addresses, *nic.lost_addresses)),
            )
            for nic in self.all.values()
            if nic.link is not None and nic.steering is not None
        }

    def close(self, remove: bool) -> None:
        """Close all programs. remove: detach them; else pinned ones stay attached."""
        for nic in self.all.values():
            if remove:
                self._detach(nic)
            elif nic.steering is not None:
                nic.steering.close()
                nic.steering = None


def _owners(leases: list[Lease], prefix: str) -> str:
    """Return the owners' pids for a log line, after the prefix; empty without leases."""
    if not leases:
        return ""
    pids = sorted({lease.owner.pid for lease in leases})
    return f"{prefix} process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"


def _gaps(span: Block, held: list[Block]) -> list[Block]:
    """Return the parts of span that are in no block of held, which is sorted."""
    gaps, start = [], span.first
    for block in held:
        if start < min(block.first, span.last + 1):
            gaps.append(Block(start, min(block.first - 1, span.last)))
        start = max(start, block.last + 1)
    if start <= span.last:
        gaps.append(Block(start, span.last))
    return gaps
