# SPDX-License-Identifier: Apache-2.0
"""Leases: grant, failure and release, and changes of the NIC while they exist."""

import errno
import os
import signal
from dataclasses import replace

import pytest
from daemon_rig import Running, Start, greet, holder, kill, lease_once, refusal
from fake_kernel import FakeKernel, FakeSteering, address

from harp import _host
from harp._host import Kind
from harp.config import NicConfig
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.loop import close_all
from harp.daemon.messages import Request, pack
from harp.daemon.nics import LOST_MAX
from harp.daemon.settings import Settings
from harp.daemon.table import QueueState


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def steering(harpd: Running) -> FakeSteering:
    return harpd.kernel.steerings[-1]


def queue_state(harpd: Running, queue: int) -> QueueState:
    return harpd.daemon.table.nics["eth0"].queues[queue]


def check_nothing_left(harpd: Running) -> None:
    """Check that no lease is left in the table, in the maps and in harpd's descriptors."""
    harpd.until(lambda: not harpd.daemon.table.leases, "the end of all leases")
    assert steering(harpd).xsks == {}
    assert steering(harpd).ports == {}
    assert all(not queue.fds for queue in harpd.kernel.queues_made)
    assert harpd.daemon.leasing._watched == {}
    assert harpd.daemon.leasing.frames.fds == []


def test_a_lease_has_its_queue_ports_and_descriptors(harpd: Running) -> None:
    with harpd.client() as client:
        assert client.settings == "HARP_X=1\n"
        assert client.devices[0].queues_free == 4
        lease, fds = client.lease("eth0", label="train.py rank 3", frame_count=1 << 19)
        assert (lease.ifname, lease.queue, lease.ifindex, lease.netns) == ("eth0", 0, 2, 4711)
        assert lease.frame_count == 65536, "frames_max"
        assert (lease.port_min, lease.port_max) == (61000, 61255)
        assert len(fds) == _host.FDS
        assert steering(harpd).xsks == {0: inode(fds[_FD_XSK])}
        assert steering(harpd).ports == dict.fromkeys(range(61000, 61256), 0)
        harpd.until(lambda: not harpd.kernel.queues_made[0].fds, "harpd's duplicates")
        instances = client.query("instances")["instances"]
        assert [(instance["pid"], instance["label"]) for instance in instances] == [
            (os.getpid(), "train.py rank 3")
        ]
        client.release(lease.lease_id)
        close_all(fds)
    check_nothing_left(harpd)


_FD_XSK = 0


def test_a_label_cannot_control_a_terminal(harpd: Running) -> None:
    with harpd.client() as client:
        client.take("eth0", label="\x1b[31m\nred")
        assert client.query("instances")["instances"][0]["label"] == "?[31m?red"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"ifname": "eth7"}, errno.ENODEV),
        ({"ifname": "../../etc"}, errno.ENODEV),
        ({"ifname": "eth0", "queue": 4}, errno.EINVAL),
        ({"ifname": "eth0", "frame_count": 1}, errno.EINVAL),
        ({"ifname": "eth0", "copy_mode": 3}, errno.EINVAL),
    ],
    ids=["interface", "path", "queue", "frames", "copy-mode"],
)
def test_an_impossible_request_is_refused(harpd: Running, fields: dict, error: int) -> None:  # type: ignore[type-arg]
    with harpd.client() as client:
        assert refusal(client.lease, **fields).error == error
    check_nothing_left(harpd)


@pytest.mark.parametrize("step", ["make", "ports_set", "xsk_set"])
def test_a_failure_undoes_the_previous_steps(harpd: Running, step: str) -> None:
    if step == "make":
        harpd.kernel.make_error = OSError(errno.ENOMEM, "eth0 queue 0: no memory for frames")
    else:
        steering(harpd).failing = step
    with harpd.client() as client:
        expected = errno.ENOMEM if step == "make" else errno.E2BIG
        assert refusal(client.lease, "eth0").error == expected
        check_nothing_left(harpd)
        steering(harpd).failing, harpd.kernel.make_error = "", None
        harpd.kernel.busy_queues.clear()
        lease_once(client, "eth0")


def test_an_internal_error_is_one_line_and_harpd_continues(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    harpd.kernel.make_error = ZeroDivisionError("ours")  # type: ignore[assignment]
    with harpd.client() as client:
        with pytest.raises(RefusedByDaemonError, match="its log says more"):
            client.lease("eth0")
    assert "internal error: ZeroDivisionError: ours" in caplog.text
    check_nothing_left(harpd)


def test_a_client_that_disconnects_during_a_lease_gets_none(harpd: Running) -> None:
    harpd.kernel.may_make.clear()
    sock = greet(harpd.path)
    sock.send(pack(Kind.LEASE, 2, Request("eth0")))
    assert harpd.kernel.making.wait(10)
    with harpd.client() as other:  # harpd serves other clients during the request
        assert not other.query("instances")["instances"][0]["active"]
    sock.close()
    harpd.kernel.may_make.set()
    harpd.until(lambda: bool(harpd.kernel.queues_made), "the worker")
    check_nothing_left(harpd)


def test_the_end_of_a_process_ends_its_lease_and_frees_the_queue_later(harpd: Running) -> None:
    pid, end_fd = holder(harpd.path)
    assert set(steering(harpd).xsks) == {0}
    os.kill(pid, signal.SIGKILL)
    # The map is clean before the dead process is reaped.
    check_nothing_left(harpd)
    os.waitpid(pid, 0)
    os.close(end_fd)
    # The kernel has not released the queue, as if a forked child still held it.
    assert queue_state(harpd, 0) is QueueState.RECOVERING
    with harpd.client() as client:
        waiting = client.query("status")["nics"][0]["queues_waiting"]
        assert waiting["0"]["pid"] == pid
    harpd.kernel.busy_queues.clear()
    harpd.until(lambda: queue_state(harpd, 0) is QueueState.FREE, "the release of the queue")
    with harpd.client() as client:
        lease = client.take("eth0", queue=0)
        assert lease.port_min == 61256, "the dead process's ports are quarantined"


# --------------------------------------------------------------------------------------------------
# NICs.
#
def sync(harpd: Running) -> None:
    harpd.call(harpd.daemon.nics.sync)


def count_logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_a_lease_survives_changes_of_the_link(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with harpd.client() as client:
        client.take("eth0")
        harpd.kernel.change(up=False)
        sync(harpd), sync(harpd)
        assert count_logged(caplog, "eth0: the interface is down") == 1
        assert client.query("instances")["instances"][0]["marks"] == ["NIC is down"]
        with pytest.raises(RefusedByDaemonError, match="ip link set dev eth0 up"):
            client.lease("eth0")
        harpd.kernel.change(up=True)
        sync(harpd), sync(harpd)
        assert count_logged(caplog, "eth0: the interface is up again") == 1
        assert client.query("instances")["instances"][0]["marks"] == []
        harpd.kernel.change(mtu_bytes=1400)
        sync(harpd)
        marks = client.query("instances")["instances"][0]["marks"]
        assert marks == ["MTU changed from 1500 to 1400"]
        assert set(steering(harpd).xsks) == {0}, "the queue stays in the map"


def test_addresses_are_added_and_removed(harpd: Running, caplog: pytest.LogCaptureFixture) -> None:
    assert steering(harpd).addresses == {address(1).raw}
    with harpd.client() as client:
        client.take("eth0")
        harpd.kernel.local_addresses = [address(2), address(9, ifindex=3)]
        sync(harpd), sync(harpd)
        assert steering(harpd).addresses == {address(1).raw, address(2).raw}, "it may come back"
        assert count_logged(caplog, "eth0: address 10.0.0.1 removed; leased to process") == 1
        assert client.query("instances")["instances"][0]["marks"] == ["address removed: 10.0.0.1"]
        harpd.kernel.local_addresses = [address(1), address(2)]
        sync(harpd)
        assert client.query("instances")["instances"][0]["marks"] == []


def test_a_removed_address_is_dropped_with_its_leases(harpd: Running) -> None:
    with harpd.client() as client:
        lease = client.take("eth0")
        harpd.kernel.local_addresses = [address(2)]
        sync(harpd)
        assert client.query("status")["nics"][0]["addresses"] == ["10.0.0.2"]
        client.take("eth0")
        sync(harpd)
        assert steering(harpd).addresses == {address(1).raw, address(2).raw}
        client.release(lease.lease_id)
        sync(harpd)
        assert steering(harpd).addresses == {address(2).raw}


def test_a_removed_address_on_another_interface_is_dropped(harpd: Running) -> None:
    with harpd.client() as client:
        client.take("eth0")
        harpd.kernel.local_addresses = [address(1, ifindex=3)]
        sync(harpd)
        assert steering(harpd).addresses == set()
        harpd.kernel.local_addresses = [address(1), address(1, ifindex=3)]
        sync(harpd)
        assert steering(harpd).addresses == {address(1).raw}


def test_the_number_of_removed_addresses_is_bounded(harpd: Running) -> None:
    with harpd.client() as client:
        client.take("eth0")
        for last in range(2, 4 + LOST_MAX):
            harpd.kernel.local_addresses = [address(last)]
            sync(harpd)
        expected = {address(last).raw for last in range(3, 4 + LOST_MAX)}
        assert steering(harpd).addresses == expected


def test_a_nic_that_returns_with_its_index(harpd: Running) -> None:
    """For example from another network namespace. An older lease no longer owns any queue of it."""
    with harpd.client() as client:
        old = client.take("eth0")
        link = harpd.kernel.present.pop("eth0")
        sync(harpd)
        harpd.kernel.present["eth0"] = link
        harpd.kernel.busy_queues.clear()
        sync(harpd)
        new = client.take("eth0")
        assert (new.queue, new.port_min) == (old.queue, old.port_min)
        client.release(old.lease_id)
        assert set(steering(harpd).xsks) == {new.queue}
        assert steering(harpd).ports
        assert queue_state(harpd, new.queue) is QueueState.LEASED
        client.release(new.lease_id)
    check_nothing_left(harpd)


def test_a_lease_survives_a_renamed_interface(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Existing leases continue; new ones are refused with the reason."""
    with harpd.client() as client:
        first = client.take("eth0")
        before = steering(harpd)
        link = harpd.kernel.present.pop("eth0")
        harpd.kernel.present["wan7"] = replace(link, ifname="wan7")
        sync(harpd), sync(harpd)
        assert count_logged(caplog, "eth0: can't be leased: the interface is called wan7 now") == 1
        with pytest.raises(RefusedByDaemonError, match="is called wan7 now; change harp"):
            client.lease("eth0")
        assert set(before.xsks) == {first.queue}
        assert not before.closed
        assert client.query("instances")["instances"][0]["marks"] == []
        harpd.kernel.present = {"eth0": link}
        sync(harpd)
        second = client.take("eth0")
        assert second.queue != first.queue
        assert steering(harpd) is before
        for lease in (first, second):
            client.release(lease.lease_id)
    check_nothing_left(harpd)


def test_a_nic_renamed_to_another_configured_name(start: Start, settings: Settings) -> None:
    """harpd leases it only under its new name."""
    harpd = start(
        settings=replace(settings, nics=(NicConfig(ifname="eth0"), NicConfig(ifname="wan7")))
    )
    with harpd.client() as client:
        old = client.take("eth0")
        before = steering(harpd)
        harpd.kernel.present = {"wan7": replace(harpd.kernel.present["eth0"], ifname="wan7")}
        harpd.kernel.busy_queues.clear()
        sync(harpd)
        assert client.query("instances")["instances"][0]["marks"] == ["NIC was removed"]
        assert before.closed
        new = client.take("wan7", queue=old.queue)
        assert set(steering(harpd).xsks) == {new.queue}
        for lease in (old, new):
            client.release(lease.lease_id)
    check_nothing_left(harpd)


def test_a_nic_that_returns_with_another_index(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with harpd.client() as client:
        old_lease = client.take("eth0")
        old = steering(harpd)
        link = harpd.kernel.present.pop("eth0")
        sync(harpd), sync(harpd)
        assert count_logged(caplog, "eth0: the interface was removed") == 1
        assert old.closed
        assert harpd.kernel.pinned == {}
        instances = client.query("instances")["instances"]
        assert instances[0]["marks"] == ["NIC was removed"]
        assert refusal(client.lease, "eth0").error == errno.ENODEV
        harpd.kernel.present["eth0"] = replace(link, ifindex=9)
        harpd.kernel.local_addresses = [address(5, ifindex=9)]
        harpd.kernel.busy_queues.clear()
        sync(harpd)
        assert steering(harpd) is not old
        assert steering(harpd).addresses == {address(5).raw}
        new = client.take("eth0")
        assert new.ifindex == 9
        client.release(old_lease.lease_id)
        assert set(steering(harpd).xsks) == {new.queue}, "the old lease's end touches nothing new"


def test_an_interface_with_another_xdp_program(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FakeKernel()
    kernel.attach_error = OSError(errno.EBUSY, "eth0: XDP program 7 is attached already")
    harpd = start(kernel)
    sync(harpd), sync(harpd)
    assert count_logged(caplog, "eth0: can't be leased: XDP program 7 is attached") == 1
    with harpd.client() as client:
        assert client.devices[0].queues == 0
        with pytest.raises(RefusedByDaemonError, match="XDP program 7") as failure:
            client.lease("eth0")
        assert failure.value.error == errno.EBUSY
        kernel.attach_error = None
        sync(harpd)
        lease_once(client, "eth0")


def test_queues_that_no_packet_reaches_are_not_leased(
    harpd: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """A packet on another queue ends this. tests/netns/test_queues.py tests the counters."""
    reason = "eth0: the NIC puts all of HARP's packets on queue 0 ("
    with harpd.client() as client:
        client.take("eth0")
        steering(harpd).arrived[0] = (900, 900, 0xFF)
        for request in ({}, {"queue": 2}):
            error = refusal(client.lease, "eth0", **request)
            assert (error.error, reason in error.why) == (errno.EBUSY, True)
        assert client.query("status")["nics"][0]["queues_unreachable"] == [1, 2, 3]
        assert count_logged(caplog, reason) == 1
        steering(harpd).arrived[2] = (1, 0, 0)
        assert client.take("eth0").queue == 1
        assert client.query("status")["nics"][0]["queues_unreachable"] == []
    assert count_logged(caplog, "harpd leases all queues again") == 1


def test_a_restart_adds_and_removes_queues(start: Start, settings: Settings) -> None:
    def with_queues(*queues: int) -> Settings:
        return replace(settings, nics=(NicConfig(ifname="eth0", lease_queues=queues),))

    first = start(settings=with_queues(0, 1))
    pid, pipe = holder(first.path, lambda client: client.lease("eth0", queue=0))
    first.end(remove=False)
    harpd = start(first.kernel, settings=with_queues(1, 2))
    with harpd.client() as client:
        assert client.query("instances")["instances"][0]["queue"] == 0, "the lease stays"
        for queue in (0, 3):
            with pytest.raises(RefusedByDaemonError, match="it has 1, 2"):
                client.lease("eth0", queue=queue)
        kill(pid, pipe)
        harpd.kernel.busy_queues.clear()
        harpd.until(lambda: queue_state(harpd, 0) is QueueState.FREE, "the release of the queue")
        assert [client.take("eth0").queue for _ in range(2)] == [1, 2]
        with pytest.raises(RefusedByDaemonError, match="all 2 queues are leased"):
            client.lease("eth0")
