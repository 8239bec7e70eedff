# SPDX-License-Identifier: Apache-2.0
"""`harpctl stop` cleans up after a dead harpd, on a fake host."""

import errno
import os
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harp.daemon import peer, rundir
from harp.daemon.ports import Block
from harp.daemon.settings import Settings
from harp.daemon.state import NicState, State, StateFile
from harp.daemon.table import Lease, Owner
from harp.daemon.takeover import clean
from harp.errors import Exit, HarpError
from harp.nicprep import Entry, Preparation, Record, Undo


@dataclass
class Machine(Preparation):
    """Records the calls. stays: changes that cannot be restored."""

    unpinned: list[str] = field(default_factory=list)
    restored: list[Undo] = field(default_factory=list)
    stays: Undo = field(default_factory=Undo)

    def restore(self, undo: Undo, record: Record) -> None:
        self.restored.append(undo)
        record(self.stays)

    def unpin(self, path: str) -> bool:
        self.unpinned.append(path)
        Path(path).rmdir()
        return True


def changes(*targets: str) -> Undo:
    return Undo([Entry("rings", target, {"rx": 1}, {"rx": [2]}, 2) for target in targets])


def dead_harpd(settings: Settings, *owners: Owner, undo: Undo = Undo()) -> StateFile:  # noqa: B008
    """Create the run_dir of a dead harpd, with a lease for each owner."""
    settings.run_dir.mkdir()
    (settings.pins_dir / "eth0").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(settings.socket_path))
    leases = [
        Lease(number + 1, owner, "eth0", 2, number, Block(61000, 61255), "train", 0.0, active=True)
        for number, owner in enumerate(owners)
    ]
    file = StateFile(settings.run_dir)
    file.write(State(1, 1, "0", {"eth0": NicState(2)}, leases, undo=undo))
    return file


def dead_process() -> Owner:
    process = subprocess.Popen(["true"])
    owner = Owner(process.pid, peer.start_ticks(process.pid), 0)
    process.wait()
    return owner


def test_a_reused_pid_is_not_the_job(settings: Settings) -> None:
    machine = Machine()
    dead_harpd(settings, Owner(os.getpid(), 1, 0))
    assert clean(settings, machine, machine.unpin, force=False)


def test_changes_that_cannot_be_restored_stay_in_the_state(settings: Settings) -> None:
    machine = Machine(stays=changes("y"))
    file = dead_harpd(settings, undo=changes("x", "y"))
    messages = clean(settings, machine, machine.unpin, force=False)
    assert f"some changes of NICs and ports are not restored; {file.path}" in messages[2]
    assert file.read().undo == changes("y")
    machine.stays = Undo()
    clean(settings, machine, machine.unpin, force=False)
    assert machine.restored == [changes("x", "y"), changes("y")]
    assert list(settings.run_dir.iterdir()) == []


def test_another_running_harpd_keeps_its_files(settings: Settings) -> None:
    machine = Machine()
    dead_harpd(settings, dead_process())
    lock_fd = rundir.lock(settings.run_dir)
    try:
        with pytest.raises(HarpError, match="another harpd runs") as failure:
            clean(settings, machine, machine.unpin, force=True)
    finally:
        os.close(lock_fd)
    assert failure.value.code is Exit.RUNNING
    assert not machine.unpinned


def test_a_damaged_state_is_set_aside_and_pins_are_removed(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    dead_harpd(settings, dead_process()).path.write_text("{")
    assert clean(settings, machine, machine.unpin, force=False)
    assert machine.unpinned
    assert [path.name for path in settings.run_dir.iterdir()] == ["state.bad"]
    assert len([record for record in caplog.records if "can't be read" in record.message]) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_an_unknown_state_changes_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """Jobs may run if it can't be read, or is damaged and can't be set aside."""

    def fail(*_: object) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    machine = Machine()
    file = dead_harpd(
        settings, Owner(os.getpid(), peer.start_ticks(os.getpid()), 0), undo=changes("x")
    )
    if damaged:
        file.path.write_text("{")
    monkeypatch.setattr(StateFile, "_set_aside" if damaged else "read", fail)
    with pytest.raises(HarpError, match="Input/output error"):
        clean(settings, machine, machine.unpin, force=True)
    assert (machine.unpinned, machine.restored) == ([], [])
    assert file.path.exists()


def test_foreign_files_stay(settings: Settings) -> None:
    machine = Machine()
    dead_harpd(settings)
    settings.socket_path.unlink()
    settings.socket_path.write_text("precious")
    (settings.run_dir / "harpd.log").write_text("a line")
    clean(settings, machine, machine.unpin, force=False)
    names = sorted(path.name for path in settings.run_dir.iterdir())
    assert names == ["harpd.log", settings.socket_path.name]


def test_a_pin_that_cannot_be_removed_is_reported_in_one_line(settings: Settings) -> None:
    def refuse(_path: str) -> bool:
        raise OSError(errno.EPERM, "pins of eth0: Operation not permitted")

    file = dead_harpd(settings, dead_process())
    with pytest.raises(HarpError, match=r"pins of eth0: Operation not permitted$"):
        clean(settings, Machine(), refuse, force=False)
    assert file.path.exists()
