# SPDX-License-Identifier: Apache-2.0
"""The process at the other end of a Unix socket: user, groups, capabilities and pidfd."""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harp import procfs
from harp.daemon.table import Owner
from harp.waiting import readable
from harp.words import printable

# linux/socket.h of 6.5; Python 3.11 and Debian 12's headers lack it. The number is the same on all
# architectures that HARP builds for (asm-generic/socket.h).
SO_PEERPIDFD = 77
SO_PEERGROUPS = 59
_UCRED = struct.Struct("3i")
_CAP_NET_ADMIN, _CAP_SYS_PTRACE = 12, 19
_CAPABILITY_SETS = ("CapBnd", "CapPrm", "CapInh")
_THREADS_MAX = 4096  # of one process
_HOST_THREADS_MAX = 1 << 18
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_GROUPS_BYTES = 1024  # the most that Python's getsockopt() returns: 256 groups


class PeerGoneError(Exception):
    """The process ended before it could be examined."""


@dataclass
class Peer:
    """A process that connected, with a pidfd that close() closes."""

    owner: Owner
    gids: frozenset[int]
    pidfd: int
    name: str = ""

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = -1


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the start time of the process, in clock ticks since boot; PeerGoneError."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError as error:
        raise PeerGoneError(f"process {pid}: {error.strerror}") from error
    # The name in parentheses may contain parentheses.
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19])


def command_name(pid: int) -> str:
    """Return the process's short name, for messages; empty after its end."""
    try:
        raw = (procfs.PROC / str(pid) / "comm").read_bytes()
    except OSError:
        return ""
    return printable(raw.decode(errors="replace").strip())


def capabilities(pid: int) -> int:
    """Return a process's effective capabilities as a bit mask; 0 after its end."""
    return int(procfs.status_field(pid, "CapEff") or "0", 16)


def network_admin_elsewhere(pid: int, proc: Path = procfs.PROC) -> str:
    """Return why a process of another network namespace may have CAP_NET_ADMIN over ours; empty: it
    shares ours, or can't have it.

    Each thread has its permitted and inheritable capabilities, and may gain those of its bounding
    set by a program's file capabilities. A lessee can pass its sockets to other processes. So this
    checks all processes that share its network namespace, or that are in a PID namespace of it or
    its ancestors below harpd's. A process that can't be read counts as having the capability. This
    may read every thread of the host, so it runs in a worker.
    """
    try:
        network = _namespace(proc / str(pid), "net")
        if network == _namespace(proc / "self", "net"):
            return ""
        why = _may_administer(pid, proc)
        if not why:
            for other in _neighbors(network, _pid_namespaces(pid, proc), proc):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    why = _may_administer(other, proc)
                if why:
                    break
    except OSError as error:
        return (
            f"the namespaces of its processes can't be read ({error.strerror}), so one may have "
            "CAP_NET_ADMIN over this one from another; give harpd CAP_SYS_PTRACE"
        )
    if not why:
        return ""
    return (
        f"it is in another network namespace, and {why}: a lease would let it change "
        "this host's network; drop CAP_NET_ADMIN from the container"
    )


def _pid_namespaces(pid: int, proc: Path) -> set[tuple[int, int]]:
    """Return the PID namespaces of a process and its ancestors, up to harpd's."""
    namespaces: set[tuple[int, int]] = set()
    own = _namespace(proc / "self", "pid")
    while pid and (namespace := _namespace(proc / str(pid), "pid")) != own:
        namespaces.add(namespace)
        pid = int(procfs.status_field(pid, "PPid", proc) or "0")
    return namespaces


def _neighbors(
    network: tuple[int, int], pid_namespaces: set[tuple[int, int]], proc: Path
) -> Iterator[int]:
    """Yield processes of one of these PID namespaces, or with a thread in the network namespace. An
    ended first thread has no network namespace, so each thread is read. OSError.
    """
    threads = 0
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if _namespace(process, "pid") in pid_namespaces:
                yield int(process.name)
                continue
            for task in (process / "task").iterdir():
                threads += 1
                if threads > _HOST_THREADS_MAX:
                    raise OSError(errno.E2BIG, f"the host has more than {threads - 1} threads")
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if _namespace(task, "net") == network:
                        yield int(process.name)
                        break
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except PermissionError:
            if not _is_above(int(process.name), proc):
                raise


def _is_above(pid: int, proc: Path) -> bool:
    """Tell whether an unreadable process is in harpd's PID namespace, while harpd has
    CAP_SYS_PTRACE. Then it is in a user namespace above harpd's, or a security module protects it.
    It is not a container's process.
    """
    levels = procfs.status_field(pid, "NSpid", proc).split()
    return len(levels) == 1 and bool(capabilities(os.getpid()) >> _CAP_SYS_PTRACE & 1)


def _may_administer(pid: int, proc: Path) -> str:
    own_user = _namespace(proc / "self", "user")
    # A readable process of another user namespace is below harpd's.
    if _namespace(proc / str(pid), "user") != own_user and _network_owner(proc) == own_user:
        return ""
    tasks = [task.name for task in (proc / str(pid) / "task").iterdir()]
    if len(tasks) > _THREADS_MAX:
        return f"process {pid} has {len(tasks)} threads, too many to examine"
    for task in tasks:
        sets = [procfs.status_field(int(task), name, proc) for name in _CAPABILITY_SETS]
        if not all(sets) and (proc / str(pid) / "task" / task).exists():
            return f"/proc does not show the capabilities of process {pid}"
        for name, bits in zip(_CAPABILITY_SETS, sets, strict=True):
            if int(bits or "0", 16) >> _CAP_NET_ADMIN & 1:
                return f"process {pid} has CAP_NET_ADMIN in {name}"
    return ""


def _namespace(process: Path, kind: str) -> tuple[int, int]:
    status = (process / "ns" / kind).stat()
    return status.st_dev, status.st_ino


def _network_owner(proc: Path) -> tuple[int, int]:
    """Return the user namespace that owns our network namespace."""
    with (proc / "self/ns/net").open("rb") as network:
        try:
            owner = fcntl.ioctl(network, _NS_GET_USERNS)
        except PermissionError:  # it is above ours: no process here has capabilities in it
            return _namespace(proc / "self", "user")
    try:
        status = os.fstat(owner)
    finally:
        os.close(owner)
    return status.st_dev, status.st_ino


def has_ended(pidfd: int) -> bool:
    """Tell whether the process of a pidfd has ended."""
    return bool(readable([pidfd], 0))


def pidfd_pid(pidfd: int) -> int:
    """Return the pid of a pidfd; -1: the process has ended; 0: our PID namespace lacks it."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    return -1


def _peer_pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        # Linux before 6.5. With other errors the process has ended, and its pid may be reused.
        if error.errno != errno.ENOPROTOOPT:
            raise PeerGoneError(f"process {pid}: {error.strerror}") from error
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            raise PeerGoneError(f"process {pid}: {error.strerror}") from error


def _groups(connection: socket.socket, gid: int) -> frozenset[int]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # it has more groups
        return frozenset({gid})
    return frozenset({gid, *struct.unpack(f"{len(raw) // 4}I", raw)})


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid & 0xFFFFFFFF, gid


def connected_uid(connection: socket.socket) -> int:
    """Return the user at the other end."""
    return _credentials(connection)[1]


def connected_pid(connection: socket.socket) -> int:
    """Return the process at the other end; 0 if this PID namespace does not show it."""
    return _credentials(connection)[0]


def connected(connection: socket.socket) -> Peer:
    """Return the process that connected; PeerGoneError if it has ended."""
    pid, uid, gid = _credentials(connection)
    if pid <= 0:
        raise PeerGoneError(f"a process of user {uid} that this PID namespace does not show")
    pidfd = _peer_pidfd(connection, pid)
    try:
        owner = Owner(pid, start_ticks(pid), uid)
        # Read the pid after the start time, so that both belong to the same process.
        if pidfd_pid(pidfd) != pid:
            raise PeerGoneError(f"process {pid} has ended")
        return Peer(owner, _groups(connection, gid), pidfd, command_name(pid))
    except BaseException:
        os.close(pidfd)
        raise


def reopen(owner: Owner) -> int:
    """Open a pidfd of a known process; PeerGoneError if it has ended, or its pid was reused."""
    try:
        pidfd = os.pidfd_open(owner.pid)
    except OSError as error:
        raise PeerGoneError(f"process {owner.pid}: {error.strerror}") from error
    try:
        if start_ticks(owner.pid) != owner.start_ticks or pidfd_pid(pidfd) != owner.pid:
            raise PeerGoneError(f"process {owner.pid} has ended; another process has its pid")
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def is_alive(owner: Owner) -> bool:
    """Tell whether the process still exists, and its pid was not reused."""
    try:
        os.close(reopen(owner))
    except PeerGoneError:
        return False
    return True
