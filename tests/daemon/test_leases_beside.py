# SPDX-License-Identifier: Apache-2.0
"""Leases of a NIC whose program is on a device beside it, as far as harpd decides: without root."""

import errno
import os
import threading
from collections.abc import Callable

import pytest
from daemon_rig import Running
from fake_kernel import FakeKernel, address
from test_leases import _FD_XSK, close, inode, nothing_is_left, queue_state, steering

from harp import _host
from harp.daemon.client import RefusedByDaemonError
from harp.daemon.table import QueueState


def test_a_lease_of_a_device_beside(start: Callable[..., Running]) -> None:
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    with harpd.client() as client:
        assert client.devices[0].flags & _host.DEVICE_BESIDE
        lease, fds = client.lease("eth0")
        assert (len(fds), lease.side_ifindex) == (_host.FDS_MAX, 7)
        assert steering(harpd).xsks == {0: inode(fds[_FD_XSK])}, "the one that receives"
        with pytest.raises(RefusedByDaemonError) as refused:
            client.lease("eth0", accepts=0)
        assert refused.value.error == errno.EPROTONOSUPPORT
        client.release(lease.lease_id)
        close(fds)
    nothing_is_left(harpd)


def test_a_device_beside_that_goes(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """Leases of before are marked, their queues theirs until they end; new ones get the new one."""
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    with harpd.client() as client:
        before, fds = client.lease("eth0")
        steering(harpd).side, kernel.side = -1, 8
        harpd.call(harpd.daemon.nics.sync)
        assert len(kernel.steerings) == 2
        assert kernel.steerings[0].closed
        assert steering(harpd).own == {address(1).raw}
        (found,) = client.query("instances")["instances"]
        assert found["marks"] == ["device beside the NIC was lost"]
        assert f"receive nothing any more: process {os.getpid()}" in caplog.text
        after, more = client.lease("eth0")
        assert (after.side_ifindex, after.queue) == (8, 1)
        client.release(before.lease_id)
        client.release(after.lease_id)
        close(fds + more)
    nothing_is_left(harpd)


def test_a_device_beside_that_goes_while_a_lease_is_made(start: Callable[..., Running]) -> None:
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    kernel.may_make.clear()

    def gone() -> None:
        assert kernel.making.wait(20)
        steering(harpd).side, kernel.side = -1, 8
        harpd.call(harpd.daemon.nics.sync)
        kernel.may_make.set()

    thread = threading.Thread(target=gone)
    thread.start()
    with harpd.client() as client, pytest.raises(RefusedByDaemonError) as refused:
        client.lease("eth0")
    thread.join()
    assert "the device beside it is another one by now" in refused.value.why
    nothing_is_left(harpd)


def test_a_lease_for_which_descriptors_are_short_takes_no_queue(
    start: Callable[..., Running],
) -> None:
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    with harpd.client() as client:
        steering(harpd).failing = "receive"
        with pytest.raises(RefusedByDaemonError) as refused:
            client.lease("eth0", queue=0)
        assert refused.value.error == errno.E2BIG
        steering(harpd).failing = ""
        lease, fds = client.lease("eth0", queue=0)
        client.release(lease.lease_id)
        close(fds)
    nothing_is_left(harpd)


def test_a_queue_comes_back_though_descriptors_were_short(start: Callable[..., Running]) -> None:
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    with harpd.client() as client:
        lease, fds = client.lease("eth0")
        steering(harpd).failing = "receive"
        client.release(lease.lease_id)
        close(fds)
        harpd.until(lambda: steering(harpd).failed > 0, "a look in vain")
        steering(harpd).failing = ""
        kernel.held.clear()
        harpd.until(lambda: queue_state(harpd, 0) is QueueState.FREE, "the queue")
    nothing_is_left(harpd)


def test_what_was_mended_is_told_once(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FakeKernel()
    kernel.side = 7
    harpd = start(kernel)
    steering(harpd).words = "eth0: harp_aside was detached; it is attached again"
    harpd.call(harpd.daemon.nics.sync)
    harpd.call(harpd.daemon.nics.sync)
    assert caplog.text.count("it is attached again") == 1
    assert len(kernel.steerings) == 1


def test_on_the_nic_it_goes_on_under_leases_and_is_put_beside_without(
    start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    kernel = first.kernel
    with first.client() as client:
        assert client.devices[0].flags & _host.DEVICE_COPIED
        lease, fds = client.lease("eth0")
        first.end(remove=False)
    kernel.side = 7
    second = start(kernel)
    assert len(kernel.steerings) == 1
    assert f"leases of an earlier harpd depend on it (process {os.getpid()})" in caplog.text
    with second.client() as client:
        client.release(lease.lease_id)
    close(fds)
    second.end(remove=False)
    third = start(kernel)
    assert len(kernel.steerings) == 2
    with third.client() as client:
        assert client.devices[0].flags & _host.DEVICE_BESIDE
