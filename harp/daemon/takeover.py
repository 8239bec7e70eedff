# SPDX-License-Identifier: Apache-2.0
"""Takes over from the previous harpd: state, leases of living owners, quarantined ports, pins.

`harpctl stop` uses clean() after a harpd that died.
"""

import logging
import os
import stat
import time
from collections.abc import Callable

from harp.daemon import peer, rundir
from harp.daemon.kernel import Kernel
from harp.daemon.leasing import Leasing
from harp.daemon.ports import Block
from harp.daemon.settings import Settings
from harp.daemon.state import State, StateFile
from harp.daemon.table import Lease
from harp.errors import Exit, HarpError
from harp.nicprep import Preparation, Undo
from harp.words import plural

log = logging.getLogger("harpd")
Unpin = Callable[[str], bool]


def read_state(file: StateFile) -> State:
    """Return the previous state; if it can't be read, log that and return an empty one."""
    try:
        state = file.read()
    except OSError as error:
        log.error("%s: %s; earlier jobs are unknown", file.path, error.strerror)
        return State()
    if state.pid not in (0, os.getpid()):
        log.info(
            "taking over from harpd %s (process %d): %s",
            state.version, state.pid, plural(len(state.leases), "lease"),
        )  # fmt: skip
    return state


class Takeover:
    """Leases of the previous harpd until they are adopted or ended. After adopt(), stranded has the
    leases of jobs that depend on an XDP program which this harpd can't adopt.
    """

    def __init__(self, before: State) -> None:
        self._before = before
        self.stranded: list[Lease] = [lease for lease in before.leases if lease.active]

    def users(self, ifname: str, ifindex: int) -> list[int]:
        """Return living owners of leases on one NIC that are not adopted; remove other leases."""
        self.stranded = [lease for lease in self.stranded if peer.is_alive(lease.owner)]
        return sorted(
            {
                lease.owner.pid
                for lease in self.stranded
                if (lease.ifname, lease.ifindex) == (ifname, ifindex)
            }
        )

    def continue_quarantines(self, leasing: Leasing, quarantine_s: float) -> None:
        now_s, wall_s = leasing.now_s(), time.time()
        for ifname, rests in self._before.rests.items():
            table = leasing.table.nics.get(ifname)
            for first, last, until_s in rests if table else []:
                left_s = min(until_s - wall_s, quarantine_s)
                if table and left_s > 0:
                    table.ports.continue_quarantine(Block(first, last), now_s + left_s)

    def adopt(self, leasing: Leasing, quarantine_s: float) -> None:
        """Adopt or end each lease, and remove everything else from the maps."""
        for lease in self._before.leases:
            if not lease.active:
                continue
            if leasing.nics.has_foreign_pins(lease):
                log.warning("%s: process %d continues without harpd", lease.ifname, lease.owner.pid)
                leasing.frames.leave(lease.frames)
                continue
            self._adopt_one(lease, leasing, quarantine_s)
        leasing.finish_adoption()
        for nic in leasing.nics.all.values():
            leasing.nics.mark_adopted(nic)
            leasing.nics.clean_maps(nic)

    def _adopt_one(self, lease: Lease, leasing: Leasing, quarantine_s: float) -> None:
        if lease in self.stranded:  # users() removes those of dead owners
            self.stranded.remove(lease)
        why = leasing.adopt(lease)
        if not why:
            log.info(
                "lease %016x: process %d continues with %s",
                lease.lease_id, lease.owner.pid, lease.what,
            )  # fmt: skip
            return
        log.warning("lease %016x of %s has ended: %s", lease.lease_id, lease.ifname, why)
        table = leasing.table.nics.get(lease.ifname)
        if table and lease.ports and quarantine_s > 0:
            table.ports.continue_quarantine(lease.ports, leasing.now_s() + quarantine_s)


def clean_pins(settings: Settings, kernel: Kernel, leasing: Leasing) -> None:
    """Remove pins of interfaces that are no longer in harp.toml."""
    for path in rundir.pinned(settings.pins_dir):
        nic = leasing.nics.all.get(path.name)
        if nic is not None and (nic.steering is not None or nic.keep_pins):
            continue
        try:
            if kernel.unpin(path):
                log.warning("removed the XDP program that an earlier harpd left in %s", path)
        except OSError as error:
            log.warning("%s", error.strerror)


# ---- `harpctl stop` without a running harpd ----
def clean(settings: Settings, preparation: Preparation, unpin: Unpin, force: bool) -> list[str]:
    """Remove pins, bpffs, socket and state and restore the NICs; return a line for each action.

    HarpError: another harpd runs, jobs of the dead one still run (without force), or root is
    required.
    """
    if not settings.run_dir.is_dir():
        return []
    rundir.check(settings.run_dir)
    lock = rundir.lock(settings.run_dir)
    try:
        return _clean(settings, preparation, unpin, force)
    except OSError as error:
        where = error.filename or settings.run_dir
        raise HarpError(f"{where}: {error.strerror or error}") from error
    finally:
        os.close(lock)


def _clean(settings: Settings, preparation: Preparation, unpin: Unpin, force: bool) -> list[str]:
    file = StateFile(settings.run_dir)
    file.remove_temporary()
    state = file.read()
    living = [lease for lease in state.leases if lease.active and peer.is_alive(lease.owner)]
    if living and not force:
        owners = ", ".join(
            f"process {lease.owner.pid} ({lease.label}) on {lease.what}" for lease in living
        )
        raise HarpError(
            f"no harpd runs, but jobs with leases do: {owners}; start harpd (`harpctl start`), end "
            "the jobs, or use --force, which cuts their connections",
            Exit.RUNNING,
        )
    done = _unpin(settings, unpin)
    if state.undo:
        _restore(preparation, state, file)
        done.append(
            f"some changes of NICs and ports are not restored; {file.path} has them for a retry"
            if state.undo
            else "restored the settings of NICs and ports that harpd had changed"
        )
    if _has_stale_socket(settings):
        settings.socket_path.unlink()
        done.append(f"removed {settings.socket_path}")
    if not state.undo and file.path.exists():
        file.path.unlink()
        done.append(f"removed {file.path}")
    return done


def _unpin(settings: Settings, unpin: Unpin) -> list[str]:
    """Remove the XDP programs by removing their pins; return a line for each action."""
    pins = settings.pins_dir
    lines = [
        f"removed the XDP program of {path.name}"
        for path in rundir.pinned(pins)
        if unpin(str(path))
    ]
    mounted = pins.is_dir()
    rundir.unmount(pins)
    if mounted and not pins.exists():
        lines.append(f"unmounted {pins}")
    return lines


def _restore(preparation: Preparation, state: State, file: StateFile) -> None:
    """Restore the NICs. Changes that can't be restored stay in the file for the next attempt."""

    def record(undo: Undo) -> None:
        state.undo = undo
        file.write(state)

    preparation.restore(state.undo, record)


def _has_stale_socket(settings: Settings) -> bool:
    try:
        status = settings.socket_path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid in (0, os.geteuid())
