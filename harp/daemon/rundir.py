# SPDX-License-Identifier: Apache-2.0
"""harpd's directory (run_dir): its lock, the socket in it, and the BPF file system."""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import socket
import stat
from pathlib import Path

from harp import files
from harp.daemon.settings import Settings, group_number
from harp.errors import Exit, HarpError, needs_root

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_UMOUNT_NOFOLLOW = 8
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_ESCAPE = re.compile(rb"\\([0-7]{3})")  # proc_pid_mountinfo(5)
_libc = ctypes.CDLL(None, use_errno=True)


def _privilege(run_dir: Path) -> HarpError:
    """Return the error for a user who may not write run_dir."""
    return HarpError(f"{run_dir} can't be written by this user; run as root", Exit.PRIVILEGE)


def prepare(run_dir: Path) -> None:
    """Make the directory, in which other users may access only the socket."""
    try:
        run_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        if needs_root(error):
            raise _privilege(run_dir) from error
        raise HarpError(
            f"{run_dir} can't be made: {error.strerror}; set run_dir to a writable directory"
        ) from error
    if not os.access(run_dir, os.W_OK):
        if os.geteuid() != 0:
            raise _privilege(run_dir)
        raise HarpError(f"{run_dir} can't be written (read-only?); set run_dir")
    check(run_dir)
    # A user who can read the directory can lock it, and harpd could not start. The socket needs
    # only permission to search.
    mode = stat.S_IMODE(run_dir.stat().st_mode)
    if mode & _OTHERS_READ:
        run_dir.chmod(mode & ~_OTHERS_READ)


def check(run_dir: Path) -> None:
    """Raise HarpError if other users could put a socket or a state file in it."""
    try:
        files.check_trusted(run_dir)
    except files.UntrustedError as error:
        raise HarpError(f"run_dir is not trusted: {error.strerror}, or set run_dir") from error
    except OSError as error:
        raise HarpError(f"{run_dir}: {error.strerror}; set run_dir") from error


def lock(run_dir: Path) -> int:
    """Lock the directory, and return the descriptor that holds the lock."""
    fd = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise HarpError(
            f"another harpd runs in {run_dir}; end it with `harpctl stop` (or, if its socket was "
            "removed, the process that `lslocks` lists), or set another run_dir",
            Exit.RUNNING,
        ) from error
    return fd


# ---- The socket ----
def is_listening(path: Path) -> bool:
    """Tell whether a program listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            # For example EPROTOTYPE: a socket of another type listens.
            return error.errno != errno.ECONNREFUSED
    return True


def _clear(path: Path) -> str:
    """Remove the socket of a dead harpd; return a line about it. HarpError: it is not one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISSOCK(status.st_mode):
        raise HarpError(f"{path} exists and is not a socket; remove it, or set another `socket`")
    if status.st_uid not in (0, os.geteuid()):
        raise HarpError(
            f"{path} belongs to user {status.st_uid}; remove it, or set another `socket`"
        )
    if is_listening(path):
        raise HarpError(
            f"another program listens on {path}; end it, or set another `socket`", Exit.RUNNING
        )
    path.unlink()
    return f"removed {path}, which a dead harpd had left"


def listen(settings: Settings, backlog: int) -> tuple[socket.socket, str]:
    """Return the listening socket, and a line about a socket that was removed, or ""."""
    path = settings.socket_path
    gid = -1
    if settings.socket_group:
        number = group_number(settings.socket_group)
        if number is None:
            raise HarpError(
                f"socket_group: there is no group {settings.socket_group}; add it with groupadd, "
                "or name another group"
            )
        gid = number
    removed = _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        # No client may connect before the permissions are set.
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if gid >= 0:
            os.chown(path, -1, gid)
        path.chmod(0o660 if gid >= 0 else 0o666)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise HarpError(
            f"listening on {path}: {reason}; make its directory, or set `socket` to a path of at "
            "most 107 bytes in a directory that can be written"
        ) from error
    return sock, removed


# ---- The BPF file system, in which pins outlive harpd (dataplane/xdp/xdp_pin.c) ----
def is_mounted(path: Path, kind: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Tell whether a file system of that type is mounted at the path.

    Users may choose the names of their own mounts (FUSE): the kernel escapes only blank, tab,
    newline, backslash and "#" in them.
    """
    resolved = os.fsencode(path.resolve())
    with mountinfo.open("rb") as lines:
        for line in lines:
            mount, _, rest = line.partition(b" - ")
            target = _ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), mount.split(b" ")[4])
            if target == resolved and rest.split(b" ")[0] == kind.encode():
                return True
    return False


def mount_bpffs(path: Path) -> None:
    """Mount a BPF file system that only root may access, unless one is mounted; OSError."""
    path.mkdir(mode=0o700, exist_ok=True)
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    if is_mounted(path, "bpf"):
        return
    if _libc.mount(b"bpf", os.fsencode(path), b"bpf", flags, b"mode=0700") != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def pinned(path: Path) -> list[Path]:
    """Return the directories of pins in the BPF file system at the path."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def unmount(pins: Path) -> None:
    """Unmount the BPF file system and remove its directory, unless something is pinned in it."""
    with contextlib.suppress(OSError):
        if is_mounted(pins, "bpf"):
            if pinned(pins):  # the kernel's own files (maps.debug) do not count
                return
            _libc.umount2(os.fsencode(pins), _UMOUNT_NOFOLLOW)
        pins.rmdir()
