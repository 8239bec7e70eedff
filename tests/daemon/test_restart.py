# SPDX-License-Identifier: Apache-2.0
"""harpd ends and starts: with running and dead jobs, other versions' pins, and full disks."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_rig import Running, Start, holder, kill, lease_once
from fake_kernel import FakeKernel, address
from test_leases import check_nothing_left, queue_state, steering

from harp.config import NicConfig
from harp.daemon import daemon, state
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.daemon import Daemon
from harp.daemon.frames import Frames
from harp.daemon.settings import Settings
from harp.daemon.table import QueueState
from harp.errors import HarpError
from harp.nicprep import Entry, Preparation, Record, Undo


def test_a_stop_is_refused_while_leases_exist_unless_forced(start: Start) -> None:
    harpd = start()
    pid, pipe = holder(harpd.path)
    with harpd.client() as client:
        answer = client.query("stop")
        assert not answer["stopping"]
        assert [instance["pid"] for instance in answer["instances"]] == [pid]
        assert client.query("status")["leases"] == 1
        assert client.query("stop", force=True)["stopping"]
    harpd.join()
    assert steering(harpd).xsks == steering(harpd).ports == harpd.kernel.pinned == {}
    kill(pid, pipe)


def test_jobs_survive_a_restart(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    first = start()
    kernel = first.kernel
    pid, pipe = holder(first.path)
    before = (dict(steering(first).xsks), dict(steering(first).ports))
    first.end(remove=False)
    assert kernel.pinned != {}
    second = start(kernel)
    assert f"process {pid} continues with eth0 queue 0" in caplog.text
    program = steering(second)
    assert (program.xsks, program.ports) == before, "unchanged"
    assert program.replaced == 1
    assert kernel.steerings == [program], "the pinned program was adopted"
    with second.client() as client:
        instance = client.query("instances")["instances"][0]
        assert (instance["pid"], instance["label"], instance["active"]) == (pid, "holder", True)
    kill(pid, pipe)
    check_nothing_left(second)


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_removed_address_is_kept_over_a_restart(start: Start, is_noticed: bool) -> None:
    first = start()
    kernel = first.kernel
    pid, pipe = holder(first.path)
    kernel.local_addresses = []
    if is_noticed:
        first.call(first.daemon.nics.sync)
    first.end(remove=False)
    second = start(kernel)
    second.call(second.daemon.nics.sync)
    assert steering(second).addresses == {address(1).raw}
    with second.client() as client:
        marks = client.query("instances")["instances"][0]["marks"]
        assert marks == ["address removed: 10.0.0.1"]
    second.end(remove=False)
    kernel.local_addresses = [address(1)]
    third = start(kernel)
    with third.client() as client:
        assert client.query("instances")["instances"][0]["marks"] == []
    kill(pid, pipe)
    check_nothing_left(third)


def test_leases_of_ended_processes_are_removed_at_the_next_start(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    kernel = first.kernel
    dead, living = holder(first.path), holder(first.path)
    first.end(remove=False)
    kill(*dead)
    kernel.busy_queues.discard(("eth0", 0))
    steering(first).ports[62000] = 3  # left by a harpd that died between two steps
    second = start(kernel)
    assert "has ended: process" in caplog.text
    assert set(steering(second).xsks) == {1}
    assert steering(second).ports == dict.fromkeys(range(61256, 61512), 1)
    assert queue_state(second, 0) is QueueState.FREE
    with second.client() as client:
        status = client.query("status")
        assert status["nics"][0]["port_blocks_resting"] == 1, "its peers may still be sending"
    kill(*living)


def test_a_queue_closed_while_no_harpd_ran_is_freed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    pid, pipe = holder(first.path)
    first.end(remove=False)
    first.kernel.busy_queues.clear()
    second = start(first.kernel)
    check_nothing_left(second)
    assert "closed the queue while no harpd ran" in caplog.text
    kill(pid, pipe)


def test_pins_of_another_layout_are_replaced_with_a_message(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    first.end(remove=False)
    steering(first).failing = "adopt"
    second = start(first.kernel)
    assert "pins of another layout; removed, attaching a new one" in caplog.text
    assert len(second.kernel.steerings) == 2


def test_pins_that_a_job_depends_on_stay_until_it_ends(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    pid, pipe = holder(first.path)
    old = steering(first)
    first.end(remove=False)
    old.failing = "adopt"
    second = start(first.kernel)
    assert old.xsks, "the job still gets its packets"
    assert second.kernel.steerings == [old]
    assert "jobs depend on another version's XDP program" in caplog.text
    with second.client() as client, pytest.raises(RefusedByDaemonError, match="another version"):
        client.lease("eth0")
    # Neither the end of this harpd nor the start of the next one changes that.
    second.daemon.loop.call_soon_threadsafe(second.daemon._terminated)
    second.join()
    third = start(first.kernel)
    assert third.kernel.steerings == [old]
    kill(pid, pipe)
    third.call(third.daemon.nics.sync)
    assert len(third.kernel.steerings) == 2
    with third.client() as client:
        assert client.query("status")["nics"][0]["problem"] == ""


def test_frames_of_a_job_that_continues_unattended_are_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    pid, pipe = holder(first.path)
    (frames_fd,) = first.daemon.leasing.frames.fds
    of_job, of_no_lease = os.dup(frames_fd), os.memfd_create("of-no-lease")
    inherited = []
    for fd in (of_job, of_no_lease):
        os.pwrite(fd, b"frame", 0)
        inherited.append(os.dup(fd))
    steering(first).failing = "adopt"
    first.end(remove=False)
    monkeypatch.setattr(daemon, "Frames", lambda _fds: Frames(inherited))
    second = start(first.kernel)
    second.daemon.loop._workers.shutdown(wait=True)
    second.call(lambda: None)  # after the results of the workers
    assert f"process {pid} continues without harpd" in caplog.text
    assert os.pread(of_job, 5, 0) == b"frame"
    assert os.pread(of_no_lease, 5, 0) == bytes(5)
    for fd in (of_job, of_no_lease):
        os.close(fd)
    for fd in inherited:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    kill(pid, pipe)
    second.call(second.daemon.nics.sync)


def test_a_nic_that_appears_is_prepared(start: Start) -> None:
    kernel, preparation = FakeKernel(), FakePreparation()
    present = kernel.present.pop("eth0")
    harpd = start(kernel, preparation=preparation)
    assert len(preparation.calls) == 1
    harpd.call(harpd.daemon.nics.sync)
    assert len(preparation.calls) == 1
    kernel.present["eth0"] = present
    harpd.call(harpd.daemon.nics.sync), harpd.call(harpd.daemon.nics.sync)
    assert len(preparation.calls) == 2


def test_a_program_that_cannot_be_replaced_continues(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FakeKernel()
    first = start(kernel)
    first.end(remove=False)
    steering(first).native = True
    steering(first).failing = "replace"
    second = start(first.kernel)
    assert "the program of an earlier harpd continues" in caplog.text
    with second.client() as client:
        lease_once(client, "eth0")


def test_a_socket_group_closes_the_socket_to_others(start: Start, settings: Settings) -> None:
    harpd = start(settings=replace(settings, socket_group=str(os.getgid())))
    assert harpd.path.stat().st_mode & 0o777 == 0o660


def fail_without_space(_self: object, _state: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_state_is_saved_when_the_disk_has_space_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon, "STATE_AGAIN_S", 0.01)
    harpd = start()
    with monkeypatch.context() as patch:
        patch.setattr(state.StateFile, "write", fail_without_space)
        pid, pipe = holder(harpd.path)
        harpd.until(lambda: harpd.daemon.status()["state"] != "good", "a failed write")
    harpd.until(lambda: harpd.daemon.status()["state"] == "good", "another attempt to save")
    assert caplog.text.count("can't be written: No space left on device") == 1
    assert "state.json can be written again" in caplog.text
    saved = json.loads((harpd.daemon.settings.run_dir / "state.json").read_text())
    assert [lease["owner"]["pid"] for lease in saved["leases"]] == [pid]
    kill(pid, pipe)


def test_temporary_files_of_a_killed_harpd_are_removed(start: Start, settings: Settings) -> None:
    settings.run_dir.mkdir()
    for name in (".state.json.a1b2c3d4", ".other"):
        (settings.run_dir / name).write_text("{")
    start()
    hidden = [path.name for path in settings.run_dir.iterdir() if path.name.startswith(".")]
    assert hidden == [".other"]


def test_a_restart_that_would_lose_leases_is_refused(
    harpd: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(state.StateFile, "write", fail_without_space)
        pid, pipe = holder(harpd.path)
        with (
            harpd.client() as client,
            pytest.raises(RefusedByDaemonError, match=r"would lose 1 lease on .*; free disk space"),
        ):
            client.query("restart")
        kill(pid, pipe)
        check_nothing_left(harpd)
        assert harpd.call(harpd.daemon.restart_problem) == "", "no lease would be lost"
    pid, pipe = holder(harpd.path)
    assert harpd.call(harpd.daemon.restart_problem) == "", "the disk has space again"
    kill(pid, pipe)


CHANGED = Undo([Entry("rings", "eth0", {"rx": 1}, {"rx": [2]}, 2)])


class FakePreparation(Preparation):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Undo]] = []

    def prepare(self, _nics: object, _huge_pages: int, undo: Undo, record: Record) -> None:
        self.calls.append(("prepare", undo))
        record(CHANGED)

    def restore(self, undo: Undo, record: Record) -> None:
        self.calls.append(("restore", undo))
        record(Undo())


def test_nics_are_restored_at_the_stop_and_not_at_a_restart(start: Start) -> None:
    kernel, preparation = FakeKernel(), FakePreparation()
    first = start(kernel, preparation=preparation)
    first.end(remove=False)
    assert preparation.calls == [("prepare", Undo())]
    second = start(kernel, preparation=preparation)
    assert preparation.calls[1:] == [("prepare", CHANGED)]
    second.end(remove=True)
    assert preparation.calls[2:] == [("restore", CHANGED)]


def test_a_start_that_fails_leaves_running_jobs_alone(start: Start, settings: Settings) -> None:
    first = start()
    pid, pipe = holder(first.path)
    first.end(remove=False)

    class Failing(Preparation):
        def prepare(self, _nics: object, _huge_pages: int, _undo: Undo, record: Record) -> None:
            record(CHANGED)
            raise HarpError("the NIC is on fire")

    with pytest.raises(HarpError, match="on fire"):
        Daemon(settings, first.kernel, lambda: settings, Failing()).start()
    assert first.kernel.pinned != {}
    assert set(steering(first).xsks) == {0}
    second = start(first.kernel)
    assert len(second.daemon.table.leases) == 1
    kill(pid, pipe)


def test_nics_are_added_and_removed_by_a_restart(
    start: Start, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    first.end(remove=False)
    first.kernel.present["eth1"] = replace(first.kernel.present["eth0"], ifname="eth1", ifindex=5)
    second = start(first.kernel, settings=replace(settings, nics=(NicConfig(ifname="eth1"),)))
    assert list(second.daemon.table.nics) == ["eth1"]
    assert [Path(path).name for path in second.kernel.pinned] == ["eth1"]
    assert f"an earlier harpd left in {settings.pins_dir / 'eth0'}" in caplog.text


@pytest.mark.parametrize("change", ["run_dir", "broken"])
def test_a_restart_that_would_fail_is_refused(
    settings: Settings, change: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> Settings:
        if change == "broken":
            raise HarpError("harp.toml:3: no such key")
        return replace(settings, run_dir=settings.run_dir / "other")

    kernel = FakeKernel()
    harpd = start(kernel, load=load)
    with harpd.client() as client:
        with pytest.raises(RefusedByDaemonError, match="harpd continues unchanged") as failure:
            client.query("restart")
        assert ("run_dir has changed" in str(failure.value)) is (change == "run_dir")
        assert client.query("status")["daemon"] == "harpd"
    caplog.clear()
    harpd.call(harpd.daemon._hung_up)
    assert "harpd continues unchanged" in caplog.text
    assert harpd.alive
