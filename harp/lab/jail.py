# SPDX-License-Identifier: Apache-2.0
"""Runs a command as a container would: user nobody, no capability, new namespaces.

It has new namespaces for mounts, processes, IPC and host name. It can read /usr and the named files
of the machine, and use harpd's socket, but it has no NIC.
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
    """Return the directories of HARP and this Python, for Jail.readable."""
    package = Path(__file__).resolve().parent.parent
    paths = [package, Path(sys.prefix), Path(sys.base_prefix)]
    paths += [Path(sysconfig.get_path("purelib")), *map(Path, sys.path)]
    build = _paths.build_dir()
    if build is not None:
        # _paths.build_dir() identifies the tree by meson.build.
        paths += [build, package.parent / "meson.build"]
    excluded = {Path("/"), Path("/tmp"), Path.cwd()}  # a script's directory in sys.path
    existing = [path for path in paths if path.is_absolute() and path.exists()]
    # A directory comes before its contents, which need no mount then.
    result: list[Path] = []
    for path in sorted(set(existing)):
        if path not in excluded and not any(path.is_relative_to(other) for other in result):
            result.append(path)
    return list(map(str, result))


@dataclass(frozen=True)
class Jail:
    """The contents of a jail."""

    socket: str | None = None  # harpd's, mounted as /run/harp/harpd.sock
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hostname: str = "container"

    def command(self, host: Host | None, args: Sequence[str | Path]) -> list[str]:
        """Return the command line for root. host: whose network it uses; None: the caller's."""
        require_programs("nsenter", "prlimit", "setpriv", "unshare")
        enter = ["nsenter", f"--net=/run/netns/{host.netns}", "--"] if host else []
        spaces = ["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"]
        shown = [("ro", path) for path in _SYSTEM if Path(path).exists()]
        shown += [("rw", path) for path in _DEVICES]
        shown += [
            ("ro", path)
            for path in self.readable
            if not any(Path(path).is_relative_to(folder) for folder in _SYSTEM)
        ]
        shown += [("rw", path) for path in self.writable]
        lines = [shlex.join(["show", *arguments]) for arguments in shown]
        if self.socket is not None:
            lines.append(shlex.join(["show", "rw", self.socket, SOCKET_INSIDE]))
        lines.append(f"echo {shlex.quote(self.hostname)} >/proc/sys/kernel/hostname")
        script = "\n".join([_FUNCTIONS, *lines, _START])
        return [*enter, "unshare", *spaces, "--", "sh", "-c", script, "sh", *map(str, args)]
