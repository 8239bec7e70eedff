# SPDX-License-Identifier: Apache-2.0
"""The access to the host that the descriptors of a lease give, even to a job with capabilities.

ioctl() checks the caller's capabilities in the user namespace that owns the socket's network
namespace. In Docker's default, a job shares the host's user namespace. With CAP_NET_ADMIN, it can
therefore change the host's network through a socket of the host.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ctypes import CDLL, create_string_buffer, get_errno
from pathlib import Path
from typing import Any

import pytest
from harpd_rig import HostDaemon, Job, Send, links, wait_for_go

from harp.daemon.client import RefusedByDaemonError
from harp.lab import Lab

XSK = 0  # the first descriptor of a lease
SIOCSIFFLAGS, SIOCSIFADDR, SIOCGSKNS, SIOCBRADDBR = 0x8914, 0x8916, 0x894C, 0x89A0
AN_XSK = "socket of family 44"
AF_XDP, XDP_SHARED_UMEM = 44, 1


@pytest.fixture
def harpd(lab: Lab) -> Iterator[HostDaemon]:
    """harpd that also leases to jobs with CAP_NET_ADMIN."""
    with HostDaemon(lab.hosts[0]) as daemon:
        yield daemon.start()


def run_in_job(harpd: HostDaemon, work: Callable[[list[int], Any], Any], **options: Any) -> Any:
    """Call work(descriptors, lease) in a job; return its result."""

    def body(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fds = client.lease(harpd.host.ifname)
            send(work(fds, lease))
            wait_for_go(wait_fd)

    with Job(body, **options) as job:
        return job.receive()


def ioctl_errors(fd: int, ifname: str) -> dict[str, int]:
    """Try to set an interface's address and flags with a descriptor; return the errnos."""
    libc = CDLL(None, use_errno=True)

    def call(request: int, rest: bytes) -> int:
        ifreq = create_string_buffer(struct.pack("=16s", ifname.encode()) + rest, 40)
        return 0 if libc.ioctl(fd, request, ifreq) == 0 else get_errno()

    address = struct.pack("=HH4s", socket.AF_INET, 0, bytes([10, 99, 99, 98]))
    return {
        "SIOCSIFADDR": call(SIOCSIFADDR, address),
        "SIOCSIFFLAGS": call(SIOCSIFFLAGS, struct.pack("=h", 0)),
    }


def description(fd: int) -> str:
    """Return the family of a socket, or the name of a file."""
    name = str(Path(f"/proc/self/fd/{fd}").readlink()).split(" ")[0]
    if not name.startswith("socket:"):
        return name
    with socket.socket(AF_XDP, socket.SOCK_RAW, 0, fileno=os.dup(fd)) as sock:
        family = sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
        return f"socket of family {family}"


@pytest.mark.parametrize("uid", [None, 65534], ids=["root", "nobody"])
def test_no_descriptor_of_a_lease_changes_the_host(harpd: HostDaemon, uid: int | None) -> None:
    """The job has CAP_NET_ADMIN in another network namespace."""

    def work(fds: list[int], lease: Any) -> Any:
        return [(description(fd), ioctl_errors(fd, lease.ifname)) for fd in fds]

    before = harpd.host.run("ip", "-j", "addr", "show", harpd.host.ifname)
    results = run_in_job(harpd, work, uid=uid, net_admin=True)
    assert [name for name, _ in results] == [
        AN_XSK, "/memfd:harp-frames", "/memfd:harp-page", *[AN_XSK] * (len(results) - 3),
    ]  # fmt: skip
    # harpd's directory gives no access to the BPF link, program or maps.
    assert oct((harpd.run_dir / "bpf").stat().st_mode & 0o077) == "0o0"
    for name, errors in results:
        assert 0 not in errors.values(), (name, errors)
    assert harpd.host.run("ip", "-j", "addr", "show", harpd.host.ifname) == before


def socket_ioctl_errors(fd: int) -> dict[str, int]:
    """Try the ioctls of sockets of any family; return the errno of each, 0: it succeeded."""
    libc = CDLL(None, use_errno=True)
    name = create_string_buffer(b"harpbr0", 16)
    namespace = libc.ioctl(fd, SIOCGSKNS)
    errors = {"SIOCGSKNS": 0 if namespace >= 0 else get_errno()}
    if namespace >= 0:
        errors["namespace"] = os.fstat(namespace).st_ino
    return errors | {"SIOCBRADDBR": 0 if libc.ioctl(fd, SIOCBRADDBR, name) == 0 else get_errno()}


def test_an_xsk_leads_to_its_namespace_only_with_net_admin(harpd: HostDaemon) -> None:
    """docs/security.md describes this; harpd refuses such jobs by default."""

    def work(fds: list[int], _lease: Any) -> Any:
        return socket_ioctl_errors(fds[XSK])

    host = Path(f"/run/netns/{harpd.host.netns}").stat().st_ino
    refusals = {"SIOCGSKNS": errno.EPERM, "SIOCBRADDBR": errno.EPERM}
    assert run_in_job(harpd, work) == refusals
    assert run_in_job(harpd, work, uid=None) == refusals, "root without CAP_NET_ADMIN"
    assert "harpbr0" not in links(harpd.host)
    errors = run_in_job(harpd, work, uid=None, net_admin=True)
    assert errors == {"SIOCGSKNS": 0, "namespace": host, "SIOCBRADDBR": 0}
    assert "harpbr0" in links(harpd.host)


def lease_refusal(harpd: HostDaemon, before: Callable[[], object] = bool, **options: Any) -> str:
    """Return why harpd refuses a job; "": it leases. before: called by the job first."""

    def body(send: Send, wait_fd: int) -> None:
        before()
        with harpd.client() as client:
            try:
                client.lease(harpd.host.ifname)
                send("")
            except RefusedByDaemonError as error:
                send(f"{errno.errorcode[error.error]}: {error.why}")
            wait_for_go(wait_fd)

    with Job(body, **options) as job:
        return job.receive()


def enter_user_namespace() -> None:
    assert CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER


def test_a_job_with_net_admin_in_another_namespace_is_refused(lab: Lab) -> None:
    """The bounding set counts, because a set-user-ID program can regain the capability from it. In
    its own user namespace, the job gets no access to the host with it, so harpd leases.
    test_watching.py tests related processes and threads."""
    with HostDaemon(lab.hosts[0], net_admin=False) as harpd:
        harpd.start()
        for uid in (None, 65534):
            why = lease_refusal(harpd, uid=uid, net_admin=True)
            assert why.startswith("EPERM: ")
            assert "has CAP_NET_ADMIN in CapBnd" in why
            assert "allow_net_admin_containers" in why
            assert lease_refusal(harpd, uid=uid) == ""
            assert lease_refusal(harpd, uid=uid, netns=harpd.host.netns, net_admin=True) == ""
        assert lease_refusal(harpd, enter_user_namespace, net_admin=True) == ""
        assert harpd.query("status")["leases"] == 0


def test_the_xsk_reaches_no_other_queue(harpd: HostDaemon) -> None:
    """The XSK cannot be bound again. Its memory can be shared only with queues in the job's own
    network namespace."""

    def work(fds: list[int], lease: Any) -> Any:
        libc = CDLL(None, use_errno=True)

        def bind(fd: int, ifindex: int, flags: int, shared: int) -> int:
            address = struct.pack("=HHIII", 44, flags, ifindex, 1 - lease.queue, shared)
            return 0 if libc.bind(fd, address, len(address)) == 0 else get_errno()

        errors = [bind(fds[XSK], lease.ifindex, 0, 0)]
        try:  # a socket of the job's own network namespace
            sock = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
        except PermissionError:
            return [*errors, errno.EPERM]
        return [*errors, bind(sock.fileno(), lease.ifindex, XDP_SHARED_UMEM, fds[XSK])]

    assert run_in_job(harpd, work) == [errno.EBUSY, errno.EPERM]
    busy, shared = run_in_job(harpd, work, uid=None, net_admin=True)
    assert busy == errno.EBUSY
    assert shared in (errno.ENODEV, errno.EINVAL), "no such interface in its namespace"
