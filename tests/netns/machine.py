# SPDX-License-Identifier: Apache-2.0
"""A host of the laboratory as a separate machine, and the commands of a page of docs/, which it
runs as a reader would type them.

A block of a page is ```console, followed by words that the page defines. `# exit code 0 or 5` after
a command gives the expected codes.

It has its own /etc, /run, /sys, /opt and /usr/local/bin and its own processes, in namespaces that
one process holds open, and an unprivileged user `trainer`.
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
LOOK_AGAIN_S = 60
# As root, in the namespaces to be: whatever is changed here, nobody else sees.
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


def opened(folder: Path) -> str:
    """Shell lines that show the directories of Python and HARP to every user, where one on the way
    to them (root's home, say) is closed: nothing else is seen there."""
    lines, covered = [], {}
    for number, path in enumerate(map(Path, library_dirs())):
        way = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if not way:
            continue
        fake = covered.setdefault(way[0], folder / f"opened{number}")
        shown = fake / path.relative_to(way[0])
        if path.is_dir():
            lines.append(f"mkdir -p {shown}")
        else:
            lines.append(f"mkdir -p {shown.parent}; touch {shown}")
        lines.append(f"mount --bind {path} {shown}")
    lines += [f"mount --rbind {fake} {closed}" for closed, fake in covered.items()]
    return "\n".join(lines)


@dataclass
class Step:
    """One command of the page."""

    number: int  # its line
    kind: str  # of its block: the words behind console
    user: bool
    command: str
    codes: tuple[int, ...]
    shown: list[str]


def steps(page: Path, others: frozenset[str] = frozenset()) -> list[Step]:
    """All of them, in the page's order. others: kinds of blocks that are not typed."""
    found: list[Step] = []
    kind: str | None = None
    other = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            words = line.removeprefix("```").split()
            if other or (kind is None and words[:1] and words[0] in others):
                other = not other
                continue
            assert kind is not None or words[:1] == ["console"], f"line {number}: {line}"
            kind = " ".join(words[1:]) if kind is None else None
        elif kind is not None and line[:2] in ("# ", "$ "):
            command, _, codes = line[2:].partition("# exit code")
            wanted = tuple(map(int, re.findall(r"\d+", codes))) or (0,)
            found.append(Step(number, kind, line[0] == "$", command.strip(), wanted, []))
        elif kind is not None and line.strip():
            found[-1].shown.append(line)
    return found


def missing(shown: list[str], out: str) -> str | None:
    """The first line of the page that is not in the output, in order; None when all are."""
    lines = iter([" ".join(line.split()) for line in out.splitlines()])
    for line in shown:
        words = " ".join(line.split())
        pattern = re.compile(".*".join(map(re.escape, words.split("..."))))
        if not any(pattern.match(printed) for printed in lines):
            return line
    return None


@dataclass
class Machine:
    """The namespaces, from start() to close()."""

    host: Host
    folder: Path
    ifname: str = "eth1"
    background: list[tuple[subprocess.Popen[str], Path]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)  # variables of every command
    _holder: subprocess.Popen[str] | None = None
    _inside: str = ""  # process 1 of its process namespace

    def start(self, *, installed: bool = True) -> None:
        """Makes it. installed: HARP is there, as the page installs it."""
        enter = ["nsenter", f"--net=/run/netns/{self.host.netns}", "unshare", "--mount"]
        enter += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        script = ["sh", "-c", SCRIPT, str(self.folder), self.host.ifname, self.ifname]
        script.append(opened(self.folder))
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
        """Puts a command into /usr/local/bin, or elsewhere: a link would hide where it is from."""
        path = self.folder / where / name
        path.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
        path.chmod(0o755)

    def _install(self) -> None:
        """What the page installs, from the tree that is tested."""
        (self.folder / "opt/harp/bin").mkdir(parents=True)
        for name in ("harpctl", "harpd", "python"):
            self.program(name, Path(sys.executable).parent / name, "opt/harp/bin")
            if name != "python":
                (self.folder / "bin" / name).symlink_to(f"/opt/harp/bin/{name}")

    def command(self, line: str, user: bool) -> list[str]:
        """The command line for a line of the page, typed by root or by the user."""
        assert self._holder is not None
        enter = ["nsenter", "-t", self._inside, "--mount", "--net", "--pid"]
        who = (
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--init-groups", "--no-new-privs"]
            if user
            else []
        )
        where = str(self.folder / ("home" if user else "etc/.."))
        return [*enter, f"--wd={where}", "--", *who, "bash", "-o", "pipefail", "-c", line]

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of ours: no HARP_ or NCCL_ variable, no virtual environment."""
        ours = ("HARP_", "NCCL_", "VIRTUAL_ENV", "PYTHON", "PYTEST")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        build = os.environ.get("HARP_BUILD")
        return (
            kept
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
        """A command in the background; what it prints goes into a file, so that it never waits."""
        path = self.folder / f"background{len(self.background)}"
        with path.open("w") as out:
            self.background.append((self._popen(line, user, out), path))

    def wait(self, timeout_s: float = 300) -> list[tuple[str, int]]:
        """The ends of all of them."""
        ended = []
        for process, path in self.background:
            process.wait(timeout_s)
            ended.append((path.read_text(), process.returncode))
        self.background.clear()
        return ended

    @property
    def busy(self) -> bool:
        """Does one of them run?"""
        return any(process.poll() is None for process, _ in self.background)

    def run(self, line: str, user: bool = False, timeout_s: float = 120) -> tuple[str, int]:
        """What a command printed, and its exit code."""
        process = self._popen(line, user, subprocess.PIPE)
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return f"{out}\nstill running after {timeout_s} s", -1
        return out, process.returncode

    def type_in(self, step: Step, where: str, looks: bool = False) -> None:
        """What a page says happens; AssertionError names its line.

        looks: a job that has just been started may not be yet where the command shows it.
        """
        if step.command.endswith("&"):
            self.begin(step.command.removesuffix("&"), step.user)
            return
        deadline = time.monotonic() + LOOK_AGAIN_S
        while True:
            ended = self.wait() if step.command == "wait" else [self.run(step.command, step.user)]
            absent = [line for out, _ in ended if (line := missing(step.shown, out)) is not None]
            if not (absent and looks and self.busy and time.monotonic() < deadline):
                break
        for out, code in ended:
            assert code in step.codes, f"{where}: exit code {code}\n{out[-2000:]}"
        assert not absent, f"{where}: no line {absent[0]!r} in\n{ended}"

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
    """No account of this machine has the number that ours has there."""
    return not any(entry.pw_uid == UID for entry in pwd.getpwall())
