# SPDX-License-Identifier: Apache-2.0
"""Reads and writes files at paths that users name. Opening a FIFO or a device never blocks."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harp.errors import Exit, HarpError, needs_root

# open() must not block on a FIFO, a tape or a modem, nor acquire a controlling terminal.
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
NOT_REGULAR = "is not a regular file"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LINKS_MAX = 40  # the kernel's MAXSYMLINKS
_UNMAPPED, _ALL_USERS = 65534, "4294967295"


class NotRegularError(OSError):
    """The path exists and is not a regular file: a FIFO, a socket, a device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, NOT_REGULAR, str(path))


class UntrustedError(OSError):
    """Users other than root and this one can change the path; the message has the remedy."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


def _is_partial_namespace() -> bool:
    """Tell whether this user namespace lacks users; the initial one maps all in one line
    (user_namespaces(7)).
    """
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    return bool(lines) and lines[0].split()[2] != _ALL_USERS


def trusted_user(uid: int) -> bool:
    """Tell whether uid is root or this user, as trust_user() of dataplane/base/trust.c. In a user
    namespace, users that it does not map, such as the host's root, are trusted, too.
    """
    return uid in (0, os.geteuid()) or (uid == _UNMAPPED and _is_partial_namespace())


def _check_entry(entry: Path, info: os.stat_result, last: bool) -> None:
    if not trusted_user(info.st_uid):
        why = f"belongs to user {info.st_uid}, who can change it: chown root {entry}"
        raise UntrustedError(entry, f"{entry} {why}")
    # In a sticky directory others may not replace files that are not theirs; a link has no mode.
    sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX and not last
    if not stat.S_ISLNK(info.st_mode) and info.st_mode & _OTHERS_WRITE and not sticky:
        mode = stat.S_IMODE(info.st_mode)
        why = f"can be changed by other users (mode {mode:03o}): chmod go-w {entry}"
        raise UntrustedError(entry, f"{entry} {why}")


def check_trusted(path: Path) -> os.stat_result:
    """Raise UntrustedError unless only root and this user can change or replace the path; return
    its status.

    Every directory and symbolic link on the path counts: a user who can write to a directory can
    replace its entries. OSError if nothing exists there.
    """
    at, links = Path("/"), 0
    ahead = list(reversed(path.absolute().parts[1:]))
    info = at.lstat()
    _check_entry(at, info, not ahead)
    while ahead:
        name = ahead.pop()
        if name == "..":
            at = at.parent
            info = at.lstat()
            continue
        entry = at / name
        info = entry.lstat()
        _check_entry(entry, info, not ahead)
        if not stat.S_ISLNK(info.st_mode):
            at = entry
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        if target.is_absolute():
            at = Path("/")
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return info


def read(path: Path, bytes_max: int) -> bytes:
    """Read a regular file that only root and this user can change, up to one byte more than
    bytes_max. OSError, UntrustedError.
    """
    fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(info.st_mode):
            raise NotRegularError(path)
        if not os.path.samestat(info, check_trusted(path)):
            raise UntrustedError(path, f"{path} was replaced while it was read: read it again")
        return file.read(bytes_max + 1)


def open_output(path: Path, flags: int) -> int:
    """Open for writing, and create if needed, a file or a device that never blocks (/dev/null).
    OSError for anything that may block the writer.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags | _OPEN_FLAGS, 0o666)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):
        os.close(fd)
        raise NotRegularError(path)
    os.set_blocking(fd, True)
    return fd


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "; run as root" if needs_root(error) else ""
        raise HarpError(
            f"{path} can't be written: {error.strerror or error}{remedy}",
            Exit.PRIVILEGE if isinstance(error, PermissionError) else Exit.FAILURE,
        ) from None


def check_writable(path: Path) -> None:
    """Raise HarpError, before minutes of work, if a file cannot be created there."""
    with writing(path):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass


def write_whole(
    path: Path,
    data: str | bytes,
    *,
    mode: int = 0o644,
    replace: bool = True,
    durable: bool = True,
) -> None:
    """Write a file completely or not at all, and create its directory if needed. A device such as
    /dev/null is written to. durable: the contents survive a crash of the host. FileExistsError: the
    path exists, even as a dangling link, and must not be replaced. NotRegularError.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    if replace and path.exists() and not path.is_file():
        with os.fdopen(open_output(path, 0), "wb") as device:
            device.write(content)
        return
    fd, name = tempfile.mkstemp(prefix=_temporary_prefix(path), dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(fd, mode)  # independent of the umask
            if durable:
                os.fsync(fd)
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}."


def remove_temporary(path: Path) -> None:
    """Remove what a killed write_whole() of this path left. The caller is the only writer."""
    with contextlib.suppress(OSError):
        for entry in path.parent.iterdir():
            if entry.name.startswith(_temporary_prefix(path)):
                entry.unlink()
