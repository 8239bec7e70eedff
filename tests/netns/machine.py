# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a docs/ page as a reader would type them, on a lab host with private files.

A block of a page is ```console, followed by words that the page defines. `# exit code 0 or 5` after
a command gives the expected codes.

The machine has its own /etc, /run, /sys, /opt, /usr/local/bin and processes, in namespaces that one
process holds open, and an unprivileged user `trainer`.
"""

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harp.lab import Host
from harp.lab.jail import library_dirs

USER, UID = "trainer", 60001
RETRY_S = 60
# Runs as root in the new namespaces: its mounts and links are visible only there.
SCRIPT = """
set -e
mount --make-rprivate /
mkdir -p "$0/etc" "$0/opt" "$0/bin" "$0/run"
cp -a /etc/. "$0/etc"
mount --bind "$0/etc" /etc
eval "$3"
mount --bind "$0/opt" /opt
mount --bind "$0/bin" /usr/local/bin
mount -t tmpfs -o mode=0755 tmpfs "$0/run"
[ -e /run/netns ] && mkdir "$0/run/netns" && mount --rbind /run/netns "$0/run/netns"
mount --rbind "$0/run" /run
mount -t sysfs sysfs /sys
ip link set "$1" down
ip link set "$1" name "$2"
ip link set "$2" up
echo ready
exec cat
"""


def mount_lines(folder: Path) -> str:
    """Return shell lines that make the directories of Python and HARP accessible to every user.

    A parent that others cannot enter (such as root's home) is covered by a folder with only those.
    """
    lines, covers = [], {}
    for number, path in enumerate(map(Path, library_dirs())):
        closed = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if not closed:
            continue
        cover = covers.setdefault(closed[0], folder / f"opened{number}")
        target = cover / path.relative_to(closed[0])
        if path.is_dir():
            lines.append(f"mkdir -p {target}")
        else:
            lines.append(f"mkdir -p {target.parent}; touch {target}")
        lines.append(f"mount --bind {path} {target}")
    lines += [f"mount --rbind {cover} {parent}" for parent, cover in covers.items()]
    return "\n".join(lines)


@dataclass
class Step:
    """One command of the page."""

    number: int  # line of the page
    kind: str  # the words after `console` in the block's first line
    user: bool  # typed by the unprivileged user
    command: str
    codes: tuple[int, ...]
    output: list[str]


def steps(page: Path, others: frozenset[str] = frozenset()) -> list[Step]:
    """Return the page's commands in order. others: languages of blocks to skip."""
    result: list[Step] = []
    kind: str | None = None
    is_other = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            words = line.removeprefix("```").split()
            if is_other or (kind is None and words[:1] and words[0] in others):
                is_other = not is_other
                continue
            assert kind is not None or words[:1] == ["console"], f"line {number}: {line}"
            kind = " ".join(words[1:]) if kind is None else None
        elif kind is not None and line[:2] in ("# ", "$ "):
            command, _, codes = line[2:].partition("# exit code")
            expected = tuple(map(int, re.findall(r"\d+", codes))) or (0,)
            result.append(Step(number, kind, line[0] == "$", command.strip(), expected, []))
        elif kind is not None and line.strip():
            result[-1].output.append(line)
    return result


def missing_line(expected: list[str], out: str) -> str | None:
    """Return the first line of `expected` that `out` lacks, in order; None if it has all."""
    lines = iter([" ".join(line.split()) for line in out.splitlines()])
    for line in expected:
        words = " ".join(line.split())
        pattern = re.compile(".*".join(map(re.escape, words.split("..."))))
        if not any(pattern.match(printed) for printed in lines):
            return line
    return None


@dataclass
class Machine:
    """A lab host with its own files and processes, from start() to close()."""

    host: Host
    folder: Path
    ifname: str = "eth1"
    background: list[tuple[subprocess.Popen[str], Path]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)  # environment of every command
    _holder: subprocess.Popen[str] | None = None
    _inside: str = ""  # pid of process 1 of the PID namespace

    def start(self, *, installed: bool = True) -> None:
        """Create the namespaces. installed: HARP is there, as the page installs it."""
        enter = ["nsenter", f"--net=/run/netns/{self.host.netns}", "unshare", "--mount"]
        enter += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        script = ["sh", "-c", SCRIPT, str(self.folder), self.host.ifname, self.ifname]
        script.append(mount_lines(self.folder))
        self._holder = subprocess.Popen(
            [*enter, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        (self._inside,) = children.read_text().split()
        (self.folder / "home").mkdir()
        os.chown(self.folder / "home", UID, UID)
        with (self.folder / "etc/passwd").open("a") as passwd:
            passwd.write(f"{USER}:x:{UID}:{UID}::{self.folder}/home:/bin/sh\n")
        with (self.folder / "etc/group").open("a") as group:
            group.write(f"{USER}:x:{UID}:\n")
        if installed:
            self._install()

    def program(self, name: str, real: Path, where: str = "bin") -> None:
        """Create a script that runs `real`, which would not find its files through a symlink."""
        path = self.folder / where / name
        path.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
        path.chmod(0o755)

    def _install(self) -> None:
        (self.folder / "opt/harp/bin").mkdir(parents=True)
        for name in ("harpctl", "harpd", "python"):
            self.program(name, Path(sys.executable).parent / name, "opt/harp/bin")
            if name != "python":
                (self.folder / "bin" / name).symlink_to(f"/opt/harp/bin/{name}")

    def command(self, line: str, user: bool) -> list[str]:
        """Return the arguments that run a line of the page as root or as the user."""
        assert self._holder is not None
        enter = ["nsenter", "-t", self._inside, "--mount", "--net", "--pid"]
        as_user = (
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups", "--no-new-privs"]
            if user
            else []
        )
        folder = str(self.folder / ("home" if user else "etc/.."))
        return [*enter, f"--wd={folder}", "--", *as_user, "bash", "-o", "pipefail", "-c", line]

    @property
    def environment(self) -> dict[str, str]:
        """The environment without HARP_ and NCCL_ variables and without the venv."""
        ours = ("HARP_", "NCCL_", "VIRTUAL_ENV", "PYTHON", "PYTEST")
        base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        build = os.environ.get("HARP_BUILD")
        return (
            base
            | {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}
            | ({"HARP_BUILD": build} if build else {})
            | self.extra
        )

    def _popen(self, line: str, user: bool, stdout: int | IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(line, user),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=self.environment,
            text=True,
            errors="replace",
        )

    def begin(self, line: str, user: bool) -> None:
        """Start a command in the background. Its output goes to a file, so it never blocks."""
        path = self.folder / f"background{len(self.background)}"
        with path.open("w") as out:
            self.background.append((self._popen(line, user, out), path))

    def wait(self, timeout_s: float = 300) -> list[tuple[str, int]]:
        """Wait for all background commands. Return their outputs and exit codes."""
        results = []
        for process, path in self.background:
            process.wait(timeout_s)
            results.append((path.read_text(), process.returncode))
        self.background.clear()
        return results

    @property
    def is_busy(self) -> bool:
        return any(process.poll() is None for process, _ in self.background)

    def run(self, line: str, user: bool = False, timeout_s: float = 120) -> tuple[str, int]:
        process = self._popen(line, user, subprocess.PIPE)
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return f"{out}\nstill running after {timeout_s} s", -1
        return out, process.returncode

    def type_in(self, step: Step, where: str, is_retried: bool = False) -> None:
        """Run a step and check its output and exit code; AssertionError names its line.

        is_retried: the command may run before a background job has reached the state that it shows.
        """
        if step.command.endswith("&"):
            self.begin(step.command.removesuffix("&"), step.user)
            return
        deadline = time.monotonic() + RETRY_S
        while True:
            results = self.wait() if step.command == "wait" else [self.run(step.command, step.user)]
            lines = [missing_line(step.output, out) for out, _ in results]
            absent = [line for line in lines if line is not None]
            if not (absent and is_retried and self.is_busy and time.monotonic() < deadline):
                break
        for out, code in results:
            assert code in step.codes, f"{where}: exit code {code}\n{out[-2000:]}"
        assert not absent, f"{where}: no line {absent[0]!r} in\n{results}"

    def close(self) -> None:
        if self._holder is not None:
            self.run("harpctl stop --force")
            for process, _ in self.background:
                if process.poll() is None:
                    process.kill()
                process.wait()
            assert self._holder.stdin is not None
            self._holder.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


def user_is_free() -> bool:
    """No account of this machine has the UID of `trainer`."""
    return not any(entry.pw_uid == UID for entry in pwd.getpwall())
