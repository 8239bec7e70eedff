# SPDX-License-Identifier: Apache-2.0
"""`harpctl stop` without a harpd, over a machine that is not there."""

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
    """Records what is done to it. Some changes may be impossible to restore."""

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
    return Undo([Entry("rings", each, {"rx": 1}, {"rx": [2]}, 2) for each in targets])


def left(settings: Settings, *owners: Owner, undo: Undo = Undo()) -> StateFile:  # noqa: B008
    """A dead harpd's directory, with leases of these."""
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


def dead() -> Owner:
    """A process that was."""
    process = subprocess.Popen(["true"])
    owner = Owner(process.pid, peer.start_ticks(process.pid), 0)
    process.wait()
    return owner


def test_a_reused_process_number_is_no_job(settings: Settings) -> None:
    machine = Machine()
    left(settings, Owner(os.getpid(), 1, 0))
    assert clean(settings, machine, machine.unpin, force=False)


def test_changes_that_cannot_be_restored_stay_in_the_state(settings: Settings) -> None:
    machine = Machine(stays=changes("y"))
    file = left(settings, undo=changes("x", "y"))
    messages = clean(settings, machine, machine.unpin, force=False)
    assert f"part of what harpd had changed stays as it is, and in {file.path}" in messages[2]
    assert file.read().undo == changes("y")
    machine.stays = Undo()
    clean(settings, machine, machine.unpin, force=False)
    assert machine.restored == [changes("x", "y"), changes("y")]
    assert list(settings.run_dir.iterdir()) == []


def test_a_harpd_that_starts_meanwhile_keeps_its_own(settings: Settings) -> None:
    machine = Machine()
    left(settings, dead())
    held = rundir.lock(settings.run_dir)
    try:
        with pytest.raises(HarpError, match="another harpd runs") as caught:
            clean(settings, machine, machine.unpin, force=True)
    finally:
        os.close(held)
    assert caught.value.code is Exit.RUNNING
    assert not machine.unpinned


def test_a_damaged_state_is_set_aside_and_pins_go(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    left(settings, dead()).path.write_text("{")
    assert clean(settings, machine, machine.unpin, force=False)
    assert machine.unpinned
    assert [path.name for path in settings.run_dir.iterdir()] == ["state.bad"]
    assert len([each for each in caplog.records if "can't be read" in each.message]) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_state_that_is_not_known_changes_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """It can't be read, or it is damaged and can't be set aside: jobs may run, for all we know."""

    def fail(*_: object) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    machine = Machine()
    file = left(settings, Owner(os.getpid(), peer.start_ticks(os.getpid()), 0), undo=changes("x"))
    if damaged:
        file.path.write_text("{")
    monkeypatch.setattr(StateFile, "_set_aside" if damaged else "read", fail)
    with pytest.raises(HarpError, match="Input/output error"):
        clean(settings, machine, machine.unpin, force=True)
    assert (machine.unpinned, machine.restored) == ([], [])
    assert file.path.exists()


def test_files_of_others_stay(settings: Settings) -> None:
    machine = Machine()
    left(settings)
    settings.socket_path.unlink()
    settings.socket_path.write_text("precious")
    (settings.run_dir / "harpd.log").write_text("a line")
    clean(settings, machine, machine.unpin, force=False)
    names = sorted(path.name for path in settings.run_dir.iterdir())
    assert names == ["harpd.log", settings.socket_path.name]


def test_a_pin_that_can_not_be_removed_is_one_line(settings: Settings) -> None:
    def refuse(_path: str) -> bool:
        raise OSError(errno.EPERM, "pins of eth0: Operation not permitted")

    file = left(settings, dead())
    with pytest.raises(HarpError, match=r"pins of eth0: Operation not permitted$"):
        clean(settings, Machine(), refuse, force=False)
    assert file.path.exists()
