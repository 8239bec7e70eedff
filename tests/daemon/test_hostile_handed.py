# SPDX-License-Identifier: Apache-2.0
"""What a job can do to the host with what it was handed, even one with capabilities of its own."""

import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ctypes import CDLL, addressof, create_string_buffer, get_errno
from pathlib import Path
from typing import Any

import pytest
from harpd_rig import HostDaemon, Job, beside, enter, links, paused

from harp.lab import Lab, LabOptions
from harp.netns import in_namespace

Tell = Callable[[Any], None]
XSK, MONITOR, QUESTIONS, PROBE_V4, PROBE_V6, XSK_TX = 0, 3, 4, 5, 6, 7
RTM_NEWADDR, RTM_GETLINK = 20, 18
SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_LOCK_FILTER = 26, 27, 44
AF_XDP, SOL_XDP, XDP_SHARED_UMEM, XDP_MMAP_OFFSETS = 44, 283, 1, 1
XDP_PGOFF_TX_RING = 0x80000000
ETHERTYPE = 0x88B5  # of IEEE 802 for experiments
SYS_BPF = 321


@pytest.fixture
def harpd(need_root: None) -> Iterator[HostDaemon]:
    """harpd on a host with two queues."""
    with Lab(LabOptions(queues=2)) as lab:
        daemon = HostDaemon(lab.hosts[0])
        try:
            yield daemon.start()
        finally:
            daemon.close()


def leased(harpd: HostDaemon, work: Callable[[list[int], Any], Any], **how: Any) -> Any:
    """What work(descriptors, lease) finds in a job."""

    def body(tell: Tell, wait_fd: int) -> None:
        with harpd.client() as client:
            lease, fds = client.lease(harpd.host.ifname)
            tell(work(fds, lease))
            paused(wait_fd)

    job = Job(body, **how)
    try:
        return job.hear()
    finally:
        job.close()


def link_message(fd: int, kind: int, ifindex: int, change: int) -> int:
    """RTM_NEWLINK (set down) or RTM_DELLINK through a descriptor; the errno of the answer."""
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, ifindex, 0, change)
    return _answered(fd, struct.pack("=IHHII", 16 + len(body), kind, 1 | 4, 1, 0) + body)


def add_address(fd: int, ifindex: int) -> int:
    """RTM_NEWADDR of 10.99.99.99/32 through a descriptor; the errno of the answer."""
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, ifindex)
    body += struct.pack("=HH4s", 8, 2, bytes([10, 99, 99, 99]))  # IFA_LOCAL
    head = struct.pack("=IHHII", 16 + len(body), RTM_NEWADDR, 1 | 4 | 0x400, 1, 0)
    return _answered(fd, head + body)


def _answered(fd: int, message: bytes) -> int:
    """Sends it; the errno of the answer."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.setblocking(True)
        sock.send(message)
        while True:
            raw = sock.recv(65536)
            if struct.unpack_from("=H", raw, 4)[0] == 2:  # NLMSG_ERROR
                return -int(struct.unpack_from("=i", raw, 16)[0])


def test_the_netlink_sockets_change_nothing_whoever_has_them(harpd: HostDaemon) -> None:
    """A container with CAP_NET_ADMIN over its own namespace: these are sockets of the host's."""

    def work(fds: list[int], lease: Any) -> Any:
        return [add_address(fds[which], lease.ifindex) for which in (MONITOR, QUESTIONS)]

    assert leased(harpd, work, uid=None) == [errno.EPERM] * 2
    assert leased(harpd, work) == [errno.EPERM] * 2
    assert "10.99.99.99" not in harpd.host.run("ip", "addr")


def test_an_ordinary_socket_would(harpd: HostDaemon) -> None:
    """The test above could fail: one that root opened in the host changes it from elsewhere."""
    ifindex = int(harpd.host.run("cat", f"/sys/class/net/{harpd.host.ifname}/ifindex"))

    def body(tell: Tell, _wait_fd: int) -> None:
        enter(harpd.host.netns)
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        assert CDLL(None).unshare(0x40000000) == 0
        tell(add_address(sock.fileno(), ifindex))

    job = Job(body, uid=None)
    try:
        assert job.hear() == 0
    finally:
        job.close()
    assert "10.99.99.99" in harpd.host.run("ip", "addr")


def refused(attempt: Callable[[], Any]) -> int:
    """The errno; 0 when it worked."""
    try:
        attempt()
    except OSError as error:
        return error.errno or -1
    return 0


def probed(sock: socket.socket) -> dict[str, Any]:
    """What its holder may do with a probe socket: errno by attempt."""
    port = sock.getsockname()[1]
    text = create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 65535), 8)  # accepts everything
    accept = struct.pack("@HP", 1, addressof(text))
    level = socket.SOL_SOCKET
    anywhere = "::" if sock.family == socket.AF_INET6 else "0.0.0.0"
    found: dict[str, Any] = {
        "unbind": refused(lambda: sock.setsockopt(level, socket.SO_BINDTODEVICE, b"\0")),
        "transparent": refused(lambda: sock.setsockopt(socket.SOL_IP, 19, 1)),  # IP_TRANSPARENT
        "mark": refused(lambda: sock.setsockopt(level, 36, 1)),
    }
    # This would let go of a port that was not asked for by its number, and does of the device
    # (docs/security.md).
    CDLL(None).connect(sock.fileno(), struct.pack("=H14x", socket.AF_UNSPEC), 16)
    return found | {
        "bind": refused(lambda: sock.bind((anywhere, 7777))),
        "detach": refused(lambda: sock.setsockopt(level, SO_DETACH_FILTER, 0)),
        "unlock": refused(lambda: sock.setsockopt(level, SO_LOCK_FILTER, 0)),
        "other": refused(lambda: sock.setsockopt(level, SO_ATTACH_FILTER, accept)),
        "port": 0 < port == sock.getsockname()[1],
    }


def test_the_probe_sockets_keep_port_and_filter(harpd: HostDaemon) -> None:
    def work(fds: list[int], _lease: Any) -> Any:
        return [probed(socket.socket(fileno=fds[which])) for which in (PROBE_V4, PROBE_V6)]

    limits = dict.fromkeys(("unbind", "transparent", "mark", "detach", "unlock", "other"), 1)
    assert errno.EPERM == 1
    assert leased(harpd, work) == [limits | {"bind": errno.EINVAL, "port": True}] * 2


def test_a_datagram_to_a_probe_socket_is_dropped(harpd: HostDaemon) -> None:
    def body(tell: Tell, wait_fd: int) -> None:
        with harpd.client() as client:
            _, fds = client.lease(harpd.host.ifname)
            sock = socket.socket(fileno=fds[PROBE_V4])
            tell(sock.getsockname()[1])
            paused(wait_fd)
            tell(refused(lambda: sock.recv(1, socket.MSG_DONTWAIT)))

    job = Job(body)
    try:
        port = job.hear()
        send = f"""
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.sendto(b"secret", ("{harpd.host.address}", {port}))
"""
        harpd.host.run("python3", "-c", send)
        job.go()
        assert job.hear() == errno.EAGAIN
    finally:
        job.close()


def test_the_xsks_reach_no_other_queue(harpd: HostDaemon) -> None:
    """Bound once and for all; their memory shared with a queue of the job's own namespace at
    most."""

    def work(fds: list[int], lease: Any) -> Any:
        libc = CDLL(None, use_errno=True)

        def bind(fd: int, ifindex: int, flags: int, shared: int) -> int:
            address = struct.pack("=HHIII", 44, flags, ifindex, 1 - lease.queue, shared)
            return 0 if libc.bind(fd, address, len(address)) == 0 else get_errno()

        found = []
        for fd in (fds[XSK], fds[XSK_TX]):
            for ifindex in (lease.ifindex, lease.side_ifindex):
                found.append(bind(fd, ifindex, 0, 0))
                try:  # one of its own, where the job is: not the host
                    own = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
                except PermissionError:
                    found.append(errno.EPERM)
                    continue
                found.append(bind(own.fileno(), ifindex, XDP_SHARED_UMEM, fd))
        return found

    assert leased(harpd, work) == [errno.EBUSY, errno.EPERM] * 4
    found = leased(harpd, work, uid=None)
    assert set(found[::2]) == {errno.EBUSY}
    assert set(found[1::2]) <= {errno.ENODEV, errno.EINVAL}, "no such interface in its namespace"


def test_nothing_leads_to_the_device_beside(harpd: HostDaemon) -> None:
    """No descriptor is of the other end's namespace, and what the job's sockets can be asked for by
    who has all capabilities over a namespace of its own does not lead there."""
    siocgskns = 0x894C

    def work(fds: list[int], lease: Any) -> Any:
        libc = CDLL(None, use_errno=True)
        found = {}
        for number, fd in enumerate(fds):
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("net:"):
                found[f"{number} is a namespace"] = 0
            # A namespace by its socket: SIOCGSKNS wants CAP_NET_ADMIN over the host's.
            at = libc.ioctl(fd, siocgskns)
            if at >= 0:
                found[f"{number} gives a namespace"] = at
        for which in (MONITOR, QUESTIONS):
            found[f"delete by {which}"] = link_message(fds[which], 17, lease.side_ifindex, 0)
            found[f"set down by {which}"] = link_message(fds[which], 16, lease.side_ifindex, 1)
        return found

    before = links(harpd.host)[beside(harpd.host)]
    refusals = {
        f"{what} by {which}": errno.EPERM
        for what in ("delete", "set down")
        for which in (MONITOR, QUESTIONS)
    }
    assert leased(harpd, work) == refusals
    after = links(harpd.host)[beside(harpd.host)]
    assert (after["ifindex"], after["flags"]) == (before["ifindex"], before["flags"])


def send_frame(fd: int, lease: Any) -> int:
    """Puts one broadcast frame into the socket's ring, of the first one of its memory, and has the
    kernel send; the errno."""
    libc = CDLL(None, use_errno=True)
    with socket.socket(AF_XDP, socket.SOCK_RAW, 0, fileno=os.dup(fd)) as sock:
        offsets = sock.getsockopt(SOL_XDP, XDP_MMAP_OFFSETS, 128)
    producer, _, entries, _ = struct.unpack_from("=4Q", offsets, 32)  # after the receive ring's
    with mmap.mmap(fd, entries + lease.ring_size * 16, offset=XDP_PGOFF_TX_RING) as ring:
        struct.pack_into("=QII", ring, entries, 0, 60, 0)
        struct.pack_into("=I", ring, producer, 1)
        rc = libc.sendto(fd, None, 0, socket.MSG_DONTWAIT, None, 0)
    return 0 if rc >= 0 else get_errno()


def test_what_the_receiving_socket_sends_gets_nowhere(harpd: HostDaemon) -> None:
    """Its device has no carrier. The other one does send: any frame."""

    def work(fds: list[int], lease: Any) -> Any:
        found = []
        for which, marker in ((XSK, b"r"), (XSK_TX, b"t")):
            with mmap.mmap(fds[1], 2 << 20) as frames:
                frames[:60] = b"\xff" * 6 + lease.mac + ETHERTYPE.to_bytes(2, "big") + marker * 46
            found.append(send_frame(fds[which], lease))
        return found

    listening: list[socket.socket] = []

    def listen(_ipr: Any) -> None:
        kind = socket.htons(ETHERTYPE)
        listening.append(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, kind))

    in_namespace(harpd.host.netns.removesuffix("h0") + "h1", listen)
    with listening[0] as heard:
        assert leased(harpd, work) == [errno.EBUSY, 0], "dropped, sent"
        heard.settimeout(10)
        assert heard.recv(64) == b"t" * 46
        heard.settimeout(0.01)
        with pytest.raises(OSError, match="timed out"):
            heard.recv(64)
    statistics = Path("/sys/class/net") / beside(harpd.host) / "statistics/tx_packets"
    assert harpd.host.run("cat", str(statistics)).strip() == "0"


def test_bpf_finds_nothing_behind_any_descriptor(harpd: HostDaemon) -> None:
    """Every command that takes a descriptor, on every descriptor of root's, each by each."""

    def work(_fds: list[int], _lease: Any) -> Any:
        libc = CDLL(None, use_errno=True)
        done = []
        for path in Path("/proc/self/fd").iterdir():
            if not path.is_symlink():
                continue
            fd = int(path.name)
            info = Path(f"/proc/self/fdinfo/{fd}").read_text()
            words = ("map_type", "prog_type", "link_type", "btf_id", "prog_id", "link_id")
            done += [f"{fd} {word}" for word in words if f"{word}:" in info]
            # map lookup, update, delete, next key; info by fd; freeze; link update, detach
            for command in (1, 2, 3, 4, 15, 22, 29, 34):
                attr = create_string_buffer(struct.pack("=IIQQQ", fd, 0, 0, 0, 0), 128)
                if libc.syscall(SYS_BPF, command, attr, 128) >= 0:
                    done.append(f"{fd} command {command}")
        return done

    assert leased(harpd, work, uid=None) == []
