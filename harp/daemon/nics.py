# SPDX-License-Identifier: Apache-2.0
"""harpd's NICs: XDP programs, addresses, and changes of both.

sync() runs at start, after rtnetlink changes, and by a slow timer. It compares the present state
with the last one and handles the differences. So no single message matters, and each change is
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
# Of the program's 64 addresses (xdp/steer.h), this many may be ones that the interface lost.
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
    # Addresses in the map that the interface lost; the oldest loss first.
    lost_addresses: dict[bytes, Address] = field(default_factory=dict)
    # Why it can't be leased now; empty: it can.
    problem: str = NOT_EXAMINED
    error: int = errno.ENODEV
    fresh: bool = True  # it appeared and is not prepared yet
    keep_pins: bool = False  # jobs depend on pins that this harpd can't adopt
    mode_why: str = ""  # why the program is in this mode
    # The allow_sources that the program enforces; None: not known.
    sources: tuple[str, ...] | None = None

    @property
    def ifname(self) -> str:
        return self.settings.ifname

    @property
    def generic(self) -> bool:
        """Tell whether the program is generic, which slows the kernel's own traffic."""
        return self.steering is not None and not self.steering.native

    def best(self, v4: bool) -> bytes:
        """Return the address to announce; empty if there is none of the family."""
        found = [address for address in self.addresses.values() if address.is_v4 is v4]
        return max(found, key=lambda address: address.rank).raw if found else b""


class Nics:
    """All NICs. changed() is called after a change of what state.json holds."""

    def __init__(
        self,
        settings: Settings,
        kernel: Kernel,
        table: LeaseTable,
        changed: Callable[[], None],
        pinnable: bool = True,
    ) -> None:
        self._kernel, self._table, self._changed = kernel, table, changed
        self._settings = settings
        self.all = {
            each.ifname: Nic(each, settings.pins_dir / each.ifname if pinnable else None)
            for each in settings.nics
        }
        self._before: dict[str, NicState] = {}
        self._stranded: Callable[[str, int], list[int]] = lambda _ifname, _ifindex: []
        self._prepare: Callable[[], None] = lambda: None
        self._logged: dict[str, str] = {}

    def inherit(self, before: dict[str, NicState], users: Callable[[str, int], list[int]]) -> None:
        """Take over the state of the previous harpd, for the first sync() that finds each NIC.

        users(ifname, ifindex): living processes that it had leased queues of that NIC to.
        """
        self._before, self._stranded = dict(before), users

    def prepare_with(self, prepare: Callable[[], None]) -> None:
        """From now on prepare a NIC that appears before it is used."""
        self._prepare = prepare

    # ---- looking ----

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
                words = error.strerror or str(error)
                nic.problem = words.removeprefix(f"{nic.ifname}: ")  # every message names the NIC
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
        """Make the program what harp.toml and the interface ask for. OSError: the NIC can't be
        leased, for a reason.
        """
        if nic.steering is None:
            self._take_over(nic, link)
        self._sync_addresses(nic, link.ifindex, addresses)
        self.check_reachability(nic)
        self._restrict(nic)
        if link.ifname != nic.ifname:
            raise OSError(
                errno.ENODEV,
                f"the interface is called {link.ifname} now; name that in harp.toml, or rename it",
            )

    def _restrict(self, nic: Nic) -> None:
        """Make the XDP program enforce allow_sources. After a failure the previous list stays in
        force, and no lease is granted: it would receive from sources that harp.toml excludes.
        """
        assert nic.steering is not None
        wanted, before = nic.settings.allow_sources, nic.sources
        if before == wanted:
            return
        nic.sources = None
        nic.steering.sources_set(
            (net.network_address.packed, net.prefixlen) for net in map(ip_network, wanted)
        )
        nic.sources = wanted
        if wanted or before:
            sources = ", ".join(wanted) or "every source"
            log.info("%s: HARP's ports take packets from %s", nic.ifname, sources)

    def _renamed(self, nic: Nic, links: dict[str, Link]) -> Link | None:
        """Find the NIC under a name that harp.toml does not have. Its leases belong to the
        interface and continue; there are no new ones. None: it is gone, was not used, or is another
        [[nic]] now.
        """
        index = nic.link.ifindex if nic.link is not None and nic.steering is not None else 0
        found = next((link for link in links.values() if link.ifindex == index), None)
        return found if found is not None and found.ifname not in self.all else None

    def check_reachability(self, nic: Nic) -> None:
        """Tell the table which queues packets reach, by the XDP program's counters."""
        table = self._table.nics.get(nic.ifname)
        if nic.steering is None or table is None:
            return
        try:
            found = one_queue(nic.steering.arrivals(nic.hardware.queues))
        except OSError as error:
            self._log_once(f"{nic.ifname} queues", error.strerror or str(error))
            return
        before = table.one_queue
        table.one_queue = found.queue if found else None
        table.one_queue_why = found.line(nic.ifname) if found else ""
        if found and before is None:
            log.warning("%s; no other queue is leased until it does", table.one_queue_why)
        elif before is not None and not found:
            log.info(
                "%s: packets came to more than queue %d; all may be leased again",
                nic.ifname,
                before,
            )

    def _log_once(self, ifname: str, words: str) -> None:
        """Log a lasting problem once, and again when it changes. Empty: it is over."""
        if self._logged.get(ifname, "") != words:
            self._logged[ifname] = words
            if words:
                log.warning("%s", f"{ifname}: {words}" if ifname else words)

    def leases_on(self, nic: Nic) -> list[Lease]:
        index = nic.link.ifindex if nic.link else 0
        return [
            lease
            for lease in self._table.leases.values()
            if (lease.ifname, lease.ifindex) == (nic.ifname, index) and REMOVED not in lease.marks
        ]

    # ---- a NIC comes and goes ----

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
        nic.link, nic.fresh, nic.keep_pins = None, True, False
        nic.addresses, nic.lost_addresses = {}, {}
        nic.problem, nic.error = "the interface was removed", errno.ENODEV
        self._changed()

    def _check_program(self, nic: Nic) -> None:
        """Check that the program is still attached, since any privileged process may detach it.
        After a failure to attach it again, connections end by their timeouts, and the next check
        retries.
        """
        if nic.steering is None:
            return
        try:
            words = nic.steering.check()
        except OSError as error:
            if error.errno != errno.ENODEV:  # the next reading of the links will find it
                self._log_once(f"{nic.ifname} program", error.strerror or str(error))
            return
        self._logged.pop(f"{nic.ifname} program", None)
        if words:
            log.warning("%s", words)

    def _detach(self, nic: Nic) -> None:
        """Close and unpin: a program that is neither pinned nor held is detached."""
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
        if before is None and nic.fresh:
            self._prepare()
        nic.fresh = False
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
            # Addresses in an adopted map may be stale; sync() removes those.
            known = [bytes.fromhex(raw) for raw in before.addresses]
            nic.addresses = {raw: Address(raw, link.ifindex, 0) for raw in known}
        table = self._table.nics.get(nic.ifname)
        if table is None or table.ifindex != link.ifindex:
            self._table.add_nic(self._nic_table(nic, link))
        self._changed()

    def _adopt(self, nic: Nic, link: Link, before: NicState | None) -> bool:
        """Adopt the pins of an earlier harpd; log and remove what does not fit."""
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
                log.warning("%s: removed what a harpd left that died at its start", nic.ifname)
            return False
        whose = (
            "an earlier harpd" if before and before.ifindex == link.ifindex else "an unknown one"
        )
        if not self._stays(nic, link):
            log.info("%s: removed the XDP program of %s, attaching a new one", nic.ifname, whose)
            self._detach(nic)
            return False
        try:
            nic.steering.replace()
            log.info("%s: adopted the XDP program of %s", nic.ifname, whose)
        except OSError as error:
            log.warning("%s; the one of %s continues", error.strerror, whose)
        return True

    def _stays(self, nic: Nic, link: Link) -> bool:
        """Detach a generic program that harp.toml does not ask for, once no process has a lease."""
        assert nic.steering is not None
        if not nic.generic or nic.settings.xdp_mode == "generic":
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
        """Raise OSError while jobs receive through pins that this harpd can't adopt."""
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

    # ---- a reload ----

    def apply(self, settings: Settings) -> str:
        """Apply what harp.toml may change while leases exist, for new leases. Return the NICs that
        can't be read, and why; they keep their previous queues.
        """
        problems = []
        self._settings = settings
        for each in settings.nics:
            nic = self.all.get(each.ifname)
            if nic is not None:
                nic.settings = each
        for nic in self.all.values():
            table = self._table.nics.get(nic.ifname)
            if table is None or nic.link is None:
                continue
            try:
                nic.hardware = self._kernel.hardware(nic.link, nic.settings.rss)
            except (OSError, ValueError) as error:
                problems.append(f"{nic.ifname}: its queues can't be read: {error}; reload again")
            fresh = self._nic_table(nic, nic.link)
            for queue in fresh.queues:
                table.queues.setdefault(queue, QueueState.FREE)
            table.withdrawn = set(table.queues) - set(fresh.queues)
            table.ports.size, table.ports.quarantine_s = fresh.ports.size, fresh.ports.quarantine_s
        return "; ".join(problems)

    # ---- a NIC changes ----

    def _compare(self, nic: Nic, before: Link, now: Link) -> None:
        leases = self.leases_on(nic)
        if before.up != now.up:
            for lease in leases:
                lease.unmark(DOWN) if now.up else lease.mark(DOWN)
            words = "up again" if now.up else "down (or without carrier)"
            log.warning(
                "%s: the interface is %s%s", nic.ifname, words, _owners(leases, "; leased to")
            )
            self._changed()
        if before.mtu_bytes != now.mtu_bytes:
            words = f"MTU changed from {before.mtu_bytes} to {now.mtu_bytes}"
            for lease in leases:
                lease.mark(words)
            log.warning("%s: %s%s", nic.ifname, words, _owners(leases, "; leased to"))
            self._changed()

    def _sync_addresses(self, nic: Nic, ifindex: int, found: list[Address]) -> None:
        """Make the program's addresses those of the interface.

        A removed address stays in the program while a lease lives that had it. When the address
        returns, the kernel has it before harpd knows, and would answer a retransmission with an
        RST. Meanwhile the lease's stack drops packets for it. If another interface has the address,
        it is the kernel's.
        """
        there = {address.raw: address for address in found if address.ifindex == ifindex}
        elsewhere = {address.raw for address in found if address.ifindex != ifindex}
        for raw in [raw for raw in nic.addresses if raw not in there]:
            self._lose_address(nic, raw)
        away = [raw for raw in nic.lost_addresses if raw not in there]
        for number, raw in enumerate(away):
            kept = number >= len(away) - LOST_MAX and raw not in elsewhere
            if kept and self._is_needed(nic, nic.lost_addresses[raw]):
                continue
            if self._address_set(nic, raw, ours=False):
                del nic.lost_addresses[raw]
                self._changed()
        for raw, address in there.items():
            if raw in nic.addresses:
                nic.addresses[raw] = address
            elif raw in nic.lost_addresses or self._address_set(nic, raw, ours=True):
                nic.lost_addresses.pop(raw, None)
                nic.addresses[raw] = address
                log.info("%s: address %s", nic.ifname, address)
                for lease in self.leases_on(nic):
                    lease.unmark(f"{ADDRESS}: {address}")
                self._changed()

    def _lose_address(self, nic: Nic, raw: bytes) -> None:
        nic.lost_addresses[raw] = address = nic.addresses.pop(raw)
        leases = self.leases_on(nic)
        words = _owners(leases, "; leased to")
        log.info("%s: address %s removed%s", nic.ifname, address, words)
        for lease in leases:
            lease.mark(f"{ADDRESS}: {address}")
        self._changed()

    def _is_needed(self, nic: Nic, address: Address) -> bool:
        """Tell whether a lease, or an unadopted one, may have connections at a removed address."""
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

    def waits(self, lease: Lease) -> bool:
        """Tell whether the lease's NIC has pins that can't be adopted while jobs depend on them."""
        nic = self.all.get(lease.ifname)
        return bool(nic and nic.keep_pins and nic.link and nic.link.ifindex == lease.ifindex)

    def mark_adopted(self, nic: Nic) -> None:
        """Mark in adopted leases which addresses changed while no harpd ran."""
        for lease in self.leases_on(nic):
            for address in nic.lost_addresses.values():
                lease.mark(f"{ADDRESS}: {address}")
            for address in nic.addresses.values():
                lease.unmark(f"{ADDRESS}: {address}")

    def clean_maps(self, nic: Nic) -> None:
        """Remove from an adopted program's maps what belongs to no lease."""
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
        """End: with remove detach everything; without it pinned programs stay."""
        for nic in self.all.values():
            if remove:
                self._detach(nic)
            elif nic.steering is not None:
                nic.steering.close()
                nic.steering = None


def _owners(leases: list[Lease], words: str) -> str:
    if not leases:
        return ""
    pids = sorted({lease.owner.pid for lease in leases})
    return f"{words} process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"


def _gaps(span: Block, held: list[Block]) -> list[Block]:
    """Return the parts of span that are in no block of held, which is sorted."""
    gaps, at = [], span.first
    for block in held:
        if at < min(block.first, span.last + 1):
            gaps.append(Block(at, min(block.first - 1, span.last)))
        at = max(at, block.last + 1)
    if at <= span.last:
        gaps.append(Block(at, span.last))
    return gaps
