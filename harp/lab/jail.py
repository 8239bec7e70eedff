# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a container would: user nobody, no capability, namespaces of its own.

It sees /usr and the named files of the machine, read-only, and harpd's socket, but no NIC. It has
namespaces of its own for mounts, processes, IPC and host name.
"""

import shlex
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harp import _paths
from harp.lab import Host, require_programs

NOBODY = 65534
MEMLOCK_BYTES = 65536
SOCKET_INSIDE = "/run/harp/harpd.sock"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

# Runs as root in the new namespaces. /mnt becomes the root.
_FUNCTIONS = """\
set -eu
show() { # show ro|rw PATH [PATH-INSIDE]: the same file or directory
	to=/mnt${3:-$2}
	if [ -L "$2" ]; then cp -P "$2" "$to"; return; fi
	if [ -d "$2" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; touch "$to"; fi
	mount --rbind "$2" "$to"
	[ "$1" = rw ] || mount -o remount,bind,ro,nosuid "$to"
}
scratch() { mkdir -p "/mnt$1"; mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "/mnt$1"; }
mount -t tmpfs -o mode=0755,nosuid,nodev jail /mnt
mkdir /mnt/proc
mount -t proc -o nosuid,nodev proc /mnt/proc
scratch /tmp
scratch /dev/shm
"""
_START = f"""\
mount -o remount,bind,ro,nosuid,nodev /mnt
exec chroot /mnt env -C /tmp HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \\
	prlimit --memlock={MEMLOCK_BYTES} setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \\
	--inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""


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

    def command(self, host: Host | None, args: Sequence[str | Path]) -> list[str]:
        """Return the command line, for root: in a host's network, or (None) in the caller's."""
        require_programs("nsenter", "prlimit", "setpriv", "unshare")
        enter = ["nsenter", f"--net=/run/netns/{host.netns}", "--"] if host else []
        spaces = ["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
        shown = [("ro", path) for path in _SYSTEM if Path(path).exists()]
        shown += [("rw", path) for path in _DEVICES]
        shown += [
            ("ro", path)
            for path in self.readable
            if not any(Path(path).is_relative_to(each) for each in _SYSTEM)
        ]
        shown += [("rw", path) for path in self.writable]
        lines = [shlex.join(["show", *words]) for words in shown]
        if self.socket is not None:
            lines.append(shlex.join(["show", "rw", self.socket, SOCKET_INSIDE]))
        lines.append(f"echo {shlex.quote(self.hostname)} >/proc/sys/kernel/hostname")
        script = "\n".join([_FUNCTIONS, *lines, _START])
        return [*enter, "unshare", *spaces, "--", "sh", "-c", script, "sh", *map(str, args)]
