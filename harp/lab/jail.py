# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a container would: user nobody, no capability, namespaces of its own.

It sees /usr and the named files of the machine, read-only, and harpd's socket, but no NIC. It has
namespaces of its own for mounts, processes, IPC, host name and, unless it shares a host's, network.
`python -m harp.lab.jail SPEC COMMAND...` is the inner half, which runs as root in the new
namespaces and drops all privileges.
"""

import ctypes
import json
import os
import resource
import socket
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harp import _paths
from harp.lab import Host, require_programs

NOBODY = 65534
MEMLOCK_BYTES = 65536
SOCKET_INSIDE = "/run/harp/harpd.sock"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt")
_DEVICES = ("null", "zero", "urandom", "random")
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITIES = 64
_libc = ctypes.CDLL(None, use_errno=True)


def library_dirs() -> list[str]:
    """Return the files of HARP and this Python that any user may read, for Jail.readable."""
    package = Path(__file__).resolve().parent.parent
    found = [package, Path(sys.prefix), Path(sys.base_prefix)]
    found += [Path(sysconfig.get_path("purelib")), *map(Path, sys.path)]
    build = _paths.build_dir()
    if build is not None:
        # meson.build identifies the tree: see _paths.build_dir().
        found += [build, package.parent / "meson.build"]
    theirs = {Path("/"), Path("/tmp"), Path.cwd()}  # a script's directory, not a library
    existing = [path for path in found if path.is_absolute() and path.exists()]
    # A parent comes before its contents, and makes them unnecessary.
    kept: list[Path] = []
    for path in sorted(set(existing)):
        if path not in theirs and not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return list(map(str, kept))


@dataclass(frozen=True)
class Jail:
    """The contents of a jail."""

    socket: str | None = None  # harpd's, mounted as /run/harp/harpd.sock
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hostname: str = "container"
    own_network: bool = False  # a network namespace of its own, with only lo

    def command(self, host: Host | None, args: Sequence[str | Path]) -> list[str]:
        """Return the command line, for root: in a host's network, or (None) in the caller's."""
        require_programs("nsenter", "unshare")
        enter = ["nsenter", f"--net=/run/netns/{host.netns}", "--"] if host else []
        spaces = ["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
        if self.own_network:
            spaces.append("--net")
        inner = [sys.executable, "-m", "harp.lab.jail", json.dumps(asdict(self))]
        return [*enter, "unshare", *spaces, "--", *inner, *map(str, args)]


# --------------------------------------------------------------------------------------------------
# The inner half.
#
def _mount(source: str, target: str | Path, kind: str | None, flags: int, data: str = "") -> None:
    arguments = (source, str(target), kind, data or None)
    encoded = [None if each is None else each.encode() for each in arguments]
    if _libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _bind(root: Path, path: str, inside: str | None = None, *, writable: bool = False) -> None:
    """Mount the same file or directory below root, read-only unless it must be writable."""
    target = root / (inside or path).lstrip("/")
    if Path(path).is_dir():
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
    else:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.touch()
    _mount(path, target, None, _MS_BIND | _MS_REC)
    if not writable:
        _mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID)


def _build_root(jail: Jail, root: Path) -> None:
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("jail", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    for path in _SYSTEM:
        if Path(path).is_symlink():
            (root / path.lstrip("/")).symlink_to(Path(path).readlink())
        elif Path(path).is_dir():
            _bind(root, path)
    (root / "proc").mkdir()
    _mount("proc", root / "proc", "proc", _MS_NOSUID | _MS_NODEV)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True)
        _mount("tmpfs", root / name, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    for name in _DEVICES:
        _bind(root, f"/dev/{name}", writable=True)
    for path in jail.readable:
        if not any(Path(path).is_relative_to(each) for each in _SYSTEM):
            _bind(root, path)
    for path in jail.writable:
        _bind(root, path, writable=True)
    if jail.socket is not None:
        _bind(root, jail.socket, SOCKET_INSIDE, writable=True)


def _give_up_everything() -> None:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK_BYTES, MEMLOCK_BYTES))
    for capability in range(_CAPABILITIES):
        # EINVAL beyond the kernel's last capability
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")


def _loopback_up() -> None:
    from pyroute2 import IPRoute

    with IPRoute() as ipr:
        ipr.link("set", index=ipr.link_lookup(ifname="lo")[0], state="up")


def main() -> None:
    """Entry point of the inner half."""
    spec = json.loads(sys.argv[1])
    spec["readable"], spec["writable"] = tuple(spec["readable"]), tuple(spec["writable"])
    jail, command = Jail(**spec), sys.argv[2:]
    if jail.own_network:
        _loopback_up()
    socket.sethostname(jail.hostname)
    root = Path("/mnt")  # only in our own mount namespace
    _build_root(jail, root)
    os.chroot(root)
    os.chdir("/tmp")
    _mount("none", "/", None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    _give_up_everything()
    environment = os.environ | {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
