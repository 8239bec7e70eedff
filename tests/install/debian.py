# SPDX-License-Identifier: Apache-2.0
"""A fresh Debian 12 in a directory, for tests of packages and wheels."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from programs import finished

SUITE = "bookworm"
INCLUDE = "python3,python3-venv"
_TIMEOUT_S = 900


def archive() -> str:
    """Return the URL of the Debian archive that this host uses."""
    done = finished(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Codename: " + SUITE], check=True
    )
    return next(line for line in done.stdout.splitlines() if line.startswith("http"))


def bootstrap(folder: Path) -> None:
    """Create the directory if it does not exist, in about two minutes."""
    if folder.is_dir():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={INCLUDE}", SUITE, partial]
    subprocess.run([*command, archive()], check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL)
    shutil.rmtree(partial / "var/cache/apt/archives")
    partial.rename(folder)


class Debian:
    """A copy of the bootstrapped directory. Programs run in it by chroot."""

    def __init__(self, base: Path, root: Path) -> None:
        self.root = root
        self.binds: list[Path] = []  # directories of the host, visible at the same path
        subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)

    def command(self, *arguments: str | Path) -> list[str | Path]:
        """Return a command line that runs a command in it, in a new mount namespace."""
        script = 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys"'
        script += ' && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/run"'
        for path in self.binds:
            (self.root / path.relative_to("/")).mkdir(parents=True, exist_ok=True)
            script += f' && mount --bind {shlex.quote(str(path))} "$0"{shlex.quote(str(path))}'
        script += ' && exec chroot "$0" "$@"'
        return [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", script),
            self.root,
            *arguments,
        ]

    def run(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, status: int | None = 0
    ) -> str:
        """Run a command with a minimal environment; return its output.

        status: the expected exit status; None: any.
        """
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        environment |= {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", **(env or {})}
        done = finished(self.command(*arguments), env=environment, timeout=_TIMEOUT_S)
        command = " ".join(map(str, arguments))
        assert status in (None, done.returncode), f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def copy(self, source: Path, folder: str) -> None:
        """Copy a file or a directory into one of its folders."""
        target = self.root / folder.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / source.name, symlinks=True)
        else:
            shutil.copy(source, target / source.name)

    def close(self) -> None:
        assert not os.path.ismount(self.root / "proc")
        shutil.rmtree(self.root)
