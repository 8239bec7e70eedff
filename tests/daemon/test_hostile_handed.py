# SPDX-License-Identifier: Apache-2.0
"""The access to the host that the descriptors of a lease give, even to a job with capabilities.

ioctl() checks the caller's capabilities against the network namespace of the *socket*. A
job that shares the host's user namespace (Docker's default) and has CAP_NET_ADMIN in its own
network namespace therefore has it over the host's network as soon as it holds a socket of the host.
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
from harpd_rig import HostDaemon, Job, Send, links, paused

from harp.daemon.client import RefusedByDaemonError
from harp.lab import Lab

XSK = 0  # the first descriptor of a lease
SIOCSIFFLAGS, SIOCSIFADDR, SIOCGSKNS, SIOCBRADDBR = 0x8914, 0x8916, 0x894C, 0x89A0
AN_XSK = "socket of family 44"
AF_XDP, XDP_SHARED_UMEM = 44, 1


@pytest.fixture
def harpd(lab: Lab) -> Iterator[HostDaemon]:
    """harpd there, which leases to jobs with CAP_NET_ADMIN, too."""
    with HostDaemon(lab.hosts[0]) as daemon:
        yield daemon.start()


def leased(harpd: HostDaemon, work: Callable[[list[int], Any], Any], **how: Any) -> Any:
    """What work(descriptors, lease) finds in a job."""

    def body(send: Send, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fds = client.lease(harpd.host.ifname)
            send(work(fds, lease))
            paused(wait_fd)

    with Job(body, **how) as job:
        return job.receive()


def by_ioctl(fd: int, ifname: str) -> dict[str, int]:
    """Sets an interface down and gives it an address by a descriptor: the errno of each."""
    libc = CDLL(None, use_errno=True)

    def call(request: int, rest: bytes) -> int:
        ifreq = create_string_buffer(struct.pack("=16s", ifname.encode()) + rest, 40)
        return 0 if libc.ioctl(fd, request, ifreq) == 0 else get_errno()

    address = struct.pack("=HH4s", socket.AF_INET, 0, bytes([10, 99, 99, 98]))
    return {
        "SIOCSIFADDR": call(SIOCSIFADDR, address),
        "SIOCSIFFLAGS": call(SIOCSIFFLAGS, struct.pack("=h", 0)),
    }


def kind(fd: int) -> str:
    """What a descriptor is: the family of a socket, or the name of the file."""
    what = str(Path(f"/proc/self/fd/{fd}").readlink()).split(" ")[0]
    if not what.startswith("socket:"):
        return what
    with socket.socket(AF_XDP, socket.SOCK_RAW, 0, fileno=os.dup(fd)) as sock:
        family = sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
        return f"socket of family {family}"


@pytest.mark.parametrize("uid", [None, 65534], ids=["root", "nobody"])
def test_no_descriptor_of_a_lease_changes_the_host(harpd: HostDaemon, uid: int | None) -> None:
    """Each descriptor that a job of another namespace with CAP_NET_ADMIN receives."""

    def work(fds: list[int], lease: Any) -> Any:
        return [(kind(fd), by_ioctl(fd, lease.ifname)) for fd in fds]

    before = harpd.host.run("ip", "-j", "addr", "show", harpd.host.ifname)
    found = leased(harpd, work, uid=uid, net_admin=True)
    assert [what for what, _ in found] == [
        AN_XSK, "/memfd:harp-frames", "/memfd:harp-page", *[AN_XSK] * (len(found) - 3),
    ]  # fmt: skip
    # Nor does harpd's directory lead to link, program or maps.
    assert oct((harpd.run_dir / "bpf").stat().st_mode & 0o077) == "0o0"
    for what, ioctl in found:
        assert 0 not in ioctl.values(), (what, ioctl)
    assert harpd.host.run("ip", "-j", "addr", "show", harpd.host.ifname) == before


def by_xsk(fd: int) -> dict[str, int]:
    """What the kernel does for every socket, whatever its family: errno by request, 0: it did."""
    libc = CDLL(None, use_errno=True)
    name = create_string_buffer(b"harpbr0", 16)
    namespace = libc.ioctl(fd, SIOCGSKNS)
    found = {"SIOCGSKNS": 0 if namespace >= 0 else get_errno()}
    if namespace >= 0:
        found["namespace"] = os.fstat(namespace).st_ino
    return found | {"SIOCBRADDBR": 0 if libc.ioctl(fd, SIOCBRADDBR, name) == 0 else get_errno()}


def test_an_xsk_leads_to_its_namespace_with_net_admin_alone(harpd: HostDaemon) -> None:
    """docs/security.md describes this; harpd refuses such jobs by default."""

    def work(fds: list[int], _lease: Any) -> Any:
        return by_xsk(fds[XSK])

    host = Path(f"/run/netns/{harpd.host.netns}").stat().st_ino
    refusals = {"SIOCGSKNS": errno.EPERM, "SIOCBRADDBR": errno.EPERM}
    assert leased(harpd, work) == refusals
    assert leased(harpd, work, uid=None) == refusals, "root without CAP_NET_ADMIN"
    assert "harpbr0" not in links(harpd.host)
    found = leased(harpd, work, uid=None, net_admin=True)
    assert found == {"SIOCGSKNS": 0, "namespace": host, "SIOCBRADDBR": 0}
    assert "harpbr0" in links(harpd.host)


def lease_or_why(harpd: HostDaemon, before: Callable[[], object] = bool, **how: Any) -> str:
    """A job's refusal; empty: it has a lease. before: what the job calls first."""

    def body(send: Send, wait_fd: int) -> None:
        before()
        with harpd.client() as client:
            try:
                client.lease(harpd.host.ifname)
                send("")
            except RefusedByDaemonError as error:
                send(f"{errno.errorcode[error.error]}: {error.why}")
            paused(wait_fd)

    with Job(body, **how) as job:
        return job.receive()


def own_user_namespace() -> None:
    assert CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER


def test_a_process_with_net_admin_elsewhere_is_refused(lab: Lab) -> None:
    """The bounding set counts, not what the process happens to have: a set-user-ID program gives
    it. Over a user namespace of its own it is worth nothing here. test_watching.py has relatives
    and threads that keep it."""
    with HostDaemon(lab.hosts[0], net_admin=False) as harpd:
        harpd.start()
        for uid in (None, 65534):
            why = lease_or_why(harpd, uid=uid, net_admin=True)
            assert why.startswith("EPERM: ")
            assert "has CAP_NET_ADMIN in CapBnd" in why
            assert "allow_net_admin_containers" in why
            assert lease_or_why(harpd, uid=uid) == ""
            assert lease_or_why(harpd, uid=uid, netns=harpd.host.netns, net_admin=True) == ""
        assert lease_or_why(harpd, own_user_namespace, net_admin=True) == ""
        assert harpd.query("status")["leases"] == 0


def test_the_xsk_reaches_no_other_queue(harpd: HostDaemon) -> None:
    """Bound once and for all; their memory shared with a queue of the job's own namespace at
    most."""

    def work(fds: list[int], lease: Any) -> Any:
        libc = CDLL(None, use_errno=True)

        def bind(fd: int, ifindex: int, flags: int, shared: int) -> int:
            address = struct.pack("=HHIII", 44, flags, ifindex, 1 - lease.queue, shared)
            return 0 if libc.bind(fd, address, len(address)) == 0 else get_errno()

        found = [bind(fds[XSK], lease.ifindex, 0, 0)]
        try:  # a socket of the job's own network namespace
            own = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
        except PermissionError:
            return [*found, errno.EPERM]
        return [*found, bind(own.fileno(), lease.ifindex, XDP_SHARED_UMEM, fds[XSK])]

    assert leased(harpd, work) == [errno.EBUSY, errno.EPERM]
    busy, other = leased(harpd, work, uid=None, net_admin=True)
    assert busy == errno.EBUSY
    assert other in (errno.ENODEV, errno.EINVAL), "no such interface in its namespace"
