# SPDX-License-Identifier: Apache-2.0
"""Queues that the kernel has not released yet, and queues that another program's socket owns."""

import errno
import socket
from typing import Any

import pytest
from daemon_rig import Start, holder, kill
from fake_kernel import FakeKernel
from lease_client import LeaseClient

from harp import _host
from harp._host import Kind
from harp.daemon import leasing
from harp.daemon.kernel import LeaseFds
from harp.daemon.loop import close_all
from harp.daemon.messages import Request, pack, unpack


class SlowKernel(FakeKernel):
    """Never reports a queue as free, and counts attempts to lease a busy one."""

    def __init__(self, queues: int) -> None:
        super().__init__(queues)
        self.busy_count = 0

    def make(self, request: Request, flows: int) -> LeaseFds:
        try:
            return super().make(request, flows)
        except OSError as error:
            self.busy_count += error.errno == errno.EBUSY
            raise

    def is_queue_free(self, ifname: str, queue: int) -> bool:
        return False  # only an attempt to lease finds out


def lease_and_return(client: LeaseClient, count: int) -> None:
    leases = [client.lease("eth0") for _ in range(count)]
    for lease, fds in leases:
        close_all(fds)
        client.release(lease.lease_id)


def send_request(client: LeaseClient, **request: Any) -> None:
    """Request a lease; the answer is read later."""
    client._sock.send(pack(Kind.LEASE, 9, Request("eth0", **request)))


def receive_lease(client: LeaseClient) -> Any:
    raw, fds, _, _ = socket.recv_fds(client._sock, 65536, _host.FDS)
    close_all(fds)
    return unpack(raw).body


def receive_refusal(client: LeaseClient) -> tuple[int, str]:
    body = unpack(client._sock.recv(65536)).body
    return body.error, body.why


def test_a_lease_after_a_release_waits_for_the_kernel(start: Start) -> None:
    kernel = SlowKernel(queues=1)
    harpd = start(kernel)
    with harpd.client() as client, harpd.client() as other:
        lease_and_return(client, 1)
        send_request(client)
        harpd.until(lambda: kernel.busy_count >= 3, "retries")
        assert other.query("status")["connections"] == 2, "harpd serves other clients"
        kernel.busy_queues.clear()
        assert receive_lease(client).queue == 0


def test_a_recovering_queue_is_leased_once_the_kernel_frees_it(start: Start) -> None:
    """The lease does not wait for the first queue, which a forked child holds."""
    kernel = SlowKernel(queues=3)
    harpd = start(kernel)
    with harpd.client() as client:
        lease_and_return(client, 3)
        send_request(client)
        harpd.until(lambda: kernel.busy_count >= 3, "retries")
        kernel.busy_queues.discard(("eth0", 1))
        assert receive_lease(client).queue == 1


def test_a_queue_of_another_program_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease does not wait for a queue that harpd never leased, and gets another one."""
    monkeypatch.setitem(leasing.WAITS_S, errno.EBUSY, 0.0)
    monkeypatch.setattr(leasing, "RECOVER_LOG_S", 0.0)
    kernel = SlowKernel(queues=2)
    kernel.busy_queues = {("eth0", 0)}
    harpd = start(kernel)
    with harpd.client() as client:
        send_request(client, queue=0)
        assert receive_refusal(client) == (errno.EBUSY, "eth0 queue 0: another socket owns it")
        assert kernel.busy_count == 1
        send_request(client)
        assert receive_lease(client).queue == 1
    message = "eth0 queue 0: an AF_XDP socket without a lease of harpd owns the queue"
    harpd.until(lambda: message in caplog.text, "the message")
    assert "that it forked" not in caplog.text


def test_a_client_that_dies_waiting_leaves_the_queue_to_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(leasing.WAITS_S, errno.EBUSY, 1000.0)
    kernel = SlowKernel(queues=1)
    harpd = start(kernel)
    with harpd.client() as client:
        lease_and_return(client, 1)
        waiting = holder(harpd.path, send_request)
        harpd.until(lambda: kernel.busy_count >= 1, "an attempt")
        kill(*waiting)
        harpd.until(lambda: harpd.daemon.leasing.refused["ESRCH"] == 1, "the end of its request")
        kernel.busy_queues.clear()
        send_request(client)
        assert receive_lease(client).queue == 0


def test_a_client_that_waits_for_a_queue_is_refused_when_harpd_ends(start: Start) -> None:
    kernel = SlowKernel(queues=1)
    harpd = start(kernel)
    with harpd.client() as client:
        lease_and_return(client, 1)
        send_request(client)
        harpd.until(lambda: kernel.busy_count >= 1, "an attempt")
        harpd.end(remove=True)
        assert receive_refusal(client) == (errno.ESHUTDOWN, "harpd is being stopped")
