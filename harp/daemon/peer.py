# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket: process, user, groups, and a pidfd that knows its
end."""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harp import procfs
from harp.daemon.table import Owner
from harp.waiting import readable
from harp.words import printable

# linux/socket.h of 6.5; Python 3.11 and Debian 12's headers don't have it. The number is the same
# on all architectures that HARP builds for (asm-generic/socket.h).
SO_PEERPIDFD = 77
SO_PEERGROUPS = 59
_UCRED = struct.Struct("3i")
_CAP_NET_ADMIN, _CAP_SYS_PTRACE = 12, 19
_CAPABILITY_SETS = ("CapBnd", "CapPrm", "CapInh")
_THREADS_MAX = 4096  # of one process
_HOST_THREADS_MAX = 1 << 18
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_GROUPS_BYTES = 1024  # the most that Python's getsockopt() takes: 256 groups


class PeerGoneError(Exception):
    """The process ended before it could be looked at."""


@dataclass
class Peer:
    """A process that connected. The pidfd is ours to close."""

    owner: Owner
    gids: frozenset[int]
    pidfd: int
    name: str = ""
    # What connected() could not find out; for the log.
    notes: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Closes the pidfd. Safe twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = -1


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int:
    """When the process began, in clock ticks since boot (field 22 of stat); PeerGoneError."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError as error:
        raise PeerGoneError(f"process {pid}: {error.strerror}") from error
    # The name in parentheses may hold anything, parentheses too.
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19])


def command_name(pid: int, proc: Path = procfs.PROC) -> str:
    """The process's short name, for people; empty when it is gone."""
    try:
        raw = (proc / str(pid) / "comm").read_bytes()
    except OSError:
        return ""
    return printable(raw.decode(errors="replace").strip())


def allowed_cpus(pid: int, proc: Path = procfs.PROC) -> set[int]:
    """The processors it may run on; none when it is gone."""
    from harp.nicprep import ranges  # with pyroute2, which harpctl's clients do without

    return ranges.parse(procfs.status_field(pid, "Cpus_allowed_list", proc))


def capabilities(pid: int) -> int:
    """Its effective capabilities, as bits; none when it is gone."""
    return int(procfs.status_field(pid, "CapEff") or "0", 16)


def network_admin_elsewhere(pid: int, proc: Path = procfs.PROC) -> str:
    """Why a process of another network namespace than ours may have CAP_NET_ADMIN over ours; empty:
    it is of ours, or may not.

    A process can have what is permitted to it, or inheritable, or in its bounding set (by a
    program's file capabilities); each of its threads has sets of its own. A lessee can pass its
    sockets on, so every process counts that shares its network namespace, or a PID namespace of it
    or its parents which is not harpd's. What can't be looked at counts as the capability. Takes as
    long as a look at every thread of the host: for a worker.
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
        f"it is of another network namespace, and {why}: a lease would let it change "
        "this host's network; drop CAP_NET_ADMIN from the container"
    )


def _pid_namespaces(pid: int, proc: Path) -> set[tuple[int, int]]:
    """Those of a process and its parents, up to harpd's."""
    found: set[tuple[int, int]] = set()
    own = _namespace(proc / "self", "pid")
    while pid and (namespace := _namespace(proc / str(pid), "pid")) != own:
        found.add(namespace)
        pid = int(procfs.status_field(pid, "PPid", proc) or "0")
    return found


def _neighbors(
    network: tuple[int, int], pid_namespaces: set[tuple[int, int]], proc: Path
) -> Iterator[int]:
    """Processes of one of these PID namespaces, or with a thread in the network namespace. The
    first thread may have ended, and then has no network namespace. OSError."""
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
    """Is an unreadable process of harpd's PID namespace, and beyond CAP_SYS_PTRACE of harpd's? Then
    it belongs to a user namespace above harpd's, or a security module guards it: no container."""
    levels = procfs.status_field(pid, "NSpid", proc).split()
    return len(levels) == 1 and bool(capabilities(os.getpid()) >> _CAP_SYS_PTRACE & 1)


def _may_administer(pid: int, proc: Path) -> str:
    own_user = _namespace(proc / "self", "user")
    # One that harpd can look into and that is not its own is beneath it.
    if _namespace(proc / str(pid), "user") != own_user and _network_owner(proc) == own_user:
        return ""
    tasks = [task.name for task in (proc / str(pid) / "task").iterdir()]
    if len(tasks) > _THREADS_MAX:
        return f"process {pid} has {len(tasks)} threads, too many to look at"
    for task in tasks:
        sets = [procfs.status_field(int(task), name, proc) for name in _CAPABILITY_SETS]
        if not all(sets) and (proc / str(pid) / "task" / task).exists():
            return f"/proc does not show the capabilities of process {pid}"
        for name, found in zip(_CAPABILITY_SETS, sets, strict=True):
            if int(found or "0", 16) >> _CAP_NET_ADMIN & 1:
                return f"process {pid} has CAP_NET_ADMIN in {name}"
    return ""


def _namespace(process: Path, kind: str) -> tuple[int, int]:
    found = (process / "ns" / kind).stat()
    return found.st_dev, found.st_ino


def _network_owner(proc: Path) -> tuple[int, int]:
    """The user namespace that our network namespace belongs to: capabilities over it are what
    counts."""
    with (proc / "self/ns/net").open("rb") as network:
        try:
            owner = fcntl.ioctl(network, _NS_GET_USERNS)
        except PermissionError:  # one above ours: nobody here has any
            return _namespace(proc / "self", "user")
    try:
        found = os.fstat(owner)
    finally:
        os.close(owner)
    return found.st_dev, found.st_ino


def ended(pidfd: int) -> bool:
    """Is the process of a pidfd dead?"""
    return bool(readable([pidfd], 0))


def pidfd_pid(pidfd: int) -> int:
    """The process that a pidfd stands for, in our pid namespace; -1 dead, 0 not visible here."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    return -1


def _peer_pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        # Only before 6.5: else it means that the process is dead, and its number may be another's.
        if error.errno != errno.ENOPROTOOPT:
            raise PeerGoneError(f"process {pid}: {error.strerror}") from error
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            raise PeerGoneError(f"process {pid}: {error.strerror}") from error


def _groups(connection: socket.socket, gid: int, notes: list[str]) -> frozenset[int]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError as error:
        notes.append(f"its supplementary groups can't be read ({error.strerror})")
        return frozenset({gid})
    return frozenset({gid, *struct.unpack(f"{len(raw) // 4}I", raw)})


def connected_uid(connection: socket.socket) -> int:
    """The user at the other end; nothing else is looked at."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1]) & 0xFFFFFFFF


def connected(connection: socket.socket) -> Peer:
    """The process that connected; PeerGoneError when it has ended already."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    if pid <= 0:
        raise PeerGoneError(f"a process of user {uid} that this pid namespace does not show")
    notes: list[str] = []
    pidfd = _peer_pidfd(connection, pid)
    try:
        owner = Owner(pid, start_ticks(pid), uid & 0xFFFFFFFF)
        # Asked after the start time was read: it is the same process's then.
        if pidfd_pid(pidfd) != pid:
            raise PeerGoneError(f"process {pid} has ended")
        return Peer(owner, _groups(connection, gid, notes), pidfd, command_name(pid), notes)
    except BaseException:
        os.close(pidfd)
        raise


def reopen(owner: Owner) -> int:
    """A pidfd of a process known from before; PeerGoneError when it has ended or is another by
    now."""
    try:
        pidfd = os.pidfd_open(owner.pid)
    except OSError as error:
        raise PeerGoneError(f"process {owner.pid}: {error.strerror}") from error
    try:
        if start_ticks(owner.pid) != owner.start_ticks or pidfd_pid(pidfd) != owner.pid:
            raise PeerGoneError(f"process {owner.pid} is another one by now")
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def lives(owner: Owner) -> bool:
    """Is the process still there, and the same?"""
    try:
        os.close(reopen(owner))
    except PeerGoneError:
        return False
    return True
