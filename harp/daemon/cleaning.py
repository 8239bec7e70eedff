# SPDX-License-Identifier: Apache-2.0
"""`harpctl stop` without a running harpd: cleans up after one that died."""

import os
import stat
from collections.abc import Callable

from harp.daemon import peer, rundir
from harp.daemon.settings import Settings
from harp.daemon.state import State, StateFile
from harp.errors import Exit, HarpError
from harp.nicprep import Preparation, Undo

Unpin = Callable[[str], bool]


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
    living = [lease for lease in state.leases if lease.active and peer.lives(lease.owner)]
    if living and not force:
        owners = ", ".join(
            f"process {each.owner.pid} ({each.label}) on {each.ifname} queue {each.queue}"
            for each in living
        )
        raise HarpError(
            f"no harpd runs, and jobs do, without it: {owners}; `harpctl start` takes them over "
            "again; end them, or use --force, which cuts their connections",
            Exit.RUNNING,
        )
    done = _unpin(settings, unpin)
    if state.undo.entries:
        _restore(preparation, state, file)
        done.append(
            f"part of what harpd had changed stays as it is, and in {file.path} for the next try"
            if state.undo.entries
            else "restored what harpd had changed of NICs and ports"
        )
    if _stale_socket(settings):
        settings.socket_path.unlink()
        done.append(f"removed {settings.socket_path}")
    if not state.undo.entries and file.path.exists():
        file.remove()
        done.append(f"removed {file.path}")
    return done


def _unpin(settings: Settings, unpin: Unpin) -> list[str]:
    """Remove the XDP programs by removing their pins."""
    pins = settings.pins_dir
    done = [
        f"removed the XDP program of {path.name}"
        for path in rundir.pinned(pins)
        if unpin(str(path))
    ]
    mounted = pins.is_dir()
    rundir.unmount(pins)
    if mounted and not pins.exists():
        done.append(f"unmounted {pins}")
    return done


def _restore(preparation: Preparation, state: State, file: StateFile) -> None:
    """Restore the NICs. Changes that can't be restored stay in the file for the next attempt."""

    def record(undo: Undo) -> None:
        state.undo = undo
        file.write(state)

    preparation.restore(state.undo, record)


def _stale_socket(settings: Settings) -> bool:
    """Tell whether there is a socket. Nothing listens on it: this process holds the lock."""
    try:
        found = settings.socket_path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid in (0, os.geteuid())
