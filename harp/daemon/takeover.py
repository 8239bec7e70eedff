# SPDX-License-Identifier: Apache-2.0
"""Takes over from the previous harpd: state, leases of living owners, quarantined ports, pins."""

import logging
import os
import time
from pathlib import Path

from harp.daemon import peer, rundir
from harp.daemon.kernel import Kernel
from harp.daemon.leasing import Leasing
from harp.daemon.ports import Block
from harp.daemon.settings import Settings
from harp.daemon.state import State, StateFile
from harp.daemon.table import Lease

log = logging.getLogger("harpd")


def read_state(file: StateFile) -> State:
    """Return the previous state; an empty one, with a message, if it can't be read."""
    try:
        state = file.read()
    except OSError as error:
        log.error("%s: %s; jobs of before are not known", file.path, error.strerror)
        return State()
    count = len(state.leases)
    if state.pid not in (0, os.getpid()):
        log.info(
            "taking over from harpd %s (process %d): %d lease%s",
            state.version, state.pid, count, "" if count == 1 else "s",
        )  # fmt: skip
    return state


class Takeover:
    """Leases of the previous harpd until they are adopted or over. stranded: of jobs that depend on
    a program which this harpd can't adopt.
    """

    def __init__(self, before: State) -> None:
        self._before = before
        self.stranded: list[Lease] = [lease for lease in before.leases if lease.active]

    def users(self, ifname: str, ifindex: int) -> list[int]:
        """Return living owners of unadopted leases on one NIC; forget the dead."""
        self.stranded = [lease for lease in self.stranded if peer.lives(lease.owner)]
        here = (ifname, ifindex)
        found = {each.owner.pid for each in self.stranded if (each.ifname, each.ifindex) == here}
        return sorted(found)

    def continue_quarantines(self, leasing: Leasing, quarantine_s: float) -> None:
        """Continue the quarantine of ports."""
        now_s, wall_s = leasing.now_s(), time.time()
        for ifname, rests in self._before.rests.items():
            table = leasing.table.nics.get(ifname)
            for first, last, until_s in rests if table else []:
                left_s = min(until_s - wall_s, quarantine_s)
                if table and left_s > 0:
                    table.ports.continue_quarantine(Block(first, last), now_s + left_s)

    def adopt(self, leasing: Leasing, quarantine_s: float) -> None:
        """Adopt or end each lease; after that the maps contain nothing else."""
        for lease in self._before.leases:
            if not lease.active:
                continue
            if leasing.nics.waits(lease):
                log.warning("%s: process %d continues unattended", lease.ifname, lease.owner.pid)
                leasing.frames.leave(lease.frames)
                continue
            self._adopt_one(lease, leasing, quarantine_s)
        leasing.adopted()
        for nic in leasing.nics.all.values():
            leasing.nics.mark_adopted(nic)
            leasing.nics.clean_maps(nic)

    def _adopt_one(self, lease: Lease, leasing: Leasing, quarantine_s: float) -> None:
        if lease in self.stranded:  # not if its owner was found dead
            self.stranded.remove(lease)
        why = leasing.adopt(lease)
        if not why:
            log.info(
                "lease %016x: process %d continues with %s",
                lease.lease_id, lease.owner.pid, lease.what,
            )  # fmt: skip
            return
        log.warning("lease %016x of %s is over: %s", lease.lease_id, lease.ifname, why)
        table = leasing.table.nics.get(lease.ifname)
        if table and lease.ports and quarantine_s > 0:
            table.ports.continue_quarantine(lease.ports, leasing.now_s() + quarantine_s)


def clean_pins(settings: Settings, kernel: Kernel, leasing: Leasing) -> None:
    """Remove pins of interfaces that are no longer in harp.toml."""

    def ours(path: Path) -> bool:
        nic = leasing.nics.all.get(path.name)
        return nic is not None and (nic.steering is not None or nic.keep_pins)

    for path in rundir.pinned(settings.pins_dir):
        if ours(path):
            continue
        try:
            if kernel.unpin(path):
                log.warning("removed the XDP program that an earlier harpd left in %s", path)
        except OSError as error:
            log.warning("%s", error.strerror)
